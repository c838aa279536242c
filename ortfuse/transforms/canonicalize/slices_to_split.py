"""Replace Slices that take a tensor apart along one axis by one Split.

    x[0:2], x[2:4], x[4:9]   =   split(x, [2, 2, 5])          an axis of 9 elements
    unsqueeze(a), unsqueeze(b), ..., of a, b, ... = split(x)   =   split(unsqueeze(x))

The runtime takes the same time for both; a Split is fewer nodes. Rules know halves and parts by either operator, and normal
forms by Slice, so that this comes last. Parts that each get an axis of size 1, as the scales and shifts do that a condition
puts on a normalisation, get it together, and numbers that are added to parts are added before (`added_before`). Gathers of all
elements of an axis become a Split, too, and stacks are reshaped once (`reshape_once`).

If three Slices or more leave no more of the tensor than they take, a Split copies that, too: done for few elements of each of
a batch, as the last block of a diffusion transformer has no use for some of its gates. For targets that split the channels of
images in place, it is done for each Slice of these if Concats read the image besides, which then get its parts.

Does not handle: Slices along several axes or with steps, axes whose size is no number, parts that overlap, other Slices
that leave some of the tensor, and types of which the target splits none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import UNKNOWN, parameter
from ortfuse.ir.walk import Scope
from ortfuse.transforms.canonicalize.hoist_add_above_split import added_before, is_left_over
from ortfuse.transforms.canonicalize.reshape_below_concat_or_above_split import reshaped_together, split_at_once
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder

_IMAGE = 4
"""The rank of images."""

MOST_COPIED = 1 << 10
"""The most elements that nothing reads, for each of a batch, that a Split copies for every node that it saves."""


@dataclass(frozen=True)
class Part:
    """The elements of an axis of this size from `start` to `end` (exclusive), as a Slice takes them."""

    node: ir.Node
    axis: int
    size: int
    start: int
    end: int


@dataclass(frozen=True)
class SlicesToSplit:
    """Replace Slices by a Split, and Unsqueezes of its outputs by one before it."""

    name: ClassVar[str] = "slices_to_split"

    def run(self, context: Context) -> int:
        """Replace Slices, Gathers of one element, Reshapes of parts, and numbers added to parts; returns how many."""
        in_place = context.target.spec.splits_channels_in_place
        replaced = sum(
            _split(first, parts, scope, context)
            for scope in context.scopes()
            for first, parts in list(_apart(scope, context.facts, in_place=in_place))
            if context.target.supports("", "Split", scope.opset, [context.facts.dtype(first.inputs[0])])
        )
        replaced += sum(added_before(node, scope, context) for node, scope in _splits(context))
        for scope in context.scopes():
            replaced += split_at_once(scope, context)
            replaced += sum(
                reshaped_together(node, scope, context) for node in list(scope.graph) if node.op_type == "Concat"
            )
        return replaced + sum(_unsqueezed_together(node, scope, context) for node, scope in _splits(context))


def _splits(context: Context) -> list[tuple[ir.Node, Scope]]:
    """All Splits, and where they are."""
    return [
        (node, scope)
        for scope in context.scopes()
        for node in scope.graph
        if node.op_type == "Split" and not node.domain
    ]


def _unsqueezed_together(split: ir.Node, scope: Scope, context: Context) -> int:
    """Unsqueeze what is split, where nothing else is done to its parts, of which there are several; how many they are."""
    facts, source = context.facts, split.inputs[0]
    shape, axis = facts.shape(source), parameter(split, "axis", facts) or 0
    shapes = [facts.shape(part) for part in split.outputs]
    used = [part for part in split.outputs if part.uses() or part.is_graph_output()]
    if source is None or shape is None or not isinstance(axis, int) or None in shapes or len(used) < 2:
        return 0
    sizes = [size for part in shapes if part is not None and isinstance(size := part[axis], int)]
    found = [_unsqueeze(part, facts) for part in used]
    places = {place for _, place in filter(None, found)}
    if None in found or len(places) != 1 or len(sizes) != len(shapes):
        return 0
    place, nodes = places.pop(), [node for node, _ in filter(None, found)]
    with context.editor.change(SlicesToSplit.name, nodes=[split, *nodes]) as change:
        build = Builder(scope, context.editor, split)
        made = build.split(build.unsqueeze(source, place), axis % len(shape) + (place <= axis % len(shape)), sizes)
        for part, node in zip(used, nodes, strict=True):
            context.editor.replace(node.outputs[0], made[part.index() or 0])
        context.editor.remove(*nodes, split)
    return len(nodes) if change else 0


def _unsqueeze(part: ir.Value, facts: Facts) -> tuple[ir.Node, int] | None:
    """The Unsqueeze that alone reads a part, and the place of the one axis that it adds."""
    users = list(part.uses())
    node = users[0].node if len(users) == 1 else None
    if (
        node is None
        or node.op_type != "Unsqueeze"
        or node.domain
        or node.inputs[0] is not part
        or part.is_graph_output()
    ):
        return None
    axes = parameter(node, "axes", facts)
    known = isinstance(axes, tuple | list) and len(axes) == 1 and isinstance(axes[0], int) and axes[0] >= 0
    return (node, axes[0]) if known and node.graph is part.graph else None


def _apart(scope: Scope, facts: Facts, *, in_place: bool) -> Iterator[tuple[ir.Node, list[Part]]]:
    """Slices that take one tensor apart: the first of them in the graph, and all in the order of their parts.

    Some elements may be left, also of channels of images that Concats read, if these are split `in_place`.
    """
    found: defaultdict[tuple[ir.Value | None, int], list[Part]] = defaultdict(list)
    for node in scope.graph:
        part = part_of(node, facts)
        if part is not None:
            found[node.inputs[0], part.axis].append(part)
    for unordered in found.values():
        parts = sorted(unordered, key=lambda part: part.start)
        apart = all(one.end <= other.start for one, other in pairwise(parts))
        left = parts[0].size - sum(part.end - part.start for part in parts)
        may_leave = not left or _may_copy(parts, left, facts)
        if apart and ((len(parts) > 1 and may_leave) or (in_place and _is_joined_again(parts, facts))):
            yield unordered[0].node, parts


def _is_joined_again(parts: Sequence[Part], facts: Facts) -> bool:
    """Whether Slices take channels of an image, which nothing reads besides but Concats of channels."""
    source, slices = parts[0].node.inputs[0], {part.node for part in parts}
    if parts[0].axis != 1 or source is None or source.is_graph_output() or facts.rank(source) != _IMAGE:
        return False
    others = [use.node for use in source.uses() if use.node not in slices]
    return bool(others) and all(_joins_channels(node, parts[0].node) for node in others)


def _joins_channels(node: ir.Node, beside: ir.Node) -> bool:
    """Whether a node joins the channels of images, in the graph of another one."""
    axis = node.attributes.get_int("axis", 0) if node.op_type == "Concat" and not node.domain else None
    return axis in (1, 1 - _IMAGE) and node.graph is beside.graph


def _may_copy(parts: Sequence[Part], left: int, facts: Facts) -> bool:
    """Whether what Slices leave may be copied: no more than they take, and few elements for each of them and each of a batch."""
    shape = facts.shape(parts[0].node.inputs[0]) or ()
    others = [size for axis, size in enumerate(shape) if axis and axis != parts[0].axis]
    sizes = [size for size in others if isinstance(size, int)]
    if parts[0].axis == 0 or len(sizes) < len(others) or len(parts) < 3:
        return False
    return 2 * left <= parts[0].size and left * math.prod(sizes) <= MOST_COPIED * (len(parts) - 1)


def part_of(node: ir.Node, facts: Facts) -> Part | None:
    """Return the range of a Slice, if it is part of one axis of known size."""
    if node.op_type != "Slice" or node.domain:
        return None
    starts, ends, axes, steps = (parameter(node, name, facts) for name in ("starts", "ends", "axes", "steps"))
    shape = facts.shape(node.inputs[0])
    axes = (0,) if axes is None else axes
    if shape is None or UNKNOWN in (starts, ends, axes, steps) or {len(starts), len(ends), len(axes)} != {1}:
        return None
    (axis,), numbers = axes, (*starts, *ends)
    size = shape[axis] if isinstance(axis, int) and 0 <= axis < len(shape) else None
    if not isinstance(size, int) or not all(isinstance(number, int) for number in numbers) or steps not in (None, (1,)):
        return None
    start, end, _ = slice(*numbers).indices(size)
    return Part(node, axis, size, start, end) if start < end else None


def _join_parts(
    source: ir.Value, parts: Sequence[Part], made: Sequence[ir.Value], scope: Scope, context: Context
) -> None:
    """Have Concats read all parts of an image in its place."""
    slices = {part.node for part in parts}
    for node in dict.fromkeys(use.node for use in source.uses()):
        if node not in slices and _joins_channels(node, parts[0].node):
            operands = [
                one for value in node.inputs if value is not None for one in (made if value is source else [value])
            ]
            joined = Builder(scope, context.editor, node).concat(operands, 1)
            context.editor.replace(node.outputs[0], joined)
            context.editor.remove(node)


def _split(first: ir.Node, parts: Sequence[Part], scope: Scope, context: Context) -> int:
    """Put a Split in the place of these Slices; returns how many they were."""
    source = first.inputs[0]
    assert source is not None
    joins = context.target.spec.splits_channels_in_place and _is_joined_again(parts, context.facts)
    numbers = dict.fromkeys(value for part in parts for value in part.node.inputs[1:] if value is not None)
    with context.editor.change(SlicesToSplit.name, nodes=[part.node for part in parts]) as change:
        build = Builder(scope, context.editor, first)
        bounds = sorted({0, parts[0].size, *(part.start for part in parts), *(part.end for part in parts)})
        made = build.split(source, parts[0].axis, [end - start for start, end in pairwise(bounds)])
        if joins:
            _join_parts(source, parts, made, scope, context)
        for part in parts:
            context.editor.replace(part.node.outputs[0], made[bounds.index(part.start)])
            context.editor.remove(part.node)
        context.editor.drop_initializers(*filter(is_left_over, numbers))  # nothing removes them later
    return len(parts) if change else 0
