"""Values that an attention mask can have; they decide which operator computes the same for fully masked rows.

`softmax(scores + mask)` differs from the kernels only if a whole row is masked. Plain softmax gives the uniform
distribution for a finite filler and NaN for -inf. The runtime's ai.onnx Attention gives zeros as soon as every mask value
of a row is -inf or the lowest number of the type. Causal masks never mask a whole row: query i sees the keys 0 to i.
So nothing in the first column of the mask hides a key. If a key is appended to those given, nothing in the last one does.

The ranges of values are provable facts, except for one assumption, `tame`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import onnx_ir as ir

from ortfuse.analysis.facts import Facts, Range
from ortfuse.analysis.ranges.queries import Asking
from ortfuse.analysis.ranges.range import between
from ortfuse.analysis.transfer.value_fact import Fact

DEEP = -1e30
"""Below this, a float32 score added to the mask is lost in rounding, so that all such fillers act alike."""

_DEEP_IN_FLOAT16 = -1e4
"""Below this, a float16 filler hides a key wherever another one is kept: a score that made up for it would be that large itself,
and be rounded as coarsely as its sum with the filler is."""

DEEPEST_ALLOWED = -1e38
"""A float32 or bfloat16 filler that hides every score and that the Attention kernel does not take for "row without keys"."""

_FADES = 64.0
"""Beyond this magnitude, the sum of mask value and 16-bit score is rounded so coarsely that the result depends on the kernel."""

_QUIET = 1e20
"""Numbers that are lost when added to a filler are smaller than this."""

_ACTIVATION = between(-1e15, 1e15)
_BOUNDED = frozenset({"Softmax", "Sigmoid", "Tanh"})
_ACTIVATIONS = frozenset({"MatMul", "Gemm", "Conv", "Einsum", "LayerNormalization", "RMSNormalization", "Relu", "Gelu"})


def tame(op: Asking, found: Range | None) -> Range | None:
    """The assumption, which is not provable: what a network computes from its activations (such as a position bias from a
    product) is finite and far from the lowest number of its type, unless an operand is known to be a mask itself."""
    if op.node.op_type in _BOUNDED and found is not None:
        return replace(found, nan=False)
    if op.node.op_type not in _ACTIVATIONS:
        return found
    operands = [value for value in op.node.inputs if value is not None]
    known = op.values.answers(op.question, operands)
    if any(_may_hide(numbers, op.analysis.fact(value)) for numbers, value in zip(known, operands, strict=True)):
        return None
    return _ACTIVATION


def _may_hide(numbers: Range | None, fact: Fact) -> bool:
    """Whether an operand may hold numbers far from zero. Computed values of unknown range do not, by assumption."""
    if numbers is None or fact.is_constant:
        return fact.is_constant and (
            numbers is None or not numbers.is_finite or max(-numbers.low, numbers.high) > _QUIET
        )
    ends = [end for low, high in numbers.pieces for end in (low, high) if low == high or math.isfinite(end)]
    return any(abs(end) > _QUIET for end in ends)


@dataclass(frozen=True)
class MaskValues:
    """The numbers a mask can hold: those in `deep`, which hide a key, and others from `low` to `high`."""

    deep: frozenset[float]
    low: float
    high: float


def _mask_values(found: Range | None, dtype: ir.DataType | None) -> MaskValues | None:
    if found is None or found.nan or found.high == math.inf:
        return None
    least = _DEEP_IN_FLOAT16 if dtype == ir.DataType.FLOAT16 else DEEP
    deep = frozenset(float(number) for number in found.points if number <= least)
    others = [piece for piece in found.pieces if piece[0] not in deep]
    low, high = min((low for low, _ in others), default=0.0), max((high for _, high in others), default=0.0)
    # Among numbers too many to be distinguished, several may hide keys.
    return None if low <= least else MaskValues(deep, low, high)


def mask_range(value: ir.Value, facts: Facts) -> MaskValues | None:
    """The numbers that `value` can hold; `None` if unknown."""
    return _mask_values(facts.range(value, assuming=tame), facts.dtype(value))


def keeps_a_key(mask: ir.Value, facts: Facts) -> bool:
    """Whether no row of the mask [..., keys] hides all its keys: provable where none hides the first one, as for causal masks,
    or the last one, as where a key that everybody sees is appended."""
    ends = (facts.first_column(mask, assuming=tame), facts.last_column(mask, assuming=tame))
    return any(_keeps(end, facts.dtype(mask)) for end in ends)


def keeps_the_first_key(mask: ir.Value, facts: Facts) -> bool:
    """Whether no row of the mask [..., keys] hides the first key."""
    return _keeps(facts.first_column(mask, assuming=tame), facts.dtype(mask))


def _keeps(column: Range | None, dtype: ir.DataType | None) -> bool:
    """Whether no number of a column of a mask, or no truth value of one, hides a key."""
    if dtype == ir.DataType.BOOL:
        return column is not None and column.low >= 1
    values = _mask_values(column, dtype)
    return values is not None and not values.deep


def acts_alike(found: MaskValues, dtype: ir.DataType | None, kept: bool) -> str | None:
    """Why rows of the mask may give different results in a kernel that adds scores and mask in float32; `None` if not.

    Where every row keeps a key (`kept`), what hides others does not matter: their weights are 0 in any case.
    """
    if len(found.deep) > 1 and not kept:
        return f"the mask hides keys in more than one way: {sorted(found.deep)}"
    finite = frozenset() if kept else found.deep - {-math.inf}
    far = max(abs(found.low), abs(found.high))
    if dtype == ir.DataType.FLOAT or (dtype == ir.DataType.BFLOAT16 and far <= _FADES):
        return None
    if finite or far > _FADES:
        number = min(finite, default=found.low if -found.low == far else found.high)
        return f"scores and mask values such as {number:g} are rounded otherwise in {dtype} than in float32"
    return None
