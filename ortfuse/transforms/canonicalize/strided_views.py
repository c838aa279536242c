"""Views: the result of data movement on the elements of a tensor, by their offsets in row-major order.

A view is an offset and factors: pairs of a size and a stride, from the slowest to the fastest. Element (i, j, ...) of the view
is element `offset + i * stride + j * stride + ...` of the tensor. A stride of 0 repeats. Two chains of Reshapes, Transposes,
Slices, Gathers of evenly spaced elements and repetitions do the same if they have the same view and the same shape.

    x of [2, 3]         offset 0, factors (6, 1)
    transpose(x)        offset 0, factors (3, 1) (2, 3)
    x[:, ::-1]          offset 2, factors (2, 3) (3, -1)
    x[1:]               offset 3, factors (3, 1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.dims import DimLike, exact_div, product
from ortfuse.ir.operator_registry import Facet

Shape: TypeAlias = tuple[DimLike, ...]
Factor: TypeAlias = tuple[DimLike, DimLike]
"""A size and a stride."""

TO_THE_END = 10**9
"""Ends of Slices from this number on stand for the end of any axis."""


@dataclass(frozen=True)
class View:
    """Elements of a tensor in some order.

    Attributes:
        offset: The place of the first.
        factors: Sizes and strides, as few as possible.
        shape: The shape in which they are.
    """

    offset: DimLike
    factors: tuple[Factor, ...]
    shape: Shape

    @classmethod
    def whole(cls, shape: Shape) -> View:
        """All elements as they are."""
        return cls(0, merged([(product(shape), 1)]), shape)

    def groups(self) -> list[list[Factor]] | None:
        """The factors that make up each axis; `None` if no factor ends where an axis does."""
        rest, groups = list(reversed(self.factors)), []
        for size in self.shape:
            group: list[Factor] = []
            while size != 1:
                if not rest:
                    return None
                whole, stride = rest.pop()
                left = exact_div(size, whole)
                if left is None:
                    inner = exact_div(whole, size)
                    if inner is None:
                        return None
                    rest.append((inner, stride))
                    whole, stride, left = size, stride * inner, 1
                group.append((whole, stride))
                size = left
            groups.append(group)
        return None if rest else groups

    def of(self, groups: Iterable[Sequence[Factor]], shape: Shape, further: DimLike = 0) -> View:
        """A view of this one with these factors for each axis, and so many places further."""
        return View(self.offset + further, merged([factor for group in groups for factor in group]), shape)

    def reshaped(self, shape: Shape) -> View | None:
        """The same elements in another shape; `None` if it does not provably hold as many."""
        return replace(self, shape=shape) if product(shape) == product(self.shape) else None


IndexMap: TypeAlias = Callable[[View, ir.Node, Facts], "View | None"]

INDEX_MAPS: Facet[IndexMap] = Facet(
    "strided_view", "which elements of the first input an output consists of, as a strided view"
)


def merged(factors: Sequence[Factor]) -> tuple[Factor, ...]:
    """Fewer factors of the same effect."""
    found: list[Factor] = []
    for size, stride in factors:
        if size == 1:
            continue
        if found and found[-1][1] == stride * size:
            found[-1] = found[-1][0] * size, stride
        else:
            found.append((size, stride))
    return tuple(found)


def moved(view: View, node: ir.Node, facts: Facts) -> View | None:
    """The view after a node; `None` if the node does not move data, or its effect is no view."""
    after, index_map = facts.shape(node.outputs[0]), INDEX_MAPS.of(node)
    if index_map is None or after is None or 0 in after:
        return None
    found = index_map(view, node, facts)
    return found if found is not None and found.shape == after else None


def _reshaped(view: View, node: ir.Node, facts: Facts) -> View | None:
    after = facts.shape(node.outputs[0])
    return None if after is None else view.reshaped(after)


def _transposed(view: View, groups: list[list[Factor]], node: ir.Node, facts: Facts) -> View | None:
    perm = parameter(node, "perm", facts)
    if not isinstance(perm, tuple | list) or len(perm) != len(groups):
        return None
    return view.of([groups[axis] for axis in perm], tuple(view.shape[axis] for axis in perm))


def _sliced(view: View, groups: list[list[Factor]], node: ir.Node, facts: Facts) -> View | None:
    starts, ends, axes, steps = (parameter(node, name, facts) for name in ("starts", "ends", "axes", "steps"))
    axes = tuple(range(len(starts))) if axes is None and isinstance(starts, tuple | list) else axes
    steps = (1,) * len(axes) if steps is None and isinstance(axes, tuple | list) else steps
    lists = (starts, ends, axes, steps)
    if not all(isinstance(numbers, tuple | list) and len(numbers) == len(axes) for numbers in lists):
        return None
    if not all(isinstance(number, int) for numbers in lists for number in numbers) or len(set(axes)) < len(axes):
        return None
    found: View | None = view
    for start, end, axis, step in zip(*lists, strict=True):
        window = _range(view.shape[axis], start, end, step)
        found = cut(found, axis, *window) if found is not None and window is not None else None
    return found


def _range(size: DimLike, start: int, end: int, step: int) -> tuple[DimLike, DimLike, int] | None:
    """The first element that a Slice takes of an axis, how many, and the step; `None` if that is not known."""
    if isinstance(size, int):
        taken = range(size)[start:end:step] if step else range(0)
        return (taken.start, len(taken), step) if len(taken) else None
    backwards = step == -1 and (start == -1 or start >= TO_THE_END) and end <= -TO_THE_END
    return (size - 1, size, -1) if backwards else None


def cut(view: View, axis: int, start: DimLike, count: DimLike, step: int, *, dropped: bool = False) -> View | None:
    """The elements from `start` on along an axis, so many, `step` apart; without the axis if it is `dropped`."""
    groups = view.groups()
    found = None if groups is None else _cut_of(groups[axis], start, count, step)
    if groups is None or found is None:
        return None
    further, groups[axis] = found
    size = () if dropped else (count,)
    return view.of(groups, (*view.shape[:axis], *size, *view.shape[axis + 1 :]), further)


def _cut_of(group: list[Factor], start: DimLike, count: DimLike, step: int) -> tuple[DimLike, list[Factor]] | None:
    """How far the first element is from that of the axis, and the factors that are left."""
    if not group:
        return (0, []) if start == 0 and count == 1 else None
    (size, stride), rest = group[0], group[1:]
    if not rest:
        return start * stride, [(count, stride * step)]
    inner = product(one for one, _ in rest)
    if count == size * inner and step == 1 and start == 0:
        return 0, group
    if count == size * inner and step == -1 and start == count - 1:
        return sum(((one - 1) * apart for one, apart in group), start=0), [(one, -apart) for one, apart in group]
    if not all(isinstance(number, int) for number in (start, count, inner)):
        return None
    (place, within), last = divmod(start, inner), start + step * (count - 1)  # type: ignore[operator]
    if last // inner == place:  # type: ignore[operator]
        found = _cut_of(rest, within, count, step)
        return None if found is None else (place * stride + found[0], found[1])
    if step == 1 and within == 0 and count % inner == 0:  # type: ignore[operator]
        return place * stride, [(count // inner, stride), *rest]  # type: ignore[operator]
    return None


def _gathered(view: View, groups: list[list[Factor]], node: ir.Node, facts: Facts) -> View | None:
    axis, index = parameter(node, "axis", facts), facts.const(node.inputs[1])
    if index is None or index.ndim > 1 or not index.size or not isinstance(axis, int):
        return None
    size = view.shape[axis]
    if not isinstance(size, int):
        return None
    places = [int(place) % size for place in index.reshape(-1)]
    step = places[1] - places[0] if len(places) > 1 else 1
    if step == 0 or any(np.diff(places) != step):
        return None
    return cut(view, axis, places[0], len(places), step, dropped=index.ndim == 0)


def _expanded(view: View, groups: list[list[Factor]], node: ir.Node, facts: Facts) -> View | None:
    after = facts.shape(node.outputs[0])
    if after is None or len(after) < len(groups):
        return None
    before = (1,) * (len(after) - len(groups)) + view.shape
    found: list[list[Factor]] = [[] for _ in after[len(groups) :]] + groups
    if any(new != old and old != 1 for old, new in zip(before, after, strict=True)):
        return None
    repeated = [[(new, 0)] if new != old else [] for old, new in zip(before, after, strict=True)]
    return view.of([[*new, *old] for new, old in zip(repeated, found, strict=True)], after)


def _tiled(view: View, groups: list[list[Factor]], node: ir.Node, facts: Facts) -> View | None:
    repeats = parameter(node, "repeats", facts)
    if not isinstance(repeats, tuple | list) or len(repeats) != len(groups):
        return None
    if not all(isinstance(count, int) and count > 0 for count in repeats):
        return None
    shape = tuple(size * count for size, count in zip(view.shape, repeats, strict=True))
    return view.of([[(count, 0), *group] for count, group in zip(repeats, groups, strict=True)], shape)


def _by_axes(function: Callable[[View, list[list[Factor]], ir.Node, Facts], View | None]) -> IndexMap:
    """Return the index map of an operator that treats axes, from a function that also takes the factors of each axis."""

    def index_map(view: View, node: ir.Node, facts: Facts) -> View | None:
        groups = view.groups()
        return None if groups is None else function(view, groups, node, facts)

    return index_map


INDEX_MAPS.register("Reshape", "Flatten", "Squeeze", "Unsqueeze")(_reshaped)
INDEX_MAPS.register("Transpose")(_by_axes(_transposed))
INDEX_MAPS.register("Slice")(_by_axes(_sliced))
INDEX_MAPS.register("Gather")(_by_axes(_gathered))
INDEX_MAPS.register("Expand")(_by_axes(_expanded))
INDEX_MAPS.register("Tile")(_by_axes(_tiled))
