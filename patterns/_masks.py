"""What values an attention mask can have: decides which attention operator computes the same for rows fully masked.

`softmax(scores + mask)` differs from the kernels only where a whole row is masked. Plain softmax gives the uniform
distribution for a finite filler and NaN for -inf; the runtime's ai.onnx Attention gives zeros as soon as every mask value
of a row is -inf or the lowest number of the type.

The analysis follows a mask back to its constants. Of every value it knows a few discrete numbers (`deep` ones, that hide a
key, and others) or an interval. Sums that a network computes from its activations (a position bias of a product, say) are
taken for finite and far from the lowest number of their type: where they are not, the original gives NaN already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortfuse.ir.facts import Facts

MAX_LEVELS = 8

DEEP = -1e30
"""Below this a float32 score added to the mask is lost in rounding, so that all such fillers act alike."""

_MOVES_DATA = frozenset(
    {"Unsqueeze", "Squeeze", "Expand", "Reshape", "Slice", "Transpose", "Identity", "Gather", "Flatten", "Tile",
     "GatherND", "GatherElements", "Split", "Trilu"}
)  # fmt: skip
_ARITHMETIC = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Min": np.minimum, "Max": np.maximum}
_ACTIVATIONS = frozenset(
    {"MatMul", "Gemm", "Conv", "Softmax", "LayerNormalization", "RMSNormalization", "Sigmoid", "Tanh", "Relu", "Gelu",
     "FusedMatMul", "Einsum", "Log", "Sqrt", "ReduceSum"}
)  # fmt: skip


@dataclass(frozen=True)
class Range:
    """What a value can hold: some of the numbers in `levels` (when few) or anything in [low, high], and numbers in `deep`."""

    deep: frozenset[float]
    levels: frozenset[float] | None
    low: float
    high: float

    @property
    def all_levels(self) -> frozenset[float] | None:
        """Every number the value can hold, if they are few."""
        return None if self.levels is None else self.levels | self.deep


ACTIVATION = Range(frozenset(), None, -1e25, 1e25)


def _of_numbers(numbers: np.ndarray) -> Range | None:
    if not numbers.size or np.isnan(numbers).any() or numbers.max() == math.inf:
        return None
    deep, rest = numbers[numbers <= DEEP], numbers[numbers > DEEP]
    if len(deep) > MAX_LEVELS:
        return None
    low, high = (float(rest.min()), float(rest.max())) if rest.size else (0.0, 0.0)
    levels = frozenset(map(float, rest)) if rest.size <= MAX_LEVELS else None
    return Range(frozenset(map(float, deep)), levels, low, high)


def mask_range(value: ir.Value, facts: Facts, depth: int = 32) -> Range | None:
    """What `value` can hold, as far as constants tell; `None` if not known. `depth` bounds how far back is looked."""
    array = facts.const(value) if facts.is_const(value) else None
    if array is not None:
        if array.size > 1 << 22 or array.dtype.kind not in "fbiu":
            return None
        return _of_numbers(np.unique(array.astype(np.float64)))
    dtype = facts.dtype(value)
    if dtype == ir.DataType.BOOL:
        return Range(frozenset(), frozenset((0.0, 1.0)), 0.0, 1.0)
    node = value.producer()
    if node is None or depth == 0:
        return Range(frozenset(), None, -1e19, 1e19) if dtype is not None and dtype.is_integer() else None
    if node.op_type in _ACTIVATIONS:
        return ACTIVATION
    if node.domain:
        return None
    operands = [operand for operand in node.inputs if operand is not None]
    if node.op_type in _MOVES_DATA:
        found = mask_range(operands[0], facts, depth - 1)
        # The upper or lower triangle that Trilu does not keep is zero.
        return _union([found, _of_numbers(np.zeros(1))]) if node.op_type == "Trilu" else found
    if node.op_type == "Cast":
        return _stored(mask_range(operands[0], facts, depth - 1), dtype)
    if node.op_type in ("Where", "Concat"):
        parts = operands[1:] if node.op_type == "Where" else operands
        return _union([mask_range(part, facts, depth - 1) for part in parts])
    if node.op_type == "Neg":
        return _combined("Sub", _of_numbers(np.zeros(1)), mask_range(operands[0], facts, depth - 1), dtype)
    if node.op_type in _ARITHMETIC and len(operands) == 2:
        first, second = (mask_range(operand, facts, depth - 1) for operand in operands)
        return _combined(node.op_type, first, second, dtype)
    return None


def _union(parts: list[Range | None]) -> Range | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    deep = frozenset().union(*(part.deep for part in known))
    levels = None
    if all(part.levels is not None for part in known):
        levels = frozenset().union(*(part.levels for part in known if part.levels is not None))
    if len(deep) > MAX_LEVELS:
        return None
    return Range(
        deep,
        levels if levels is not None and len(levels) <= MAX_LEVELS else None,
        min(part.low for part in known),
        max(part.high for part in known),
    )


def _combined(op_type: str, first: Range | None, second: Range | None, dtype: ir.DataType | None) -> Range | None:
    if first is None or second is None or dtype is None:
        return None
    operation = _ARITHMETIC[op_type]
    if first.all_levels is not None and second.all_levels is not None:
        with np.errstate(all="ignore"):
            results = np.array([operation(a, b) for a in first.all_levels for b in second.all_levels])
        return _stored(_of_numbers(np.unique(results)), dtype)
    if first.deep and second.deep:
        return None
    if first.deep or second.deep:
        # The filler of one side swallows what the other adds to it; any other operation on it is not followed.
        quiet = second if first.deep else first
        if op_type != "Add" or max(abs(quiet.low), abs(quiet.high)) > 1e20:
            return None
    with np.errstate(all="ignore"):
        corners = [float(operation(a, b)) for a in (first.low, first.high) for b in (second.low, second.high)]
    if min(corners) <= DEEP or max(corners) >= -DEEP:
        return None
    return Range(first.deep | second.deep, None, min(corners), max(corners))


def _stored(found: Range | None, dtype: ir.DataType | None) -> Range | None:
    """The numbers as an element type stores them: what is below its lowest number becomes -inf."""
    if found is None or dtype is None or not dtype.is_floating_point():
        return found
    numbers = found.all_levels
    if numbers is None:
        limit = float(np.finfo(dtype.numpy()).max) if dtype != ir.DataType.BFLOAT16 else 3e38
        return found if max(abs(found.low), abs(found.high)) < limit and not found.deep else None
    with np.errstate(all="ignore"):
        return _of_numbers(np.unique(np.array([float(np.asarray(n).astype(dtype.numpy())) for n in numbers])))


def deepest_allowed(dtype: ir.DataType) -> float:
    """A filler that still hides every score and that the Attention kernel does not take for "row without keys"."""
    return -1e38 if dtype in (ir.DataType.FLOAT, ir.DataType.BFLOAT16) else -1e4
