"""Compute which positions of an axis a Slice selects, and how many."""

from __future__ import annotations

from ortfuse.analysis.transfer.value_fact import UNKNOWN
from ortfuse.ir.dims import DimLike, ceil_div, is_nonnegative, maximum, minimum, uncut

_TO_THE_END = 10**9
"""Exporters write this number (TensorFlow's) or a larger one (up to INT64_MAX) for an open end; no dimension is that large."""


_OPEN_ENDS = frozenset({2**31 - 1, 2**63 - 1})
"""The end values that the runtime treats as open."""


def positions(dim: int, start: int, end: int, step: int) -> range | None:
    """The positions that Slice takes from an axis of size `dim`; None if the runtime and ONNX disagree.

    Unlike in Python, with a negative step a start before the first position means the first position. The largest integer
    as the end means the end of the axis; with a negative step the runtime then stops before the first position, ONNX at once.
    """
    if not step or (step < 0 and end in _OPEN_ENDS):
        return None
    if not dim:
        return range(0)
    start, end = (index + dim if index < 0 else index for index in (start, end))
    if step > 0:
        return range(min(max(start, 0), dim), min(max(end, 0), dim), step)
    return range(min(max(start, 0), dim - 1), min(max(end, -1), dim), step)


def slice_length(dim: DimLike, start: DimLike | None, end: DimLike | None, step: DimLike | None) -> DimLike:
    """The number of positions that ``start:end:step`` selects from an axis of size `dim`; `UNKNOWN` if not provable."""
    if not isinstance(step, int) or step == 0 or start is None or end is None:
        return UNKNOWN
    if step < 0:
        return _backward_length(dim, start, end, step)
    if isinstance(start, int) and isinstance(end, int) and start >= 0 and (end < 0 or end >= _TO_THE_END):
        # max(0, f)[1:] has max(0, f - 1) elements.
        return ceil_div(maximum(0, uncut(dim) - start + (end if end < 0 else 0)), step)
    first, last = _position(dim, start), _position(dim, end)
    if first is None or last is None:
        return UNKNOWN
    return ceil_div(maximum(0, last - first), step)


def _position(dim: DimLike, index: DimLike) -> DimLike | None:
    """The position meant by an index of a slice, clamped to the axis."""
    if isinstance(index, int) and index >= _TO_THE_END:
        return dim
    if is_nonnegative(index):
        return minimum(index, dim)
    if is_nonnegative(-1 - index):
        return maximum(0, dim + index)
    if is_nonnegative(-index) and is_nonnegative(-dim - index):
        return 0  # as an index of 0 means too
    return None


def _backward_length(dim: DimLike, start: DimLike, end: DimLike, step: int) -> DimLike:
    if not isinstance(start, int) or not isinstance(end, int):
        return UNKNOWN
    if isinstance(dim, int):
        found = positions(dim, start, end, step)
        return UNKNOWN if found is None else len(found)
    if (start == -1 or start >= _TO_THE_END) and end <= -_TO_THE_END:
        return ceil_div(dim, -step)
    return UNKNOWN
