"""Forward tensors that are put into a sequence and taken out again, if it is known which is which.

    at(sequence(a, b), 1) = b        at(split(x), i) = part i of x        join(sequence(a, b)) = concat(a, b)
    at(split(x), i) = gather(x, i)   at a position that is computed, if the parts have size 1

Transforms: SequenceAt at a constant position and ConcatFromSequence, on sequences made in the same graph by SequenceEmpty,
SequenceConstruct, SequenceInsert, SequenceErase and SplitToSequence. The parts of a SplitToSequence are those of one Split,
or Slices if only some of them are used. Parts of size 1 are elements, wherever they are read: a Loop takes one in each run.

Does not handle: sequences that are computed by a loop or a branch, inputs or outputs; positions in other parts that are
computed, or
do not exist, and joining nothing, which fail when the model runs; parts whose number depends on a size that is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder

MOST_ITEMS = 4096
"""Longer sequences are left alone."""


@dataclass(frozen=True)
class _Part:
    """One of the parts that a SplitToSequence makes."""

    node: ir.Node
    index: int


Item: TypeAlias = ir.Value | _Part
"""An element of a sequence."""


@dataclass(frozen=True)
class _Cut:
    """How a SplitToSequence cuts its input.

    Attributes:
        axis: The axis that is cut.
        sizes: The sizes of the parts.
        is_fitting: Whether they provably add up; where they do not, the node fails.
        drops_axis: Whether the parts, all of size 1, do not have the axis any more.
    """

    axis: int
    sizes: tuple[int, ...]
    is_fitting: bool
    drops_axis: bool


@dataclass(frozen=True)
class EliminateSequences:
    """Forward tensors that are put into a sequence and read at a known position."""

    name: ClassVar[str] = "eliminate_sequences"

    def run(self, context: Context) -> int:
        """Resolve what reads a sequence; returns how many readers were replaced."""
        return sum(_resolve(scope, context) + _take_elements(scope, context) for scope in list(context.scopes()))


def _take_elements(scope: Scope, context: Context) -> int:
    """Take elements of a tensor directly that is split into parts of size 1."""
    found = [node for node in scope.graph if node.op_type == "SequenceAt" and not node.domain]
    return sum(_take_element(node, scope, context) for node in found)


def _take_element(node: ir.Node, scope: Scope, context: Context) -> bool:
    facts, (sequence, position) = context.facts, node.inputs
    split = None if sequence is None else sequence.producer()
    if split is None or split.op_type != "SplitToSequence" or split.domain or facts.rank(position) != 0:
        return False
    source, size = split.inputs[0], split.inputs[1] if len(split.inputs) > 1 else None
    axis, keeps_axis = parameter(split, "axis", facts), parameter(split, "keepdims", facts)
    if source is None or position is None or not isinstance(axis, int) or keeps_axis not in (0, 1):
        return False
    if size is not None and (facts.scalar(size) != 1 or facts.rank(size) != 0):
        return False
    with context.editor.change(
        EliminateSequences.name, nodes=[split, node] if split.graph is node.graph else [node]
    ) as change:
        build = Builder(scope, context.editor, node)
        place = build.unsqueeze(position, 0) if keeps_axis else position
        taken = build.node("Gather", [source, place], {"axis": axis})[0]
        context.editor.replace(node.outputs[0], taken)
        context.editor.remove(node)
    return bool(change)


def _resolve(scope: Scope, context: Context) -> int:
    known = _Known(context.facts)
    makers: list[ir.Node] = []
    readers: dict[ir.Node, tuple[Item, ...]] = {}
    for node in scope.graph:
        if node.domain:
            continue
        if known.follow(node):
            makers.append(node)
        elif (read := known.read(node)) is not None:
            readers[node] = read
    if not readers:
        return 0
    with context.editor.change(EliminateSequences.name, nodes=[*makers, *readers]) as change:
        parts = _Parts(scope, context, known.cuts, (item for read in readers.values() for item in read))
        replaced: dict[ir.Value, ir.Value] = {}
        for node, read in readers.items():
            values = [parts.value(item) if isinstance(item, _Part) else replaced.get(item, item) for item in read]
            old, new = node.outputs[0], values[0] if node.op_type == "SequenceAt" else parts.joined(node, values)
            replaced[old] = new
            context.editor.replace(old, new)
            context.editor.remove(node)
    return len(readers) if change else 0


class _Known:
    """Track the known elements of the sequences of a graph, node by node.

    Attributes:
        cuts: How each SplitToSequence cuts its input.
    """

    def __init__(self, facts: Facts) -> None:
        self.cuts: dict[ir.Node, _Cut] = {}
        self._facts = facts
        self._items: dict[ir.Value, tuple[Item, ...]] = {}

    def follow(self, node: ir.Node) -> bool:
        """Note what the sequence consists of that a node makes; returns whether it makes one, and of what is known."""
        make = _MAKERS.get(node.op_type)
        items = None if make is None else make(self, node)
        if items is None or len(items) > MOST_ITEMS:
            return False
        self._items[node.outputs[0]] = items
        return True

    def read(self, node: ir.Node) -> tuple[Item, ...] | None:
        """The elements that a node takes out of a sequence; `None` if that is not known or it does something else."""
        if node.op_type not in ("SequenceAt", "ConcatFromSequence"):
            return None
        items = self._of(node)
        if node.op_type == "SequenceAt":
            place = None if items is None else self._place(node, 1, len(items))
            return None if items is None or place is None else (items[place],)
        ranks = {self._rank(item) for item in items or ()}
        return items if len(ranks) == 1 and None not in ranks else None

    def _of(self, node: ir.Node) -> tuple[Item, ...] | None:
        value = node.inputs[0]
        return None if value is None else self._items.get(value)

    def _rank(self, item: Item) -> int | None:
        if isinstance(item, ir.Value):
            return self._facts.rank(item)
        rank = self._facts.rank(item.node.inputs[0])
        return None if rank is None else rank - self.cuts[item.node].drops_axis

    def _place(self, node: ir.Node, position: int, length: int) -> int | None:
        """The place of an element that exists, counted from the front."""
        found = self._facts.scalar(node.inputs[position])
        return found % length if isinstance(found, int) and -length <= found < length else None

    def empty(self, node: ir.Node) -> tuple[Item, ...] | None:
        return ()

    def construct(self, node: ir.Node) -> tuple[Item, ...] | None:
        return tuple(value for value in node.inputs if value is not None)

    def insert(self, node: ir.Node) -> tuple[Item, ...] | None:
        items, item = self._of(node), node.inputs[1]
        if items is None or item is None:
            return None
        place: int | None = len(items)
        if len(node.inputs) > 2 and self._facts.scalar(node.inputs[2]) != len(items):
            place = self._place(node, 2, len(items))  # -1 is before the last element
        return None if place is None else (*items[:place], item, *items[place:])

    def erase(self, node: ir.Node) -> tuple[Item, ...] | None:
        items = self._of(node)
        if not items:
            return None
        place = self._place(node, 1, len(items)) if len(node.inputs) > 1 else len(items) - 1
        return None if place is None else items[:place] + items[place + 1 :]

    def split(self, node: ir.Node) -> tuple[Item, ...] | None:
        cut = _cut(node, self._facts)
        if cut is None:
            return None
        self.cuts[node] = cut
        return tuple(_Part(node, index) for index in range(len(cut.sizes)))


_MAKERS: Mapping[str, Callable[[_Known, ir.Node], tuple[Item, ...] | None]] = {
    "SequenceEmpty": _Known.empty,
    "SequenceConstruct": _Known.construct,
    "SequenceInsert": _Known.insert,
    "SequenceErase": _Known.erase,
    "SplitToSequence": _Known.split,
}


def _cut(node: ir.Node, facts: Facts) -> _Cut | None:
    """How a SplitToSequence cuts its input, if the number of the parts is known."""
    shape, axis = facts.shape(node.inputs[0]), parameter(node, "axis", facts)
    keeps_axis = parameter(node, "keepdims", facts)
    if shape is None or not isinstance(axis, int) or not 0 <= axis < len(shape) or not isinstance(keeps_axis, int):
        return None
    size, given = shape[axis], node.inputs[1] if len(node.inputs) > 1 else None
    if given is not None and facts.rank(given) != 0:
        sizes = facts.const(given)
        if sizes is None or sizes.ndim != 1 or sizes.size > MOST_ITEMS or (sizes < 0).any():
            return None
        whole = int(sizes.sum())
        return (
            None if isinstance(size, int) and size != whole else _Cut(axis, tuple(sizes.tolist()), size == whole, False)
        )
    step = 1 if given is None else facts.scalar(given)
    if not isinstance(size, int) or not isinstance(step, int) or step < 1 or size > MOST_ITEMS * step:
        return None
    sizes_of_parts = tuple(min(step, size - start) for start in range(0, size, step))
    if not keeps_axis and any(part != 1 for part in sizes_of_parts):
        return None  # the runtime fails
    return _Cut(axis, sizes_of_parts, True, drops_axis=not keeps_axis)


class _Parts:
    """Makes the parts of each SplitToSequence, where it stands: one Split if all are used, else Slices."""

    def __init__(self, scope: Scope, context: Context, cuts: Mapping[ir.Node, _Cut], wanted: Iterable[Item]) -> None:
        self._scope, self._editor, self._cuts = scope, context.editor, cuts
        self._wanted = {item for item in wanted if isinstance(item, _Part)}
        self._made: dict[_Part, ir.Value] = {}

    def value(self, part: _Part) -> ir.Value:
        """The value that is a part."""
        if part not in self._made:
            cut, source = self._cuts[part.node], part.node.inputs[0]
            parts = [_Part(part.node, index) for index in range(len(cut.sizes))]
            build = Builder(self._scope, self._editor, part.node)
            assert source is not None
            if cut.is_fitting and not self._wanted.issuperset(parts):
                start = sum(cut.sizes[: part.index])
                parts, made = [part], [build.slice(source, cut.axis, start, start + cut.sizes[part.index])]
            else:
                made = [*build.split(source, cut.axis, cut.sizes)]
            if cut.drops_axis:
                made = [build.squeeze(value, cut.axis) for value in made]
            self._made.update(zip(parts, made, strict=True))
        return self._made[part]

    def joined(self, node: ir.Node, values: Sequence[ir.Value]) -> ir.Value:
        """The elements of a sequence joined as a ConcatFromSequence does."""
        axis, stacks = (
            node.attributes[name].as_int() if name in node.attributes else 0 for name in ("axis", "new_axis")
        )
        build = Builder(self._scope, self._editor, node)
        if stacks:
            values = [build.unsqueeze(value, axis) for value in values]
        return build.node("Concat", values, {"axis": axis})[0]
