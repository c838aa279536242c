"""Operators that keep some elements and fill in others: Pad and Trilu."""

from __future__ import annotations

from ortfuse.analysis.ranges.queries import Asking, columns, is_last, ranges
from ortfuse.analysis.ranges.range import Range, one_of, union
from ortfuse.analysis.transfer.elementwise_shape_functions import same_shape
from ortfuse.analysis.transfer.transfer_function_registry import Op, normalize_axes, transfer
from ortfuse.analysis.transfer.value_fact import UNKNOWN, Fact
from ortfuse.ir.operator_registry import describe


@transfer("Pad")
def pad(op: Op) -> Fact:
    """Add (or with negative numbers remove) elements at both ends of axes."""
    shape = op.known_shape()
    pads = op.attr_ints("pads" if op.version >= 2 else "paddings") if op.version < 11 else op.integers(1)
    axes = tuple(range(len(shape)))
    if op.has(3):
        axes = normalize_axes(op.constants(3), len(shape))
    dims = list(shape)
    for position, axis in enumerate(axes):
        before = None if pads is None else pads[position]
        after = None if pads is None else pads[position + len(axes)]
        dims[axis] = UNKNOWN if before is None or after is None else shape[axis] + before + after
    return Fact(op.dtype(), tuple(dims))


@ranges("Pad")
def pad_range(op: Asking) -> Range | None:
    """Elements of the data and, in constant mode, the padding number."""
    if op.attr_str("mode", "constant") != "constant":
        return op.range(0)
    return union([op.range(0), _padding_range(op)])


def _padding_range(op: Asking) -> Range:
    """The number that a Pad in constant mode puts in (an attribute before opset 11)."""
    if op.version >= 11:
        return op.range(2) if op.has(2) else one_of(0)
    number = op.attribute("value")
    return one_of(0.0 if number is None else float(number))


@columns("Pad")
def pad_column(op: Asking) -> Range | None:
    """Along the last axis, the number that is put at this end; where none is, that of the operand, or of other axes' padding."""
    rank, filler = len(op.known_shape(0)), _padding_range(op)
    axes = normalize_axes(op.constants(3), rank) if op.has(3) else tuple(range(rank))
    pads = op.constants(1) if op.version >= 11 else op.attr_ints("pads" if op.version >= 2 else "paddings")
    if pads is None or min(pads, default=0) < 0 or op.attr_str("mode", "constant") != "constant":
        return None
    ends = pads[len(axes) :] if is_last(op) else pads[: len(axes)]
    return filler if dict(zip(axes, ends, strict=True)).get(rank - 1) else union([op.range(0), filler])


@ranges("Trilu")
def trilu_range(op: Asking) -> Range | None:
    """Elements of the operand, and zeros in the other triangle."""
    return union([op.range(0), one_of(0)])


@columns("Trilu")
def trilu_column(op: Asking) -> Range | None:
    """A lower triangle keeps the whole first column if its diagonal starts there or later; an upper one guarantees nothing.

    Nor does either of the last column.
    """
    if is_last(op):
        return union([op.range(0), one_of(0)])
    diagonal = op.range_or_anything(1) if op.has(1) else one_of(0)
    upper = op.attr_int("upper", 1)
    if upper and diagonal.low >= 1:
        return one_of(0)
    return op.range(0) if not upper and diagonal.low >= 0 else union([op.range(0), one_of(0)])


transfer("Trilu")(same_shape)

describe("CenterCropPad", "Pad", size_operands=(1,))
