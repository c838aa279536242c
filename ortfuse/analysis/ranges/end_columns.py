"""The first and the last column (places of the last axis) of the outputs of data-moving operators (see `EndColumn`)."""

from __future__ import annotations

from ortfuse.analysis.ranges.data_movement import padding
from ortfuse.analysis.ranges.queries import Asking, EndColumn, columns
from ortfuse.analysis.ranges.range import Range, one_of, union
from ortfuse.analysis.transfer.op import UnknownError, normalize_axes
from ortfuse.ir.dims import DimLike, is_nonzero
from ortfuse.ir.traits import RESHAPES


def is_last(op: Asking) -> bool:
    """Whether the question is about the last column."""
    return isinstance(op.question, EndColumn) and op.question.last


@columns("Expand", "Tile")
def kept(op: Asking) -> Range | None:
    """That of the operand."""
    return op.range(0)


@columns("Range")
def counted(op: Asking) -> Range | None:
    """The first column is the start."""
    return None if is_last(op) else op.range(0)


@columns(*RESHAPES)
def reshaped(op: Asking) -> Range | None:
    """That of the operand if the last axis keeps its size, or if the last axis has size 1."""
    before, after = op.known_shape(0), op.result.shape
    if not before or before[-1] == 1 or (after and before[-1] == after[-1]):
        return op.range(0)
    return None


@columns("Transpose")
def transposed(op: Asking) -> Range | None:
    """That of the operand if the last axis remains the last one."""
    return op.range(0) if last_stays_last(op) else None


@columns("Gather")
def gathered(op: Asking) -> Range | None:
    """That of the operand if whole rows are gathered."""
    return op.range(0) if gathers_whole_rows(op) else None


@columns("Slice")
def sliced(op: Asking) -> Range | None:
    """That of the operand if the last axis is not sliced; the first one too, if it is sliced forwards from 0."""
    begins = [
        start == 0 and isinstance(step, int) and step > 0 and not is_last(op) for start, step in cuts_of_last_axis(op)
    ]
    return op.range(0) if all(begins) else None


@columns("Concat")
def concatenated(op: Asking) -> Range | None:
    """Along the last axis, that of the operand at this end if it is provably not empty; otherwise those of all operands."""
    end = len(op.node.inputs) - 1 if is_last(op) else 0
    shape = op.known_shape(end)
    decides = op.axis("axis", 1, len(shape)) == len(shape) - 1 and is_nonzero(shape[-1])
    return op.range(end) if decides else union(op.ranges())


@columns("Pad")
def padded(op: Asking) -> Range | None:
    """Along the last axis, the number that is put at this end; where none is, that of the operand, or of other axes' padding."""
    rank, filler = len(op.known_shape(0)), padding(op)
    axes = normalize_axes(op.constants(3), rank) if op.has(3) else tuple(range(rank))
    pads = op.constants(1) if op.version >= 11 else op.attr_ints("pads" if op.version >= 2 else "paddings")
    if pads is None or min(pads, default=0) < 0 or op.attr_str("mode", "constant") != "constant":
        return None
    ends = pads[len(axes) :] if is_last(op) else pads[: len(axes)]
    return filler if dict(zip(axes, ends, strict=True)).get(rank - 1) else union([op.range(0), filler])


@columns("Trilu")
def triangle(op: Asking) -> Range | None:
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


def last_stays_last(op: Asking) -> bool:
    """Whether a Transpose leaves the last axis in place."""
    perm = op.attr_ints("perm")
    return bool(perm) and perm is not None and perm[-1] == len(perm) - 1


def gathers_whole_rows(op: Asking) -> bool:
    """Whether a Gather selects along an axis other than the last."""
    rank = len(op.known_shape(0))
    return op.axis("axis", 0, rank) != rank - 1


def cuts_of_last_axis(op: Asking) -> list[tuple[DimLike | None, DimLike | None]]:
    """Start and step of a Slice on the last axis; an empty list if it does not slice that axis.

    Raises:
        UnknownError: it is unknown which axes are sliced.
    """
    last = len(op.known_shape(0)) - 1
    starts = op.attr_ints("starts") if op.version < 10 else op.integers(1)
    if starts is None:
        raise UnknownError
    axes = op.int_list("axes", 3)
    counted = normalize_axes(range(len(starts)) if axes is None else axes, last + 1)
    steps = op.integers(4) if op.has(4) else (1,) * len(starts)
    if steps is None:
        raise UnknownError
    return [(start, step) for axis, start, step in zip(counted, starts, steps, strict=True) if axis == last]
