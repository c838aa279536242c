"""Plans for maps whose axes are axes of the source: Slice, Gather, Transpose, Squeeze, Unsqueeze and Expand.

Bounds and sizes may be symbols: they are those of the tensor, or computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortfuse.analysis.index_maps import Box, Read
from ortfuse.analysis.index_maps.box import atom_of, has_axes
from ortfuse.analysis.index_maps.prove_inequalities import is_within
from ortfuse.analysis.index_maps.simplify_formulas import simplified
from ortfuse.analysis.transfer.slice_positions import slice_length
from ortfuse.ir.dims import DimLike, is_positive, reshape_target, unit_axes
from ortfuse.ir.dims.polynomial import split_off
from ortfuse.transforms.canonicalize.view_to_movement_chain import BEFORE_FIRST, PAST_LAST
from ortfuse.transforms.index_maps.digits import Shape
from ortfuse.transforms.index_maps.make import Make, Operand, Plan, Supply


@dataclass(frozen=True)
class _Along:
    """The elements taken along an axis of the source: from `start` on, `step` apart, along an axis of the map or one of them."""

    start: DimLike
    step: int
    axis: int | None


def aligned_plan(read: Read, source: Shape, shape: Shape, supply: Supply) -> Plan | None:
    """Return a plan for a map of one source; `None` if its axes are not those of the source."""
    box = Box.of_shape(shape)
    taken = _taken(read, source, shape, box)
    if taken is None:
        return None
    cut = _cut(read.value, taken, source, shape, box, supply)
    if cut is None:
        return None
    plan, now, kept = cut
    return _arranged(plan, now, kept, shape, supply)


def _taken(read: Read, source: Shape, shape: Shape, box: Box) -> list[_Along] | None:
    """Return the elements taken along each axis of the source; `None` if they do not lie along axes of the map."""
    found: list[_Along] = []
    used: set[int] = set()
    for formula, size in zip(read.index, source, strict=True):
        if not is_within(formula, size, box):
            return None
        axis = next((number for number in range(len(shape)) if split_off(formula, atom_of(number))[1] != 0), None)
        start, step = (formula, 1) if axis is None else split_off(formula, atom_of(axis))
        if has_axes(start) or not isinstance(step, int) or axis in used:
            return None
        used |= set() if axis is None else {axis}
        found.append(_Along(start, step, axis))
    return found


_Cut = tuple[Plan, list[DimLike], list["int | None"]]
"""A plan, its shape, and the axis of the map that each of its axes is."""


def _cut(plan: Plan, taken: list[_Along], source: Shape, shape: Shape, box: Box, supply: Supply) -> _Cut | None:
    """Take the elements along all axes."""
    single = [place for place, one in enumerate(taken) if one.axis is None and source[place] != 1]
    partial = [
        place
        for place, one in enumerate(taken)
        if one.axis is not None and (one.start, one.step, shape[one.axis]) != (0, 1, source[place])
    ]
    now, kept = list(source), [one.axis for one in taken]
    if len(single) == 1 and not partial and _is_there(taken[single[0]].start, source[single[0]]):
        place = single[0]
        plan = Make("Gather", (plan, int(taken[place].start)), (("axis", place),))  # type: ignore[arg-type]
        return plan, now[:place] + now[place + 1 :], kept[:place] + kept[place + 1 :]
    places = sorted([*single, *partial])
    if not places:
        return plan, now, kept
    bounds: list[tuple[DimLike, DimLike, int]] = []
    for place in places:
        one = taken[place]
        count = 1 if one.axis is None else shape[one.axis]
        found = _bounds(one, count, source[place], box)
        if found is None:
            return None
        bounds.append(found)
        now[place] = count
    operands = [supply.vector([bound[which] for bound in bounds]) for which in (0, 1)]
    if None in operands:
        return None
    steps = tuple(step for *_, step in bounds)
    starts, ends = (operand for operand in operands if operand is not None)
    inputs: tuple[Operand, ...] = (plan, starts, ends, tuple(places))
    return Make("Slice", inputs if set(steps) == {1} else (*inputs, steps)), now, kept


def _is_there(place: DimLike, size: DimLike) -> bool:
    """Return whether an axis has a place even in runs in which the result has no elements: a Gather fails if it has not."""
    return isinstance(place, int) and is_positive(size - place)


def _bounds(one: _Along, count: DimLike, size: DimLike, box: Box) -> tuple[DimLike, DimLike, int] | None:
    """Start, end and step of a Slice, which takes provably as many elements, whatever the sizes."""
    last = simplified(one.start + one.step * (count - 1), box)
    end = last + 1 if one.step > 0 else last - 1
    starts = dict.fromkeys([_counted(one.start, size), one.start])
    ends = [BEFORE_FIRST] if one.step < 0 and not _is_at_least_zero(end) else dict.fromkeys([_counted(end, size), end])
    if one.step > 1:
        ends = [PAST_LAST, *ends]
    for start in starts:
        for stop in ends:
            if slice_length(size, start, stop, one.step) == count:
                return start, stop, one.step
    return None


def _is_at_least_zero(formula: DimLike) -> bool:
    return isinstance(formula, int) and formula >= 0


def _counted(place: DimLike, size: DimLike) -> DimLike:
    """A place on an axis, counted from the end if that makes it a number."""
    if isinstance(place, int):
        return place
    if place == size:
        return PAST_LAST
    from_end = place - size
    return from_end if isinstance(from_end, int) and from_end < 0 else place


def _arranged(plan: Plan, now: list[DimLike], kept: list[int | None], shape: Shape, supply: Supply) -> Plan | None:
    """Put the axes in order, with those of size 1 that the map has, and repeat what it repeats."""
    order = [axis for axis in kept if axis is not None]
    repeated = [axis for axis in range(len(shape)) if axis not in order and shape[axis] != 1]
    if order != sorted(order):
        plan, now, kept = _turned(plan, now, kept, shape)
    wanted = [1 if axis in repeated else size for axis, size in enumerate(shape)]
    if repeated and _is_broadcast(now, kept, len(shape)):
        wanted = list(now)
    reshaped = _with_units(plan, tuple(now), tuple(wanted), supply)
    if reshaped is None or not repeated:
        return reshaped
    sizes = supply.vector([shape[axis] if axis in repeated else 1 for axis in range(len(shape))])
    if sizes is None:
        sizes = supply.vector(shape)
    return None if sizes is None else Make("Expand", (reshaped, sizes))


def _is_broadcast(now: Sequence[DimLike], kept: Sequence[int | None], rank: int) -> bool:
    """Return whether an Expand alone puts the axes where the map has them: it adds the first ones by itself."""
    before = rank - len(now)
    return before >= 0 and all(
        size == 1 or axis == before + place for place, (size, axis) in enumerate(zip(now, kept, strict=True))
    )


def _turned(plan: Plan, now: list[DimLike], kept: list[int | None], shape: Shape) -> _Cut:
    """Transpose. Axes of size 1 come where the map has such, if it has."""
    free = [axis for axis in range(len(shape)) if axis not in kept]
    ones = [place for place, axis in enumerate(kept) if axis is None]
    places = {axis: place for place, axis in enumerate(kept) if axis is not None}
    places |= dict(zip(free, ones, strict=False))
    perm = [places[axis] for axis in sorted(places)] + ones[len(free) :]
    return (
        Make("Transpose", (plan,), (("perm", tuple(perm)),)),
        [now[place] for place in perm],
        [kept[place] for place in perm],
    )


def _with_units(plan: Plan, now: Shape, wanted: Shape, supply: Supply) -> Plan | None:
    """Insert or drop axes of size 1."""
    if now == wanted:
        return plan
    return reshaped(plan, now, wanted, supply)


def reshaped(plan: Plan, before: Shape, after: Shape, supply: Supply) -> Plan | None:
    """Return a plan for the same elements in another shape; `None` if the shape can neither be written nor computed."""
    if before == after:
        return plan
    inserted, dropped = unit_axes(after, before), unit_axes(before, after)
    if inserted is not None:
        return Make("Unsqueeze", (plan, inserted))
    if dropped is not None:
        return Make("Squeeze", (plan, dropped))
    target = reshape_target(before, after)
    if target is not None:
        return Make("Reshape", (plan, tuple(target)))
    sizes = supply.vector(after)
    return (
        None
        if sizes is None or supply.opset < _RESHAPE_ALLOWS_ZERO
        else Make("Reshape", (plan, sizes), (("allowzero", 1),))
    )


_RESHAPE_ALLOWS_ZERO = 14
"""The opset from which on Reshape has `allowzero`."""
