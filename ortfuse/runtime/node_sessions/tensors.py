"""Arrays as messages have them: a type, a shape and bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from .find_packages import NodeError

Array = np.ndarray[Any, Any]

_TYPES = {
    **{name: name for name in ("float32", "float64", "float16", "bool")},
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""Types of arrays, and what JavaScript calls them."""


def to_tensors(inputs: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the types and shapes of arrays, and their content.

    Raises:
        NodeError: JavaScript has no tensors of a type, or an input is no array.
    """
    described, buffers = list[dict[str, Any]](), list[Any]()
    for name, value in inputs.items():
        if not isinstance(value, np.ndarray):
            raise NodeError(f"input {name}: JavaScript takes tensors only, no sequences or maps")
        kind = "string" if value.dtype.kind in "OUS" else _TYPES.get(value.dtype.name, "")
        if not kind:
            raise NodeError(f"input {name}: JavaScript has no tensors of {value.dtype.name}")
        described.append({"type": kind, "dims": list(value.shape)})
        texts = json.dumps([str(one) for one in value.reshape(-1)]).encode() if kind == "string" else b""
        buffers.append(texts if kind == "string" else np.ascontiguousarray(value))
    return described, buffers


def to_array(described: Mapping[str, Any], content: bytes) -> Array:
    """Return the array of a tensor."""
    kind, shape = described["type"], [int(size) for size in described["dims"]]
    if kind == "string":
        return np.array(json.loads(content), object).reshape(shape)
    if kind not in _TYPES:
        raise NodeError(f"numpy has no arrays of {kind}")
    return np.frombuffer(bytearray(content), np.dtype(kind)).reshape(shape)
