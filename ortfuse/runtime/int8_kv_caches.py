"""Int8 KV caches of a decoder, which the metadata of the model describe:

    {"past_key_0": {"present": "present_key_0", "scales": [0.031, ...], "heads": 8}, ...}

A number is its integer times the scale of its channel, which is the last axis. Decoding that begins with empty caches needs no
scales: what a step gives is what the next one takes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.io.bounded_text_files import from_json

KEY = "ortfuse.caches"
"""The metadata key of a model's integer caches."""


@dataclass(frozen=True)
class Cache:
    """A cache of integers.

    Attributes:
        past: The input that it is taken from.
        present: The output that it is given to, longer by what is new.
        scales: The size of a step, for each channel of a head.
        heads: The number of heads.
    """

    past: str
    present: str
    scales: tuple[float, ...]
    heads: int

    def rounded(self, array: Any) -> Any:
        """The integers that stand for numbers; of what is no float32, the array itself."""
        if getattr(array, "dtype", None) != np.float32:
            return array
        return np.clip(np.rint(array / np.array(self.scales, np.float32)), -128, 127).astype(np.int8)

    def widened(self, array: Any) -> Any:
        """The numbers that integers stand for."""
        return array.astype(np.float32) * np.array(self.scales, np.float32)


def write_caches(model: ir.Model, caches: Sequence[Cache]) -> None:
    """Write into a model which of its inputs and outputs are caches of integers."""
    content = {one.past: {"present": one.present, "scales": list(one.scales), "heads": one.heads} for one in caches}
    model.metadata_props[KEY] = json.dumps(content)


def integer_caches(model: Any) -> tuple[Cache, ...]:
    """The caches of integers that a model takes and gives, as its metadata say; none if it is no `onnx_ir.Model`."""
    if not isinstance(model, ir.Model) or KEY not in model.metadata_props:
        return ()
    try:
        found = [
            Cache(name, str(one["present"]), tuple(map(float, one["scales"])), int(one["heads"]))
            for name, one in from_json(model.metadata_props[KEY]).items()
        ]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return ()  # somebody else's
    ends = {value.name for value in (*model.graph.inputs, *model.graph.outputs) if value.dtype == ir.DataType.INT8}
    return tuple(one for one in found if {one.past, one.present} <= ends)


class Rounding:
    """Round caches in float32 to the integers that a model takes; the last of each is remembered."""

    def __init__(self, caches: Sequence[Cache]) -> None:
        self._caches = {one.past: one for one in caches}
        self._last: dict[str, tuple[Any, Any]] = {}

    def given(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The same inputs, with caches in float32 rounded."""
        return {name: self._rounded(name, array) if name in self._caches else array for name, array in inputs.items()}

    def _rounded(self, name: str, array: Any) -> Any:
        known = self._last.get(name)
        if known is None or known[0] is not array:
            known = self._last[name] = (array, self._caches[name].rounded(array))
        return known[1]
