"""Reshape once what a Concat joins, or a Split takes apart, instead of each part.

    x[:, 0], x[:, 1], x[:, 2], ...               =   split(reshape(x))          an axis of as many elements
    concat(unsqueeze(a), unsqueeze(b), ...)      =   reshape(concat(a, b, ...))

Elements stay in their order: the axis that is dropped or added stands before another one, along which the parts are next to each
other. Where it does not, a Transpose puts it first, or back from there. Unrolled recurrences read their steps so, and stack their
results. Rules know steps by Gather and stacks by Unsqueeze, so that this comes last.

Does not handle: axes of which no number tells the size, and too few parts to save a node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.dims import DimLike, is_positive, product
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder

NAME = "slices_to_split"

_FEWEST = 3
"""The fewest parts for which a Reshape and a Split, or a Concat and a Reshape, are fewer nodes."""

_SPLIT_IS_TOLD = 18
"""The opset from which on a Split into equal parts is told how many they are."""

_VIEWS = ("Reshape", "Unsqueeze", "Squeeze", "Flatten")


@dataclass(frozen=True)
class _Element:
    """A value that is one element of an axis of another one.

    Attributes:
        value: The value.
        source: The value that it is part of.
        axis: The axis, which the value does not have.
        number: Which element.
        nodes: The nodes that make it, the last of which alone reads what those before it make.
    """

    value: ir.Value
    source: ir.Value
    axis: int
    number: int
    nodes: tuple[ir.Node, ...]


def split_at_once(scope: Scope, context: Context) -> int:
    """Replace nodes that each take one of all elements of an axis by a Reshape and a Split; returns how many."""
    found: defaultdict[tuple[ir.Value, int], dict[int, _Element]] = defaultdict(dict)
    for node in scope.graph:
        one = _element(node, context.facts)
        if one is not None:
            found[one.source, one.axis].setdefault(one.number, one)
    return sum(_split(list(elements.values()), scope, context) for elements in found.values())


def _element(node: ir.Node, facts: Facts) -> _Element | None:
    """The element that a Gather takes of an axis, or a Squeeze of a Split."""
    if node.domain or node.op_type not in ("Gather", "Squeeze"):
        return None
    source, shape = node.inputs[0], facts.shape(node.inputs[0])
    nodes: tuple[ir.Node, ...] = (node,)
    if source is None or shape is None:
        return None
    if node.op_type == "Gather":
        index, axis = facts.ints(node.inputs[1]), parameter(node, "axis", facts)
        number = index.elements[0] if index is not None and not index.shape else None
    else:
        split, axes = source.producer(), parameter(node, "axes", facts)
        if split is None or split.op_type != "Split" or split.domain or not isinstance(axes, tuple) or len(axes) != 1:
            return None
        if any(facts.shape(part) != shape for part in split.outputs) or not _is_read_by_one(source):
            return None
        axis, number, nodes = parameter(split, "axis", facts) or 0, source.index(), (split, node)
        if axes != (axis,) or shape[axis] != 1:
            return None
        source, shape = split.inputs[0], facts.shape(split.inputs[0])
    if source is None or not shape or not isinstance(axis, int) or not isinstance(number, int):
        return None
    size = shape[axis]
    if not isinstance(size, int) or not -size <= number < size:
        return None
    return _Element(node.outputs[0], source, axis % len(shape), number % size, nodes)


def _split(elements: Sequence[_Element], scope: Scope, context: Context) -> int:
    """Take elements apart at once, if they are all of the axis, and if that saves a node; returns how many they are."""
    facts, source, axis = context.facts, elements[0].source, elements[0].axis
    shape, count = facts.shape(source) or (), len(elements)
    nodes = list(dict.fromkeys(node for one in elements for node in one.nodes))
    if shape[axis] != count or not context.target.supports("", "Split", scope.opset, [facts.dtype(source)]):
        return 0
    turned = (axis, *(other for other in range(len(shape)) if other != axis))
    made: list[tuple[tuple[int, ...], int]] = [(tuple(range(len(shape))), axis), (turned, 0)]
    for perm, first in made[:1] if axis == 0 else made:
        moved = [shape[other] for other in perm]
        sizes = _reshape_to([*moved[:first], product(moved[first : first + 2]), *moved[first + 2 :]], moved, first)
        added = 2 if perm != turned or axis == 0 else 3
        if first + 1 == len(moved) or sizes is None or len(nodes) <= added:
            continue
        with context.editor.change(NAME, nodes=nodes) as change:
            build = Builder(scope, context.editor, nodes[0])
            parts = _equal_parts(
                build, build.reshape(build.transpose(source, perm), sizes), first, moved[first + 1], count
            )
            for one in elements:
                context.editor.replace(one.value, parts[one.number])
            context.editor.remove(*reversed(nodes))
        return count if change else 0
    return 0


def _equal_parts(build: Builder, value: ir.Value, axis: int, size: DimLike, count: int) -> Sequence[ir.Value]:
    if isinstance(size, int):
        return build.split(value, axis, [size] * count)
    told = {"num_outputs": count} if build.opset >= _SPLIT_IS_TOLD else {}
    return build.node("Split", [value], {"axis": axis, **told}, count)


def reshaped_together(node: ir.Node, scope: Scope, context: Context) -> int:
    """Reshape what a Concat joins behind it, instead of each operand; returns how many were reshaped."""
    facts = context.facts
    shape, axis = facts.shape(node.outputs[0]), parameter(node, "axis", facts)
    parts = [part for value in node.inputs if (part := _reshaped(value, facts)) is not None]
    if shape is None or not isinstance(axis, int) or len(parts) < max(_FEWEST, len(node.inputs)):
        return 0
    axis %= len(shape)
    shapes = [facts.shape(part) or () for part in parts]
    joined = _joined_along(shapes, shape[:axis])
    moved, perm = list(shape), list(range(len(shape)))
    if joined is None:
        # Each is one element of a new axis, which is made as the first one.
        if any(one != (*shape[:axis], *shape[axis + 1 :]) for one in shapes) or shape[axis] != len(parts):
            return 0
        joined, moved = 0, [shape[axis], *shapes[0]]
        perm = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
    sizes = _reshape_to(moved, shapes[0], min(joined, axis)) if shapes[0] else None
    if sizes is None:
        return 0
    views = list(dict.fromkeys(maker for value in node.inputs if value and (maker := value.producer()) is not None))
    with context.editor.change(NAME, nodes=[node, *views]) as change:
        build = Builder(scope, context.editor, node)
        made = build.transpose(build.reshape(build.concat(parts, joined), sizes), perm)
        context.editor.replace(node.outputs[0], made)
        context.editor.remove(node, *views)
    return len(views) if change else 0


def _reshaped(value: ir.Value | None, facts: Facts) -> ir.Value | None:
    """The value that a node only gives another shape, for this use alone; `None` if there is none."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.domain or node.op_type not in _VIEWS:
        return None
    return node.inputs[0] if _is_read_by_one(value) and facts.shape(node.inputs[0]) else None


def _is_read_by_one(value: ir.Value) -> bool:
    return len({use.node for use in value.uses()}) == 1 and not value.is_graph_output()


def _joined_along(shapes: Sequence[Sequence[DimLike]], before: Sequence[DimLike]) -> int | None:
    """The axis along which values are joined as others are that have their elements in the same order.

    Args:
        shapes: The shapes of the values.
        before: The sizes of the others before the axis along which they are joined.
    """
    for axis in range(len(shapes[0])):
        others = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
        if len(others) == 1 and product(shapes[0][:axis]) == product(before):
            return axis
    return None


def _reshape_to(wanted: Sequence[DimLike], shape: Sequence[DimLike], kept: int) -> list[int] | None:
    """The sizes that a Reshape is given; `None` if numbers do not tell them.

    Args:
        wanted: The sizes of the result.
        shape: The sizes of what is reshaped.
        kept: So many axes at the front are not joined or taken apart.
    """
    same = [size == before for size, before in zip(wanted[:kept], shape[:kept], strict=True)]
    told = [isinstance(size, int) or (number < kept and same[number]) for number, size in enumerate(wanted)]
    left = [size for size, is_told in zip(wanted, told, strict=True) if is_told]
    if 0 in wanted or len(left) + 1 < len(wanted) or (len(left) < len(wanted) and not all(map(is_positive, left))):
        return None
    return [size if isinstance(size, int) else 0 if is_told else -1 for size, is_told in zip(wanted, told, strict=True)]
