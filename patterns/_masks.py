"""What values an attention mask can have: decides which attention operator computes the same for rows fully masked.

`softmax(scores + mask)` differs from the kernels only where a whole row is masked. Plain softmax gives the uniform
distribution for a finite filler and NaN for -inf; the runtime's ai.onnx Attention gives zeros as soon as every mask value
of a row is -inf or the lowest number of the type.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortfuse.ir.facts import Facts

MAX_LEVELS = 8
_MOVES_DATA = frozenset(
    {"Unsqueeze", "Squeeze", "Expand", "Reshape", "Slice", "Transpose", "Identity", "Gather", "Flatten", "Tile"}
)
_ARITHMETIC = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Min": np.minimum,
    "Max": np.maximum,
}

DEEP = -1e30
"""Below this a float32 score added to the mask is lost in rounding, so that all such fillers act alike."""


def levels(value: ir.Value, facts: Facts, depth: int = 24) -> frozenset[float] | None:
    """All numbers that `value` can hold, when they are few and follow from constants alone; `None` if not known.

    NaN is never a level. `depth` bounds how far back the computation is followed.
    """
    array = facts.const(value) if facts.is_const(value) else None
    if array is not None:
        if array.size > 1 << 20 or array.dtype.kind not in "fbiu":
            return None
        unique = np.unique(array)
        found = frozenset(float(number) for number in unique[: MAX_LEVELS + 1])
        return _few(found)
    if facts.dtype(value) == ir.DataType.BOOL:
        return frozenset((0.0, 1.0))
    node = value.producer()
    if node is None or node.domain or depth == 0:
        return None
    if node.op_type in _MOVES_DATA or node.op_type == "Cast":
        source = node.inputs[0]
        return None if source is None else _representable(levels(source, facts, depth - 1), value, facts)
    if node.op_type == "Where":
        return _union([levels(branch, facts, depth - 1) for branch in node.inputs[1:] if branch is not None])
    if node.op_type == "Concat":
        return _union([levels(part, facts, depth - 1) for part in node.inputs if part is not None])
    if node.op_type in _ARITHMETIC and len(node.inputs) == 2:
        first, second = (levels(operand, facts, depth - 1) if operand is not None else None for operand in node.inputs)
        if first is None or second is None:
            return None
        with np.errstate(all="ignore"):
            results = {float(_ARITHMETIC[node.op_type](a, b)) for a in first for b in second}
        return _representable(_few(frozenset(results)), value, facts)
    return None


def _few(found: frozenset[float]) -> frozenset[float] | None:
    return found if len(found) <= MAX_LEVELS and not any(math.isnan(number) for number in found) else None


def _union(parts: list[frozenset[float] | None]) -> frozenset[float] | None:
    known = [part for part in parts if part is not None]
    return _few(frozenset().union(*known)) if len(known) == len(parts) else None


def _representable(found: frozenset[float] | None, value: ir.Value, facts: Facts) -> frozenset[float] | None:
    """The levels as the element type of `value` stores them (a sum below its lowest number becomes -inf)."""
    dtype = facts.dtype(value)
    if found is None or dtype is None:
        return None
    if not dtype.is_floating_point():
        return found
    with np.errstate(all="ignore"):
        return frozenset(float(np.asarray(number).astype(dtype.numpy())) for number in found)


def deepest_allowed(dtype: ir.DataType) -> float:
    """A filler that still hides every score and that the Attention kernel does not take for "row without keys"."""
    return -1e38 if dtype in (ir.DataType.FLOAT, ir.DataType.BFLOAT16) else -1e4


def is_deep(level: float) -> bool:
    """Whether a mask value hides a key altogether."""
    return level <= DEEP
