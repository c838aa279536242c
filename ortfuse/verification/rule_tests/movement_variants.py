"""Build rearrangements and slices of the last axis in equivalent forms, for instances of a rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.rewrite.pattern.axis_names import Axes, Axis
from ortfuse.rewrite.pattern.language import Part
from ortfuse.rewrite.pattern.rearrangement import Rearrange
from ortfuse.verification.rule_tests.instance_shapes import Sizes
from ortfuse.verification.rule_tests.spelling_choices import Chooser

FAR = 1 << 62


class InstanceBuilder(Protocol):
    """The builder of an instance (`ortfuse.verification.rule_tests.build_instances.Builder`), as far as is needed here.

    Attributes:
        chooser: What decides between variants.
        opset: The ai.onnx version of the instance.
        sizes: The sizes of named dimensions.
        graph: The graph that is being built.
        splits: The Splits of the last axis so far, by operand and place.
    """

    chooser: Chooser
    opset: int
    sizes: Sizes
    graph: ir.Graph
    splits: dict[tuple[ir.Value, int], ir.Node]

    def constant(self, array: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """Build a constant."""
        ...

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        domain: str = "",
        outputs: int = 1,
    ) -> ir.Node:
        """Build a node at the end of the graph."""
        ...


def rearrangement(build: InstanceBuilder, pattern: Rearrange, operand: ir.Value, label: str) -> ir.Value:
    """Reshape to the elementary axes, Transpose, repetition by Unsqueeze and Expand, and Reshape to the merged ones.

    Unnecessary steps are left out; axes of 1 are added and removed by Unsqueeze and Squeeze or by Reshape.
    """
    value = operand
    before, after = pattern.before, pattern.after
    old, new = list(before.names()), [name for name in after.names() if name not in pattern.repeated]
    ones = _ones(before) != _ones(after)
    merged = any(len(axis.factors) > 1 for axis in (*before.axes, *after.axes))
    if ones and not merged and old == new and not pattern.repeated:
        if not build.chooser.pick(f"ones of {label}", ("Unsqueeze or Squeeze", "Reshape")):
            for axes, op_type in ((before, "Squeeze"), (after, "Unsqueeze")):
                if _ones(axes):
                    value = _with_axes(build, op_type, value, _ones(axes))
            return value
        return _reshaped(build, value, operand, before, before.axes, after.axes)
    if len(before.axes) != len(old) and (old != new or pattern.repeated):
        value = _reshaped(build, value, operand, before, before.axes, [Axis((name,)) for name in old])
    if old != new:
        value = build.node("Transpose", [value], {"perm": [old.index(name) for name in new]}).outputs[0]
    names = list(after.names())
    if pattern.repeated:
        places = [place for place, name in enumerate(names) if name in pattern.repeated]
        value = _with_axes(build, "Unsqueeze", value, places)
        value = build.node(
            "Expand", [value, _computed(build, operand, before, [Axis((name,)) for name in names])]
        ).outputs[0]
    if len(after.axes) != len(names) or (value is operand and merged):
        now = before.axes if value is operand else [Axis((name,)) for name in names]
        value = _reshaped(build, value, operand, before, now, after.axes)
    return value


def _ones(axes: Axes) -> list[int]:
    return [place for place, axis in enumerate(axes.axes) if axis.factors == (1,)]


def _with_axes(build: InstanceBuilder, op_type: str, value: ir.Value, axes: list[int]) -> ir.Value:
    if build.opset < 13:
        return build.node(op_type, [value], {"axes": axes}).outputs[0]
    return build.node(op_type, [value, build.constant(axes)]).outputs[0]


def _size(build: InstanceBuilder, axis: Axis) -> int | str:
    sizes = [factor if isinstance(factor, int) else build.sizes.size(factor) for factor in axis.factors]
    if len(sizes) == 1:
        return sizes[0]
    return math.prod(int(size) for size in sizes)


def _reshaped(
    build: InstanceBuilder,
    value: ir.Value,
    operand: ir.Value,
    before: Axes,
    now: Sequence[Axis],
    wanted: Sequence[Axis],
) -> ir.Value:
    """A Reshape from the axes of `now` to the wanted ones; the target is a constant (with 0s and one -1) if possible."""
    sizes, old = [_size(build, axis) for axis in wanted], [_size(build, axis) for axis in now]
    numbers = [
        size if isinstance(size, int) else 0 if old[place : place + 1] == [size] else -1
        for place, size in enumerate(sizes)
    ]
    target = build.constant(numbers) if numbers.count(-1) < 2 else _computed(build, operand, before, wanted)
    return build.node("Reshape", [value, target]).outputs[0]


def _computed(build: InstanceBuilder, operand: ir.Value, before: Axes, wanted: Sequence[Axis]) -> ir.Value:
    """A Reshape target computed from the shape of the rearranged value, unless all of it are numbers."""
    if all(isinstance(_size(build, axis), int) for axis in wanted):
        return build.constant([_size(build, axis) for axis in wanted])
    shape = build.node("Shape", [operand]).outputs[0]
    known = [_size(build, axis) for axis in before.axes]
    sizes = [_size(build, axis) for axis in wanted]
    parts: list[ir.Value | None] = [
        build.constant([size])
        if isinstance(size, int)
        else build.node("Gather", [shape, build.constant([known.index(size)])]).outputs[0]
        for size in sizes
    ]
    return build.node("Concat", parts, {"axis": 0}).outputs[0]


def part_of(build: InstanceBuilder, pattern: Part, operand: ir.Value) -> ir.Value:
    """A Slice, with an open end given explicitly or not, or an output of a Split into this part and the rest."""
    start, stop = (
        build.sizes.size(bound) if isinstance(bound, str) else bound for bound in (pattern.start, pattern.stop)
    )
    assert isinstance(start, int)
    if pattern.step == 1 and (start == 0) != (stop is None) and build.opset >= 13:
        kind = build.chooser.pick(f"kind of {pattern.inner}", ("Slice", "Split"))
        cut = start or stop
        if kind and isinstance(cut, int):
            return _split(build, operand, cut).outputs[0 if start == 0 else 1]
    bounds: list[Any] = [[start], [FAR if stop is None else stop], [-1]]
    if pattern.step != 1:
        bounds.append([pattern.step])
    return build.node("Slice", [operand, *(build.constant(bound) for bound in bounds)]).outputs[0]


def _split(build: InstanceBuilder, operand: ir.Value, cut: int) -> ir.Node:
    """The Split at `cut`, one node for both parts."""
    known = build.splits.get((operand, cut))
    if known is None:
        shape = Facts(ir.Model(build.graph, ir_version=10)).shape(operand)
        assert shape is not None
        assert isinstance(shape[-1], int)
        sizes = build.constant([cut, shape[-1] - cut])
        known = build.splits[operand, cut] = build.node("Split", [operand, sizes], {"axis": -1}, outputs=2)
    return known
