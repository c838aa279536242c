"""Prove that no hidden token reaches a visible one: follow what differs between a padded and a packed computation.

A packed value holds the numbers of the model for packed tokens, and copies of them for all others. Each value has the marks
(`token_marks`) of its elements: an element may differ only if one of the tokens that it belongs to is not packed. Values without
marks do not differ. Operators hand marks on, and end them:

    broadcast, move            marks go with the elements
    x * mask, where(mask, x)   the element is the same number for hidden tokens: the mark ends
    softmax, attention         a score is so low for hidden keys that their weight is 0: the mark of the key ends
    x[:, 0], x[b, argmax]      the tokens that are taken are packed, too: the mark ends
    mean over tokens           without a mask, hidden tokens matter: refused
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Box, Read, Select, axes, axis, leaves
from ortfuse.analysis.index_maps.box import has_axes
from ortfuse.analysis.node_parameters import attribute_value, parameter
from ortfuse.analysis.ranges.queries import Question
from ortfuse.analysis.ranges.range import Range
from ortfuse.errors import OrtfuseError
from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.traits import ALONG_AXIS, BROADCASTS, CONTROL_FLOW, ELEMENTWISE, MOVES, REDUCES, SIZES, TRAILING, has
from ortfuse.ir.walk import captured_values
from ortfuse.transforms.padding_free.element_ranges import (
    ANY_AXIS,
    Case,
    ElementRange,
    Lookup,
    Setting,
    broadcast_index,
    is_one_number,
    lookup_of,
)
from ortfuse.transforms.padding_free.row_operators import Batch, RowNode
from ortfuse.transforms.padding_free.token_marks import Mark, formulas_at, token_of

Marks = frozenset[Mark]
NONE: Marks = frozenset()


class DependsError(OrtfuseError):
    """Raised if a hidden token may reach a visible one.

    Attributes:
        refusal: Where and why.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


@dataclass(frozen=True)
class Selection:
    """Tokens that are taken one by one, and have to be packed whatever the mask says.

    Attributes:
        kind: `position`: at one position of each sequence; `positions`: at those in a tensor, of each sequence; `tokens`: those
            whose sequences and positions are the last axis of a tensor; `rows`: at the positions in a tensor, row by row of the
            batch; `flat`: those whose numbers among the tokens of all sequences are in a tensor.
        at: The position, or the tensor.
    """

    kind: str
    at: DimLike | ir.Value


@dataclass
class Dependence:
    """Follow the marks of all values of a graph.

    Attributes:
        facts: What is known about the values.
        setting: The mask, and the values that are packed.
        batch: The sizes of the batch.
        rows: The nodes that are computed for packed tokens alone.
        mixing: The functions that follow the marks of operators that mix tokens.
        marks: The marks of each value that has some.
        ended: The marks that have ended at a value, or at what it is computed from by element: elements of hidden tokens are one
            number there, such as a score that hides a key.
        selections: The tokens that have to be packed, too.
        needs_own_key: Whether a visible token is only known to see itself: tokens that are selected have to be visible then.
        selected: The computed positions at which a token of each sequence is taken.
        attentions: The nodes in which hidden keys are masked out.
        unmasked: Those of them in which each query sees all visible keys of its sequence alike: without hidden keys, they need no
            mask.
    """

    facts: Facts
    setting: Setting
    batch: Batch
    rows: dict[ir.Node, RowNode]
    mixing: Mapping[tuple[str, str], Callable[[Dependence, ir.Node], None]]
    marks: dict[ir.Value, Marks] = field(default_factory=dict)
    ended: dict[ir.Value, Marks] = field(default_factory=dict)
    selections: dict[Selection, None] = field(default_factory=dict)
    needs_own_key: bool = False
    selected: set[Lookup] = field(default_factory=set)
    attentions: list[ir.Node] = field(default_factory=list)
    unmasked: set[ir.Node] = field(default_factory=set)
    _ask: Callable[[Question, ir.Value], Any] = field(init=False)

    def __post_init__(self) -> None:
        self._ask = self.facts.asking()

    def follow(self, graph: ir.Graph) -> None:
        """Follow all nodes of a graph, in topological order.

        Raises:
            DependsError: A hidden token may reach a visible one, or it is not known that it does not.
        """
        for node in graph:
            row = self.rows.get(node)
            if row is not None:
                self._follow_row(row)
            elif self._is_reached(node, self.marks):
                self._follow_other(node)
            elif self._is_reached(node, self.ended):
                self._follow_ended(node)
        for output in graph.outputs:
            for mark in self.marks.get(output, NONE):
                if not self._is_axes(mark):
                    raise mixed(output, f"the {mark} of an element is no position along its axes")

    def _is_axes(self, mark: Mark) -> bool:
        return all(formula in (*axes(ANY_AXIS), 0) for formula in (mark.sequence, mark.position))

    def _is_reached(self, node: ir.Node, marks: Mapping[ir.Value, Marks]) -> bool:
        return any(value in marks for value in node.inputs if value is not None) or (
            node.op_type in CONTROL_FLOW and any(value in marks for value in captured_values(node))
        )

    def of(self, value: ir.Value | None) -> Marks:
        """The marks of a value."""
        return NONE if value is None else self.marks.get(value, NONE)

    def shape(self, value: ir.Value | None, node: ir.Node) -> tuple[DimLike, ...]:
        """The shape of a value.

        Raises:
            DependsError: Its rank is unknown.
        """
        found = self.facts.shape(value)
        if found is None:
            raise mixed(node, "the rank of an operand or a result is not known")
        return found

    def range_at(
        self, value: ir.Value, token: Mark, index: Sequence[DimLike], box: Box, *, is_hidden: bool
    ) -> Range | None:
        """The numbers of an element if a token is hidden, or visible."""
        case = Case(self.setting, token, is_hidden, box)
        found: Range | None = self._ask(ElementRange(case, tuple(index)), value)
        return found

    def set(self, value: ir.Value, marks: Collection[Mark]) -> None:
        """Set the marks of a result, but for those of tokens for which it is one number if they are hidden."""
        left = frozenset(mark for mark in marks if not self._is_blanked(value, mark))
        if left:
            self.marks[value] = left
        if ended := frozenset(marks) - left:
            self.ended[value] = self.ended.get(value, NONE) | ended

    def _is_blanked(self, value: ir.Value, mark: Mark) -> bool:
        shape = self.facts.shape(value)
        if shape is None:
            return False
        box = Box.of_shape(shape)
        index = formulas_at(axes(len(shape)), axes(len(shape)), box)
        found = self.range_at(value, mark, index, box, is_hidden=True)
        return found is not None and is_one_number(found)

    def _follow_row(self, row: RowNode) -> None:
        """Check that a packed node reads nothing that differs for packed tokens."""
        for value, role in zip(row.node.inputs, row.roles, strict=False):
            for mark in self.of(value):
                shape = self.shape(value, row.node)
                own = token_of(shape, self.batch.lead(shape) or 2, self.batch.length)
                if role != "rows" or mark != own:
                    raise mixed(row.node, f"it reads an operand whose element differs with the {mark}")
        for output in row.node.outputs:
            if output.name != "":
                shape = self.shape(output, row.node)
                self.marks[output] = frozenset({token_of(shape, self.batch.lead(shape), self.batch.length)})

    def _follow_other(self, node: ir.Node) -> None:
        if has(node, SIZES):
            return
        mixing = self.mixing.get((node.domain, node.op_type))
        if has(node, ELEMENTWISE | BROADCASTS):
            self._follow_broadcast(node)
        elif mixing is not None:
            mixing(self, node)
        elif self._has_indices_of_tokens(node):
            self._follow_along_indices(node)
        elif has(node, TRAILING):
            self._follow_trailing(node)
        elif has(node, REDUCES):
            self._follow_reduction(node)
        elif has(node, MOVES) or (not node.domain and node.op_type == "Concat"):
            self._follow_movement(node)
        elif has(node, ALONG_AXIS):
            self._follow_along_axis(node)
        else:
            raise mixed(node, "the operator is not known to keep tokens apart")

    def only_data(self, node: ir.Node, count: int = 1) -> None:
        """Check that only the first operands have marks.

        Raises:
            DependsError: Another one has some.
        """
        if any(self.of(value) for value in node.inputs[count:]):
            raise mixed(node, "an operand other than its data is computed from tokens")

    def _follow_broadcast(self, node: ir.Node) -> None:
        for output in node.outputs:
            self.ended[output] = self._broadcast(node, output, self.ended)
            self.set(output, self._broadcast(node, output, self.marks))

    def _broadcast(self, node: ir.Node, output: ir.Value, marks: Mapping[ir.Value, Marks]) -> Marks:
        """The marks of operands that are broadcast to an output."""
        result = self.shape(output, node)
        box, found = Box.of_shape(result), set[Mark]()
        for value in node.inputs:
            own = NONE if value is None else marks.get(value, NONE)
            if not own:
                continue
            index = broadcast_index(axes(len(result)), result, self.shape(value, node))
            if index is None:
                raise mixed(node, "it is not known along which axes an operand is broadcast")
            found |= {mark.at(index, box) for mark in own}
        return frozenset(found)

    def _follow_ended(self, node: ir.Node) -> None:
        """A node that is reached by marks that have ended alone."""
        mixing = self.mixing.get((node.domain, node.op_type)) if node.op_type == "Softmax" else None
        if has(node, ELEMENTWISE | BROADCASTS):
            self._follow_broadcast(node)
        elif mixing is not None:
            mixing(self, node)
        elif has(node, MOVES):
            self._move_ended(node)

    def _move_ended(self, node: ir.Node) -> None:
        """Let marks that have ended go with the elements."""
        for output in node.outputs:
            box = Box.of_shape(self.shape(output, node))
            found = self.facts.index_map(output, self._reached_operands(node))
            reads = [] if found is None else [leaf for leaf in leaves(found.element) if isinstance(leaf, Read)]
            marks = {mark.at(read.index, box) for read in reads for mark in self.ended.get(read.value, NONE)}
            if marks:
                self.ended[output] = frozenset(marks)

    def _follow_trailing(self, node: ir.Node) -> None:
        """A normalisation of all axes from one on."""
        self.only_data(node)
        first = parameter(node, "axis", self.facts)
        rank = len(self.shape(node.inputs[0], node))
        if not isinstance(first, int):
            raise mixed(node, "its axis is not known")
        self.keep(node, range(first, rank))
        for output in node.outputs:
            self.set(output, self.of(node.inputs[0]))

    def keep(self, node: ir.Node, mixed_axes: Collection[int]) -> None:
        """Check that the tokens of the data do not depend on axes along which the operator mixes elements.

        Raises:
            DependsError: One does.
        """
        for mark in self.of(node.inputs[0]):
            if any(mark.mentions(number) for number in mixed_axes):
                raise mixed(node, "it mixes tokens, of which none is masked out")

    def _follow_reduction(self, node: ir.Node) -> None:
        self.only_data(node)
        rank, found = len(self.shape(node.inputs[0], node)), parameter(node, "axes", self.facts)
        if found is not None and not (isinstance(found, tuple) and all(isinstance(one, int) for one in found)):
            raise mixed(node, "its axes are not known")
        reduced = range(rank) if found is None else [int(one) for one in found]
        self.keep(node, reduced)
        self.set(node.outputs[0], self._without_axes(node, reduced, attribute_value(node, "keepdims", self.facts) != 0))

    def _without_axes(self, node: ir.Node, gone: Collection[int], keeps: bool) -> Marks:
        """The marks of the data without some axes, which they do not depend on, or with these at size 1."""
        left = [number for number in range(len(self.shape(node.inputs[0], node))) if keeps or number not in gone]
        box = Box.of_shape(self.shape(node.outputs[0], node))
        index: list[DimLike] = [0] * len(self.shape(node.inputs[0], node))
        for after, before in enumerate(left):
            index[before] = 0 if before in gone else axis(after)
        return frozenset(mark.at(index, box) for mark in self.of(node.inputs[0]))

    def _follow_along_axis(self, node: ir.Node) -> None:
        """An operator that works along one axis."""
        self.only_data(node)
        along = parameter(node, "axis", self.facts)
        if not isinstance(along, int):
            raise mixed(node, "its axis is not known")
        self.keep(node, [along])
        drops = len(self.shape(node.outputs[0], node)) < len(self.shape(node.inputs[0], node))
        for output in node.outputs:
            if output.name != "":
                self.set(output, self._without_axes(node, [along] if drops else [], keeps=not drops))

    def _follow_movement(self, node: ir.Node) -> None:
        """Elements that go elsewhere: their marks go with them, and tokens that are taken one by one are packed."""
        if node.op_type in _LOOKUPS and not self.of(node.inputs[0]):
            self._follow_table(node)
            return
        if node.op_type != "Concat":
            self.only_data(node)
        self._move_ended(node)
        for output in node.outputs:
            result = self.shape(output, node)
            box = Box.of_shape(result)
            found = self.facts.index_map(output, self._reached_operands(node))
            reads = [] if found is None else [leaf for leaf in leaves(found.element) if isinstance(leaf, Read)]
            if found is None or any(read.value is output for read in reads):
                self._follow_lookup(node)
                continue
            marks = {mark.at(read.index, box) for read in reads for mark in self.of(read.value)}
            is_choice = isinstance(found.element, Select)
            self.set(output, {mark for mark in marks if is_choice or not self._is_selected(mark)})

    def _follow_table(self, node: ir.Node) -> None:
        """Elements of a table at indices of tokens: each belongs to the token of its index."""
        indices = self.shape(node.inputs[1], node)
        places: list[DimLike] = [*axes(len(indices))]
        if node.op_type == "Gather":
            along = parameter(node, "axis", self.facts)
            if not isinstance(along, int):
                raise mixed(node, "its axis is not known")
            places = [*axes(along + len(indices))[along:]]
        elif node.op_type == "GatherND":
            places[-1] = 0  # the last axis has the indices of one element
            if any(mark.mentions(len(indices) - 1) for mark in self.of(node.inputs[1])):
                raise mixed(node, "it takes elements at indices of several tokens")
        box = Box.of_shape(self.shape(node.outputs[0], node))
        self.set(node.outputs[0], {mark.at(places, box) for mark in self.of(node.inputs[1])})

    def _has_indices_of_tokens(self, node: ir.Node) -> bool:
        """Whether a node takes elements of tokens from indices of tokens along an axis, or puts any there."""
        is_scatter, is_gather = (
            not node.domain and node.op_type == name for name in ("ScatterElements", "GatherElements")
        )
        is_of_tokens = is_scatter or (is_gather and bool(self.of(node.inputs[0])))
        return is_of_tokens and any(self.of(value) for value in node.inputs[1:])

    def _follow_along_indices(self, node: ir.Node) -> None:
        """Elements that are taken from, or put at, indices of tokens along an axis, such as the experts of each token.

        An element of the result is computed from elements of the operands that differ from it along this axis alone. So it has
        their marks, if the tokens of these elements do not depend on the axis.
        """
        along = parameter(node, "axis", self.facts)
        if not isinstance(along, int):
            raise mixed(node, "its axis is not known")
        is_scatter = node.op_type == "ScatterElements"  # an element of its data stays where it is
        if any(mark.mentions(along) for value in node.inputs[int(is_scatter) :] for mark in self.of(value)):
            raise mixed(
                node,
                "it takes elements of several tokens, or puts them there, at indices that are computed from tokens",
            )
        output = node.outputs[0]
        shape = self.shape(output, node)
        box, index = Box.of_shape(shape), axes(len(shape))
        self.set(output, {mark.at(index, box) for value in node.inputs for mark in self.of(value)})

    def _reached_operands(self, node: ir.Node) -> list[ir.Value]:
        """The operands with marks, or with marks that have ended."""
        return [value for value in node.inputs if value is not None and (value in self.marks or value in self.ended)]

    def _is_selected(self, mark: Mark) -> bool:
        """Whether a mark is of one position in each sequence, which is packed then."""
        if has_axes(mark.position):
            return False
        length = self.batch.length
        behind = mark.position if isinstance(mark.position, int) else mark.position - length
        if not isinstance(behind, int):
            return False
        self.selections[Selection("position", behind)] = None
        return True

    def _follow_lookup(self, node: ir.Node) -> None:
        """Elements at indices that are computed, but not from tokens."""
        data, output = node.inputs[0], node.outputs[0]
        own, (before, after) = self.of(data), (self.shape(data, node), self.shape(output, node))
        box = Box.of_shape(after)
        if node.op_type in ("Gather", "GatherElements"):
            along = parameter(node, "axis", self.facts)
            if not isinstance(along, int):
                raise mixed(node, "its axis is not known")
            count = len(self.shape(node.inputs[1], node)) if node.op_type == "Gather" else 1
            taken = [mark for mark in own if mark.mentions(along)]
            kinds = {self._kind_of_lookup(node, mark, along, before) for mark in taken}
            if None in kinds:
                raise mixed(node, "it takes tokens at computed indices from another axis than that of the positions")
            for kind in kinds:
                self.selections[Selection(str(kind), _present(node.inputs[1]))] = None
            index = [*axes(along), axis(ANY_AXIS), *(axis(number + count) for number in range(along, len(before) - 1))]
            self.set(output, {mark.at(index, box) for mark in own if mark not in taken})
            return
        self._follow_lookup_of_tuples(node)

    def _kind_of_lookup(self, node: ir.Node, mark: Mark, along: int, shape: Sequence[DimLike]) -> str | None:
        """Return the way in which a Gather or GatherElements takes tokens; `None` if that is not known."""
        is_gather = node.op_type == "Gather"
        if along == 1 and mark == token_of(shape, 2, self.batch.length):
            return "positions" if is_gather else "rows"
        is_flat = is_gather and along == 0 and self.batch.lead(shape) == 1
        return "flat" if is_flat and mark == token_of(shape, 1, self.batch.length) else None

    def _follow_lookup_of_tuples(self, node: ir.Node) -> None:
        """Tokens at indices that are tuples of computed numbers."""
        data, length = node.inputs[0], self.batch.length
        own, shape = self.of(data), self.shape(data, node)
        indices = self.shape(node.inputs[1], node) if len(node.inputs) > 1 else ()
        batch = attribute_value(node, "batch_dims", self.facts) if node.op_type == "GatherND" else None
        if node.op_type == "GatherND" and indices and own == {token_of(shape, 2, length)}:
            for kind, pair in (("tokens", (0, 2)), ("rows", (1, 1))):
                if (batch, indices[-1]) == pair:
                    self._select(kind, _present(node.inputs[1]), indices)
                    return
        raise mixed(node, "it takes tokens at computed indices")

    def _select(self, kind: str, value: ir.Value, shape: Sequence[DimLike]) -> None:
        """Note that tokens are taken, and which element of which tensor is the position."""
        self.selections[Selection(kind, value)] = None
        if kind == "rows":
            box, place = Box.of_shape(shape), (*axes(len(shape) - 1), 0)
            source, index = lookup_of(value, self._ask(self.setting.maps, value), place, box)
            if all(isinstance(formula, int) or formula == axis(0) for formula in index):  # one for each sequence
                self.selected.add((source, index))


_LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})


def _present(value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value


def mixed(subject: ir.Node | ir.Value, found: str) -> DependsError:
    """The error that a hidden token may reach a visible one."""
    return DependsError(refuse("mixes_tokens", subject, found=found))
