"""Replace ScatterND and ScatterElements over a contiguous window by Concat.

scatter(x, indices a, a + 1, ... along one axis, y) = concat(x[:a], y, x[a + n:])        scatter(x, all indices, y) = y
scatter(scatter(x, indices 0, 2, ... along one axis, y), indices 1, 3, ..., z) = y and z interleaved

Rationale: PyTorch's exporters write `x[:, a:b] = y` as a scatter. torch.export moves the axis to the front and back.
TorchScript writes all indices in full. `select_scatter` is a ScatterElements that repeats its index for each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike, at_most
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, computed, op, redundant, var

from .._shared_guards import ints
from ._affine_indices import Rising, rising, rising_constant
from .compose_slice_and_concat import TO_THE_END

LEAST = 0.25
"""The share of x from which on joining is faster where places are constants: 0.6 times as fast for one row of 128, 7 times for
columns that are a fourth."""

x, places, y = var("x"), var("places"), var("y")


@dataclass(frozen=True)
class Window:
    """Places along one axis: `start`, `start + step`, ..., `count` of them."""

    axis: int
    start: DimLike
    count: DimLike
    step: int = 1

    @property
    def end(self) -> DimLike:
        """The first place behind them, if they are next to each other."""
        return self.start + self.count

    def is_whole(self, size: DimLike) -> bool:
        """Whether they are all places of an axis of this size."""
        return self.start == 0 and self.count == size and self.step == 1

    def is_within(self, size: DimLike) -> bool:
        """Whether an axis of this size provably has them."""
        last = self.start + (self.count - 1) * self.step + 1
        return isinstance(self.start, int) and self.start >= 0 and isinstance(last, int) and at_most(last, size)

    def from_the_front(self, size: DimLike) -> Window:
        """The same, counted from the front if the axis has a known size."""
        is_negative = isinstance(self.start, int) and self.start < 0 and isinstance(size, int)
        return replace(self, start=self.start + size) if is_negative else self


def _components(value: ir.Value, depth: int, facts: Facts) -> list[Rising | None]:
    """The places of a ScatterND along each axis, as they rise along those of the places."""
    node = value.producer()
    array = facts.const(value) if facts.is_const(value) else None
    if array is not None:
        return [rising_constant(array[..., axis]) for axis in range(depth)]
    if depth == 1:
        return [_without_last(rising(value, facts))]
    if node is None or node.op_type != "Concat" or node.domain or len(node.inputs) != depth:
        return [None]
    shape, axis = facts.shape(value) or (), node.attributes.get_int("axis", 0)
    parts = [rising(one, facts) for one in node.inputs]
    return [_without_last(one) for one in parts] if axis in (-1, len(shape) - 1) else [None]


def _without_last(found: Rising | None) -> Rising | None:
    return None if found is None else Rising(found.start, found.steps[:-1])


def _by_tuples(node: ir.Node, shape: tuple[DimLike, ...], facts: Facts) -> list[Window] | None:
    """The windows on the axes that a ScatterND has places of; `None` if these are no windows."""
    depth, indices = shape[-1] if shape else 0, node.inputs[1]
    if not isinstance(depth, int) or depth != len(shape) - 1 or indices is None:
        return None
    found = [_window(one, axis, shape[:-1]) for axis, one in enumerate(_components(indices, depth, facts))]
    return None if len(found) < depth or None in found else [one for one in found if one is not None]


def _one_by_one(
    node: ir.Node, dims: tuple[DimLike, ...], shape: tuple[DimLike, ...], facts: Facts
) -> list[Window] | None:
    """The window on the axis of a ScatterElements; `None` if there is none, or not all of the other axes are taken."""
    axis = node.attributes.get_int("axis", 0)
    if not -len(dims) <= axis < len(dims) or len(shape) != len(dims):
        return None
    axis %= len(dims)
    window = _window(rising(node.inputs[1], facts), axis, shape)
    others = all(one == other for at, (one, other) in enumerate(zip(dims, shape, strict=True)) if at != axis)
    return [window] if window is not None and others else None


def _window(found: Rising | None, axis: int, shape: tuple[DimLike, ...]) -> Window | None:
    """Places that rise along an axis, and along no other."""
    if found is None or len(found.steps) != len(shape):
        return None
    if any(step != 0 and dim != 1 for at, (step, dim) in enumerate(zip(found.steps, shape, strict=True)) if at != axis):
        return None
    step = 1 if shape[axis] == 1 else found.steps[axis]
    return Window(axis, found.start, shape[axis], step) if isinstance(step, int) and step > 0 else None


def _assigned(value: ir.Value, facts: Facts) -> Window | None:
    """The window that a ScatterND or ScatterElements assigns to: the one that is not all of its axis.

    The first axis if all is assigned to; `None` if there are several, or any may be beyond the axis.
    """
    node = value.producer()
    if node is None or node.op_type not in ("ScatterND", "ScatterElements"):
        return None
    dims, shape, given = (facts.shape(one) for one in node.inputs[:3])
    if dims is None or shape is None or given is None:
        return None
    one_by_one = node.op_type == "ScatterElements"
    windows = _one_by_one(node, dims, shape, facts) if one_by_one else _by_tuples(node, shape, facts)
    if not windows:
        return None
    windows = [window.from_the_front(dims[window.axis]) for window in windows]
    partial = [window for window in windows if not window.is_whole(dims[window.axis])]
    found = (partial or windows)[0]
    expected = (*dims[: found.axis], found.count, *dims[found.axis + 1 :])
    is_known = len(partial) < 2 and (not partial or found.is_within(dims[found.axis]))
    return found if is_known and given == expected else None


def are_neighbours(match: Match) -> Refusal | None:
    """The places are one part of x: all of it along all axes but one, and places next to each other, within x, along that."""
    found = _assigned(match.root, match.facts)
    if found is not None and found.step == 1:
        return None
    return match.refuse("values_unknown", "places", "all places of a part of x, one next to the other along one axis")


@redundant("it would be right, but copying all of x takes longer than assigning a few rows")
def pays(match: Match) -> Refusal | None:
    """The places are computed, or as many as a part of x that is worth it; or x has been moved for them."""
    found, shape = _assigned(match.root, match.facts), match.shape("x")
    moved = match["x"].producer()
    if found is None or shape is None or not match.facts.is_const(match["places"]):
        return None
    size, count = shape[found.axis], found.count
    if (moved is not None and moved.op_type == "Transpose") or size == count:
        return None
    if isinstance(size, int) and isinstance(count, int) and count >= LEAST * size:
        return None
    return match.refuse("needless", "places", found=f"{count} of {size} places are assigned to")


def _concat_around_window(match: Match) -> Pattern:
    """The parts of x that are left before and behind, and the replacement of the rest."""
    found = _assigned(match.root, match.facts)
    assert found is not None
    start, end, axis = found.start, found.end, found.axis
    before: list[Pattern] = [] if start == 0 else [_slice(0, start, axis)]
    behind: list[Pattern] = [] if end == (match.shape("x") or ())[axis] else [_slice(end, TO_THE_END, axis)]
    made: Pattern = op.Concat(*before, y, *behind, axis=axis) if before or behind else op.Identity(y)
    return made


first_places, first = var("first_places"), var("first")


def are_every_second(match: Match) -> Refusal | None:
    """The places are every second one of x along one axis, and those of the ScatterND before are the others."""
    found = [_assigned(value, match.facts) for value in (match.root, match["before"])]
    outer, inner = found
    size = None if outer is None else (match.shape("x") or ())[outer.axis]
    if outer is not None and inner is not None and size == 2 * outer.count and {outer.start, inner.start} == {0, 1}:
        alike = (outer.axis, outer.count, outer.step) == (inner.axis, inner.count, inner.step)
        if alike and outer.step == 2:
            return None
    return match.refuse("values_unknown", "places", "every second place of x, behind another that takes the others")


def _interleaved(match: Match) -> Pattern:
    """Elements of both in turn, which is a constant Reshape along the last axis alone."""
    outer, rank = _assigned(match.root, match.facts), len(match.shape("x") or ())
    assert outer is not None
    moved = [*(axis for axis in range(rank) if axis != outer.axis), outer.axis]
    pair: list[Pattern] = [first, y] if outer.start == 1 else [y, first]
    if moved != sorted(moved):
        pair = [op.Transpose(one, perm=moved) for one in pair]
    last = computed("last axis", lambda match: ints([rank]))
    target = computed("target", lambda match: ints([*(0,) * (rank - 1), 2 * outer.count]))
    made: Pattern = op.Reshape(op.Concat(*(op.Unsqueeze(one, last) for one in pair), axis=rank), target)
    return op.Transpose(made, perm=[moved.index(axis) for axis in range(rank)]) if moved != sorted(moved) else made


def _slice(start: DimLike, end: DimLike, axis: int) -> Pattern:
    made: Pattern = op.Slice(
        x, *(_int64_vector(name, at) for name, at in (("start", start), ("end", end), ("axis", axis)))
    )
    return made


def _int64_vector(name: str, number: DimLike) -> Pattern:
    return computed(f"{name} {number}", lambda match: ints([number]))


def _is_none(reduction: Any, facts: Facts) -> bool:
    return reduction in (None, "none")


def _tuples(*windows: tuple[int, ...]) -> Any:
    """Places of these windows."""
    return lambda build: build.constant(_grid(windows))


def _grid(windows: Sequence[tuple[int, ...]]) -> Any:
    return np.stack(np.meshgrid(*(np.arange(*one) for one in windows), indexing="ij"), -1)


def _places(build: Any) -> ir.Value:
    """Places of a part of x: a constant, or with the first axis counted as many times as x is long."""
    sizes, counts = build.dims("x"), build.dims("y")
    taken = [(0, size) if size == count else (1, 1 + count) for size, count in zip(sizes, counts, strict=True)]
    if isinstance(sizes[0], int):
        depth = 1 + max((axis for axis, window in enumerate(taken) if window[0]), default=0)
        kind = build.chooser.pick("places", ("counted from the front", "counted from the end"))
        windows = [
            one if kind == 0 else (one[0] - size, one[1] - size)
            for one, size in zip(taken, sizes[:depth], strict=False)
        ]
        return build.constant(_grid(windows))  # type: ignore[no-any-return]
    return _counted(build, taken)


def _every_second(number: int) -> Any:
    """The even or odd places along the last axis with a known size, of three pairs."""

    def make(build: Any) -> ir.Value:
        begin = build.chooser.pick("places that are assigned to first", ("even", "odd")) ^ number
        whole = [(0, size) for size in build.dims("first")[:-2]]
        return build.constant(_grid([*whole, (begin, 6, 2)]))  # type: ignore[no-any-return]

    return make


def _counted(build: Any, taken: Sequence[tuple[int, int]]) -> ir.Value:
    """Places whose first axis is all of that of x, computed from its length."""
    source = next(value for value in build.graph.inputs if value.name == "x")
    zero, one, last = build.constant(np.int64(0)), build.constant(np.int64(1)), build.constant([-1])
    count = build.node("Gather", [build.node("Shape", [source]).outputs[0], zero]).outputs[0]
    column = build.node("Unsqueeze", [build.node("Range", [zero, count, one]).outputs[0], last]).outputs[0]
    if build.chooser.pick("axes with places", ("the first", "both")) == 0 and not taken[1][0]:
        return column  # type: ignore[no-any-return]
    numbers = np.arange(*taken[1])
    counted = build.node("Unsqueeze", [count, build.constant([0])]).outputs[0]
    shape = build.node("Concat", [counted, build.constant([len(numbers)])], {"axis": 0}).outputs[0]
    wide = [build.node("Expand", [part, shape]).outputs[0] for part in (column, build.constant(numbers))]
    deep = [build.node("Unsqueeze", [part, last]).outputs[0] for part in wide]
    return build.node("Concat", deep, {"axis": -1}).outputs[0]  # type: ignore[no-any-return]


def _repeated(build: Any) -> ir.Value:
    """Places along an axis, for each element of x along the others."""
    sizes, counts = build.dims("x"), build.dims("y")
    axis = next((at for at, (one, other) in enumerate(zip(sizes, counts, strict=True)) if one != other), 1)
    first = 0 if sizes[axis] == counts[axis] else build.chooser.pick("first place", ("0", "1")) - 1
    counted = np.arange(first, first + counts[axis]).reshape([-1 if at == axis else 1 for at in range(2)])
    return build.constant(np.broadcast_to(counted, counts).copy())  # type: ignore[no-any-return]


def _scatter_rule(
    name: str,
    formula: str,
    pattern: Pattern,
    replace: Any = _concat_around_window,
    guards: tuple[Guard, ...] = (are_neighbours, pays),
    **test: Any,
) -> Rule:
    return Rule(
        name=f"scatter.{name}",
        formula=formula,
        pattern=pattern,
        replace=replace,
        makes=("Concat", "Slice", "Identity")
        if replace is _concat_around_window
        else ("Transpose", "Reshape", "Concat", "Unsqueeze"),
        guards=guards,
        exactness=Exactness.EXACT,
        source="ONNX operators ScatterND and ScatterElements; PyTorch's slice_scatter and select_scatter",
        test=RuleTest(opset=18, **test),
    )


reduction = attr("reduction", _is_none, "none")
before = op.ScatterND(x, first_places, first, reduction=reduction).named("before")

RULES = [
    _scatter_rule(
        "contiguous_window_to_concat", "ScatterND(x, indices of x[a:b] along one axis, y)",
        op.ScatterND(x, places, y, reduction=reduction),
        shapes=(
            {"x": "5 b", "y": "2 b"}, {"x": "5 b", "y": "5 b"}, {"x": "3 4", "y": "3 2"}, {"x": "b 4", "y": "b 2"},
            {"x": "b 4", "y": "b 4"},
        ),
        inputs={"places": _places}, attributes={"reduction": ["none"]},
        counterexamples={
            "every second place": Variation(inputs={"places": _tuples((0, 4, 2))}),
            "falling": Variation(inputs={"places": _tuples((3, 1, -1))}),
            "parts of two axes": Variation(
                shapes={"x": "3 4", "y": "2 2"}, inputs={"places": _tuples((0, 2), (2, 4))}, shape_set=2
            ),
            "the sum": Variation(attributes={"reduction": "add"}),
        },
    ),
    _scatter_rule(
        "interleaved_to_concat", "ScatterND(ScatterND(x, even indices, y), odd indices, z)",
        op.ScatterND(before, places, y, reduction=reduction), _interleaved, (are_every_second,),
        shapes=({"x": "6 b", "first": "3 b", "y": "3 b"}, {"x": "2 6 b", "first": "2 3 b", "y": "2 3 b"}),
        inputs={"first_places": _every_second(0), "places": _every_second(1)}, attributes={"reduction": ["none"]},
        counterexamples={
            "the same places": Variation(inputs={"places": _every_second(0)}),
            "every third place": Variation(
                shapes={"x": "9 b"}, inputs={"first_places": _tuples((0, 9, 3)), "places": _tuples((1, 9, 3))}
            ),
            "some of the places": Variation(shapes={"x": "8 b"}),
            "the sum": Variation(attributes={"reduction": "add"}),
        },
    ),
    _scatter_rule(
        "elements_of_window_to_concat", "ScatterElements(x, indices of x[a:b] along one axis, y)",
        op.ScatterElements(x, places, y, axis=attr("axis"), reduction=reduction),
        shapes=({"x": "3 4", "y": "3 1"}, {"x": "3 4", "y": "1 4"}, {"x": "3 4", "y": "3 4"}),
        inputs={"places": _repeated},
        attributes=tuple({"axis": axes, "reduction": ["none"]} for axes in ([1, -1], [0, -2], [1])),
        counterexamples={
            "not all of the other axis": Variation(
                shapes={"x": "5 4", "y": "3 1"}, inputs={"places": lambda build: build.constant(np.ones((3, 1), np.int64))}
            ),
            "along another axis": Variation(attributes={"axis": 0}),
        },
    ),
]  # fmt: skip
