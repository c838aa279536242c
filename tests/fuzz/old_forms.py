"""Inputs of operators as the attributes that they were in older opsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_ATTRIBUTES: Mapping[str, tuple[int, Sequence[str]]] = {
    "Slice": (10, ("starts", "ends", "axes")),
    "Pad": (11, ("pads", "value")),
    "Clip": (11, ("min", "max")),
    "Dropout": (12, ("ratio",)),
    "TopK": (10, ("k",)),
}
"""The opset from which on the inputs behind the first are inputs, and the attributes that they were before."""


def in_old_form(
    op_type: str, inputs: Sequence[Any], attributes: Mapping[str, Any], opset: int
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The inputs and attributes of a node as an opset has them; inputs that it does not know are left as they are."""
    since, names = _ATTRIBUTES.get(op_type, (0, ()))
    if opset >= since or len(inputs) - 1 > len(names):
        return inputs, dict(attributes)
    found = dict(attributes)
    for name, value in zip(names, inputs[1:], strict=False):
        if value is not None:
            numbers = value.known
            found[name] = numbers.item() if numbers.ndim == 0 or op_type == "TopK" else numbers.tolist()
    return inputs[:1], found
