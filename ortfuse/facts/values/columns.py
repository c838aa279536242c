"""The first column (index 0 of the last axis) of the outputs of data-moving operators (see `FirstColumn`)."""

from __future__ import annotations

from ortfuse.dims import DimLike, is_nonzero
from ortfuse.facts.transfer.op import UnknownError, normalize_axes
from ortfuse.facts.values.ask import Asking, columns
from ortfuse.facts.values.range import Range, one_of, union
from ortfuse.graph.traits import RESHAPES


@columns("Expand", "Tile", "Range")
def kept(op: Asking) -> Range | None:
    """The first column of the operand; for a Range operator, its start."""
    return op.range(0)


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
    """That of the operand if the last axis is not sliced, or is sliced forwards from 0."""
    begins = [start == 0 and isinstance(step, int) and step > 0 for start, step in cuts_of_last_axis(op)]
    return op.range(0) if all(begins) else None


@columns("Concat")
def concatenated(op: Asking) -> Range | None:
    """Along the last axis, that of the first operand if it is provably not empty; otherwise those of all operands."""
    shape = op.known_shape(0)
    is_first = op.axis("axis", 1, len(shape)) == len(shape) - 1 and is_nonzero(shape[-1])
    return op.range(0) if is_first else union(op.ranges())


@columns("Trilu")
def triangle(op: Asking) -> Range | None:
    """A lower triangle keeps the whole first column if its diagonal starts there or later; an upper one guarantees nothing."""
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
