"""Plans: operators that write the elements of an index map, as few as are found.

x[...]                          Reshape -> Slice or Gather -> Transpose -> Expand or Tile -> Reshape   (`view_to_movement_chain`)
x[..., i // 2, j]               Gather at a list of indices
x[...] if i < n else y[...]     Concat of both along the axis; of their digits, then Reshape
x[...] if i < n else 0          Pad
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Box, Element, Fill, IndexMap, Number, Read, Select, axes, axis, leaves
from ortfuse.analysis.index_maps.element_expressions import at, simplest
from ortfuse.ir.dims import DimLike, is_nonnegative
from ortfuse.transforms.canonicalize.view_to_movement_chain import symbolic_chains
from ortfuse.transforms.index_maps.aligned import aligned_plan, reshaped
from ortfuse.transforms.index_maps.digits import Shape, conditions, linear_in_axis, splits, strided_view
from ortfuse.transforms.index_maps.make import Make, Operand, Plan, Supply

MOST_PARTS = 32
"""The most operands of a Concat that a plan has."""

MOST_WOVEN = 4
"""The most pieces of one value that are looked at as one, along digits of axes."""

MOST_LISTED = 256
"""The most indices of a Gather that a plan has."""


def plans(found: IndexMap, facts: Facts, supply: Supply) -> Iterator[Plan]:
    """Yield plans for a map."""
    if 0 in found.shape and isinstance(found.element, Select):
        return
    whole_axes = list(_plans(found, facts, supply))
    yield from whole_axes
    if not whole_axes and _is_of_several(found) and not all(map(linear_in_axis, conditions(found.element))):
        for split in splits(found):
            for plan in _plans(split, facts, supply):
                whole = reshaped(plan, split.shape, found.shape, supply)
                if whole is not None:
                    yield whole


def _is_of_several(found: IndexMap) -> bool:
    """Return whether it may be worthwhile to split axes for a Concat: if most pieces are of values of their own."""
    pieces = sum(1 for _ in leaves(found.element))
    return pieces <= len(found.sources) + 1 if len(found.sources) > 1 else pieces <= MOST_WOVEN


def _plans(found: IndexMap, facts: Facts, supply: Supply) -> Iterator[Plan]:
    element = found.element
    if isinstance(element, Read):
        yield from _of_source(element, found.shape, facts, supply)
    elif isinstance(element, Select):
        padded = _padded(found, facts, supply)
        if padded is not None:
            yield padded
        joined = _joined(found, facts, supply)
        if joined is not None:
            yield joined


def _of_source(read: Read, shape: Shape, facts: Facts, supply: Supply) -> Iterator[Plan]:
    """Chains on one value."""
    source = facts.shape(read.value)
    if source is None or len(source) != len(read.index):
        return
    if shape == source and IndexMap(shape, read).is_identity_of(read.value, source):
        yield read.value
        return
    if 0 in shape:
        empty = _empty(read, source, shape)
        if empty is not None:
            yield empty
        return
    aligned = aligned_plan(read, source, shape, supply)
    if aligned is not None:
        yield aligned
        if _length(aligned) == 1:
            return
    listed = _listed(read, source, shape)
    if listed is not None:
        yield listed
    view = strided_view(read, shape, facts)
    for steps, shapes in symbolic_chains(view, source) if view is not None else ():
        plan: Plan | None = read.value
        for number, (op_type, how) in enumerate(steps):
            plan = None if plan is None else _step(plan, op_type, how, shapes[number], supply)
        if plan is not None:
            yield plan


def _listed(read: Read, source: Shape, shape: Shape) -> Plan | None:
    """A Gather of rows at a list of indices; not along the last axis, where each would be one element."""
    place = list(axes(len(shape)))
    if len(source) != len(shape):
        return None
    moved = [number for number, (one, other) in enumerate(zip(read.index, place, strict=True)) if one != other]
    if len(moved) != 1 or moved[0] + 1 == len(shape):
        return None
    (along,) = moved
    count, size = shape[along], source[along]
    if not isinstance(count, int) or not isinstance(size, int) or count > MOST_LISTED:
        return None
    found = []
    for number in range(count):
        place[along] = number
        index = at(read, place)
        formula = index.index[along] if isinstance(index, Read) else None
        if not isinstance(formula, int) or not 0 <= formula < size:
            return None
        found.append(formula)
    return Make("Gather", (read.value, tuple(found)), (("axis", along),))


def _empty(read: Read, source: Shape, shape: Shape) -> Plan | None:
    """No elements of a value, along the axes of which the result has none."""
    if len(source) != len(shape):
        return None
    cut = tuple(axis for axis, size in enumerate(shape) if size == 0)
    if any(size != before for axis, (size, before) in enumerate(zip(shape, source, strict=True)) if axis not in cut):
        return None
    none = (0,) * len(cut)
    return Make("Slice", (read.value, none, none, cut))


def _step(plan: Plan, op_type: str, how: Any, before: Shape, supply: Supply) -> Plan | None:
    """One more node of a chain of `view_to_movement_chain`; `None` if it needs a size that is not there."""
    if op_type == "Reshape":
        return reshaped(plan, before, tuple(how), supply)
    if op_type == "Transpose":
        return Make("Transpose", (plan,), (("perm", tuple(how)),))
    if op_type == "Gather":
        along, index = how
        return Make("Gather", (plan, index), (("axis", along),)) if isinstance(index, int) else None
    numbers = [supply.vector(one) for one in (how if op_type == "Slice" else [how])]
    operands = [operand for operand in numbers if operand is not None]
    return Make(op_type, (plan, *operands)) if len(operands) == len(numbers) else None


def _shortest(found: IndexMap, facts: Facts, supply: Supply) -> Plan | None:
    return min(plans(found, facts, supply), key=_length, default=None)


def _length(plan: Plan) -> int:
    return len(plan.nodes()) if isinstance(plan, Make) else 0


def _joined(found: IndexMap, facts: Facts, supply: Supply) -> Plan | None:
    """A Concat of pieces along the axis that the outermost condition compares."""
    assert isinstance(found.element, Select)
    linear = linear_in_axis(found.element.condition)
    if linear is None:
        return None
    parts = _parts(found, linear[0])
    parts = None if parts is None else _merged([_without_choice(part) for part in parts], linear[0])
    if parts is None or len(parts) > MOST_PARTS:
        return None
    if len(parts) == 1:
        return None if parts[0] == found else _shortest(parts[0], facts, supply)
    made = [_shortest(part, facts, supply) for part in parts]
    operands = tuple(plan for plan in made if plan is not None)
    return None if len(operands) < len(made) else Make("Concat", operands, (("axis", linear[0]),))


def _parts(found: IndexMap, number: int) -> list[IndexMap] | None:
    """The map in parts along an axis, one after the other; `None` if some part may have a size less than 0."""
    element = found.element
    linear = linear_in_axis(element.condition) if isinstance(element, Select) else None
    if not isinstance(element, Select) or linear is None or linear[0] != number:
        return [found]
    _, sign, rest = linear
    # The first part ends where the formula changes its sign.
    end = rest + 1 if sign < 0 else -rest
    first, last = (element.then, element.otherwise) if sign < 0 else (element.otherwise, element.then)
    size = found.shape[number]
    if not is_nonnegative(end) or not is_nonnegative(size - end):
        return None
    parts: list[IndexMap] = []
    for part, start, count in ((first, 0, end), (last, end, size - end)):
        shape = (*found.shape[:number], count, *found.shape[number + 1 :])
        place = list(axes(len(shape)))
        place[number] = place[number] + start
        moved = IndexMap(shape, simplest(at(part, place), Box.of_shape(shape)))
        inner = _parts(moved, number)
        if inner is None:
            return None
        parts += inner
    return parts


def _without_choice(found: IndexMap) -> IndexMap:
    """A map whose pieces are parts of one along an axis, without the choice between them."""
    linear = linear_in_axis(found.element.condition) if isinstance(found.element, Select) else None
    parts = None if linear is None else _parts(found, linear[0])
    if linear is None or parts is None or len(parts) < 2:
        return found
    whole = _merged([_without_choice(part) for part in parts], linear[0])
    return whole[0] if len(whole) == 1 else found


def _merged(parts: list[IndexMap], number: int) -> list[IndexMap]:
    """The parts with neighbours put together that are one map."""
    found = parts[:1]
    for part in parts[1:]:
        whole = _continued(found[-1], part, number)
        if whole is None:
            found.append(part)
        else:
            found[-1] = whole
    return found


def _continued(first: IndexMap, second: IndexMap, number: int) -> IndexMap | None:
    """The map of which two are parts along an axis; `None` if there is none."""
    one, other = first.element, second.element
    if not isinstance(one, Read) or not isinstance(other, Read) or one.value is not other.value:
        return None
    size = first.shape[number]
    shape = (*first.shape[:number], size + second.shape[number], *first.shape[number + 1 :])
    here, place = axis(number), list(axes(len(shape)))
    if size == second.shape[number] == 1:
        steps = [after - before for before, after in zip(one.index, other.index, strict=True)]
        if not all(isinstance(step, int) for step in steps):
            return None
        index = [before + step * here for before, step in zip(one.index, steps, strict=True)]
        return IndexMap.of(shape, Read(one.value, tuple(index)))
    for formulas, start in ((one, 0), (other, size)) if size != 1 else ((other, size),):
        place[number] = here - start
        whole = IndexMap.of(shape, at(formulas, place))
        place[number] = here
        parts = whole.element, at(whole.element, [*place[:number], here + size, *place[number + 1 :]])
        boxes = Box.of_shape(first.shape), Box.of_shape(second.shape)
        if all(simplest(part, box) == want for part, box, want in zip(parts, boxes, (one, other), strict=True)):
            return whole
    return None


def _padded(found: IndexMap, facts: Facts, supply: Supply) -> Plan | None:
    """A Pad with one number around a map without conditions."""
    element, fill = found.element, _only_fill(found.element)
    if fill is None:
        return None
    before, behind = [0] * len(found.shape), [0] * len(found.shape)
    lows: list[DimLike] = [0] * len(found.shape)
    ends: list[DimLike] = list(found.shape)
    while isinstance(element, Select):
        inverted = element.then == fill
        condition = -element.condition - 1 if inverted else element.condition
        if not inverted and element.otherwise != fill:
            return None
        linear = linear_in_axis(condition)
        if linear is None:
            return None
        number, sign, rest = linear
        if sign > 0:
            lows[number] = -rest
        else:
            ends[number] = rest + 1
        element = element.otherwise if inverted else element.then
    if not isinstance(element, Read):
        return None
    for number, size in enumerate(found.shape):
        first, last = lows[number], size - ends[number]
        if not isinstance(first, int) or not isinstance(last, int) or first < 0 or last < 0:
            return None
        before[number], behind[number] = first, last
    shape = tuple(size - first - last for size, first, last in zip(found.shape, before, behind, strict=True))
    if not all(is_nonnegative(size) for size in shape):
        return None
    place = [here + low for here, low in zip(axes(len(shape)), lows, strict=True)]
    inner = _shortest(IndexMap(shape, simplest(at(element, place), Box.of_shape(shape))), facts, supply)
    number_of_zeros = isinstance(fill, Fill) and not any(fill.content)
    operands: tuple[Operand, ...] = () if number_of_zeros else (fill,) if isinstance(fill, Fill) else ()
    if inner is None or (isinstance(fill, Number) and fill.formula != 0):
        return None
    return Make("Pad", (inner, (*before, *behind), *operands))


def _only_fill(element: Element) -> Fill | Number | None:
    """The one number among the elements of a choice; `None` if there are several or none."""
    found: set[Fill | Number] = set()
    waiting = [element]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Select):
            waiting += [one.then, one.otherwise]
        elif not isinstance(one, Read):
            found.add(one)
    only = found.pop() if len(found) == 1 else None
    return None if isinstance(only, Number) and not isinstance(only.formula, int) else only
