"""Find the mask of a padded batch, and the nodes that can be computed for its packed tokens alone."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Box, axes
from ortfuse.analysis.ranges.range import Range
from ortfuse.ir.dims import DimLike, symbols
from ortfuse.ir.hidden_tokens import Axes, HiddenTokens
from ortfuse.ir.refusal import Refusal, refuse, words
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE, MOVES, has
from ortfuse.transforms.padding_free.dependence import Dependence, DependsError
from ortfuse.transforms.padding_free.element_ranges import (
    ANY_AXIS,
    Case,
    ElementRange,
    Setting,
    is_one_number,
    mask_ranges,
)
from ortfuse.transforms.padding_free.mixing_operators import MIXING
from ortfuse.transforms.padding_free.row_operators import ATTENTION, Batch, RowNode, RowOperators
from ortfuse.transforms.padding_free.token_marks import Mark, token_of

MOST_COMPUTED = 8
"""The most masks that the model computes itself which are tried."""


@dataclass(frozen=True)
class Candidate:
    """A value that may be the mask.

    Attributes:
        value: The value, of shape [batch, sequence], with any axes of size 1 between these.
        batch: The sizes of the batch.
        shows_zeros: Whether its zeros are visible tokens, and its ones hidden.
        is_added: Whether it is added to scores: low numbers are hidden tokens, and ordinary ones visible.
    """

    value: ir.Value
    batch: Batch
    shows_zeros: bool = False
    is_added: bool = False

    def ranges(self, facts: Facts) -> tuple[Range, Range]:
        """Its numbers at hidden and at visible tokens."""
        return mask_ranges(_dtype(facts, self.value), shows_zeros=self.shows_zeros, is_added=self.is_added)


@dataclass(frozen=True)
class Plan:
    """What can be computed for packed tokens alone.

    Attributes:
        mask: The mask.
        rows: The nodes that are computed for packed tokens alone, in order.
        dependence: The proof that no hidden token reaches a visible one.
    """

    mask: Candidate
    rows: dict[ir.Node, RowNode]
    dependence: Dependence

    def hidden_tokens(self, graph: ir.Graph) -> HiddenTokens:
        """Return which elements of the inputs and outputs of the graph are those of hidden tokens."""
        outputs = {output.name or "": marks for output in graph.outputs if (marks := self.dependence.of(output))}
        return HiddenTokens(
            self.mask.value.name or "",
            self.mask.shows_zeros,
            self.mask.is_added,
            {name: tuple(sorted(map(_axes, marks), key=str)) for name, marks in outputs.items()},
            tuple(value.name or "" for value in graph.inputs if self._holds_anything(value)),
        )

    def _holds_anything(self, value: ir.Value) -> bool:
        """Whether nothing reads hidden tokens of an input of floats."""
        facts, batch = self.dependence.facts, self.mask.batch
        dtype = facts.dtype(value)
        if dtype is None or not dtype.is_floating_point() or value is self.mask.value:
            return False
        waiting = [value]
        while waiting:
            one = waiting.pop()
            if batch.lead(facts.shape(one)) != 2 or one.is_graph_output():
                return False
            for use in one.uses():
                row = self.rows.get(use.node)
                if row is not None and row.roles[use.idx] == "rows":
                    continue
                if row is not None or not has(use.node, ELEMENTWISE | BROADCASTS):
                    return False
                waiting += use.node.outputs
        return True


def _axes(mark: Mark) -> Axes:
    """The axes of the tokens of an output."""
    sequence, position = (_axis(formula) for formula in (mark.sequence, mark.position))
    assert position is not None
    return sequence, position


def _axis(formula: DimLike) -> int | None:
    return None if isinstance(formula, int) else axes(ANY_AXIS).index(formula)


def find_plan(graph: ir.Graph, facts: Facts) -> Plan | Refusal:
    """Return the plan for a graph, or why there is none."""
    nearest = refuse("left_out", None, found="no value of shape [batch, sequence] is a mask of tokens")
    furthest = -1
    for candidate in _candidates(graph, facts):
        rows = _region(graph, facts, candidate)
        if not any(row.is_costly for row in rows.values()):
            continue
        hidden, visible = candidate.ranges(facts)
        packed = frozenset(output for node in rows for output in node.outputs)
        setting = Setting(candidate.value, hidden, visible, packed)
        dependence = Dependence(facts, setting, candidate.batch, rows, MIXING)
        try:
            dependence.follow(graph)
        except DependsError as error:
            if len(dependence.attentions) > furthest:
                furthest, nearest = len(dependence.attentions), error.refusal
            continue
        has_hidden = any(dependence.of(output) for output in graph.outputs)
        if not has_hidden or (dependence.attentions and _says_padding(candidate.value, graph, facts)):
            return Plan(candidate, rows, dependence)
    return nearest


def masks_of_queries(graph: ir.Graph, facts: Facts) -> str:
    """A hint at inputs [..., sequence, sequence], which may hide other keys from each query, so that none is padding; or ""."""
    for value in graph.inputs:
        shape = facts.shape(value) or ()
        if len(shape) > 2 and shape[-1] == shape[-2] and not isinstance(shape[-1], int):
            said = f"{value.name} is {words(shape)}, and may hide other keys from each query"
            return f"; {said}: padding is known of a mask of shape [batch, sequence] or [batch, 1, 1, sequence]"
    return ""


def sizes_apart(graph: ir.Graph, facts: Facts) -> str:
    """A hint at inputs [batch, sequence] whose batches have two names, as exporters give axes that may be broadcast; or ""."""
    shapes = {value: facts.shape(value) or () for value in graph.inputs}
    shaped = [(value, shape) for value, shape in shapes.items() if len(shape) == 2]
    for (one, first), (other, second) in itertools.combinations(shaped, 2):
        are_named = all(len(symbols(dim)) == 1 and str(dim) in symbols(dim) for dim in (first[0], second[0]))
        if first[0] != second[0] and first[1] == second[1] and are_named:
            sizes = f"{one.name} is {words(first)} and {other.name} {words(second)}"
            return f"; {sizes}: if they have as many sequences, declare it with --same {second[0]}={first[0]}"
    return ""


def _says_padding(mask: ir.Value, graph: ir.Graph, facts: Facts) -> bool:
    """Whether a mask is an input or compares elements of one: others may hide keys of tokens whose outputs are wanted.

    A mask of attention that also hides separators, such as `mask & (ids != 3)`, does not say that their outputs are padding.
    """
    waiting, seen, read = [mask], {mask}, set[ir.Value]()
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if value in graph.inputs:
            read.add(value)
        elif node is not None and not facts.is_const(value) and node.op_type != "Range":
            if not has(node, ELEMENTWISE | BROADCASTS) and node.op_type not in _KEEP_TOKENS:
                return False
            fresh = [one for one in node.inputs if one is not None and one not in seen]
            seen.update(fresh)
            waiting += fresh
    return len(read) == 1


_KEEP_TOKENS = frozenset({"Unsqueeze", "Squeeze"})


def _dtype(facts: Facts, value: ir.Value) -> ir.DataType:
    found = facts.dtype(value)
    assert found is not None
    return found


def _candidates(graph: ir.Graph, facts: Facts) -> Iterator[Candidate]:
    """The inputs that may be masks, then truth values that the model computes."""
    computed = [output for node in graph for output in node.outputs if facts.dtype(output) == ir.DataType.BOOL]
    inputs = [value for value in graph.inputs if not _has_indices(value)]
    for value in (*inputs, *computed[:MOST_COMPUTED]):
        shape, dtype = facts.shape(value), facts.dtype(value)
        if shape is None or len(shape) < 2 or shape[0] == shape[-1] or dtype is None or facts.is_const(value):
            continue
        if any(dim != 1 for dim in shape[1:-1]):
            continue
        if not (dtype == ir.DataType.BOOL or dtype.is_integer() or dtype.is_floating_point()):
            continue
        batch = Batch(shape[0], shape[-1])
        yield Candidate(value, batch)
        yield Candidate(value, batch, shows_zeros=True)
        if dtype.is_floating_point():
            yield Candidate(value, batch, is_added=True)


def _has_indices(value: ir.Value) -> bool:
    """Whether the numbers of a value are indices of a table, such as those of words, and not zeros and ones."""
    waiting, seen = [value], {value}
    while waiting:
        for use in waiting.pop().uses():
            if use.node.op_type in _LOOKUPS and use.idx == 1:
                return True
            if use.idx == 0 and (has(use.node, MOVES) or use.node.op_type == "Cast"):
                waiting += [output for output in use.node.outputs if output not in seen]
                seen.update(use.node.outputs)
    return False


_LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})


def _region(graph: ir.Graph, facts: Facts, candidate: Candidate) -> dict[ir.Node, RowNode]:
    """The row-wise nodes from the first costly ones on, and those that read attention between such nodes."""
    operators, rows = RowOperators(facts, candidate.batch), dict[ir.Node, RowNode]()
    for node in graph:
        found = operators.find(node)
        if found is None or candidate.value in node.outputs:
            continue
        reads = (value for value, role in zip(node.inputs, found.roles, strict=False) if role == "rows")
        if found.is_costly or any(value is not None and _is_of_rows(value, rows) for value in reads):
            rows[node] = found
    _leave_out_blanking(rows, facts, candidate)
    return rows


def _is_of_rows(value: ir.Value, rows: Collection[ir.Node]) -> bool:
    """Whether a value is computed by a row-wise node, or by attention whose queries are."""
    node = value.producer()
    if node is None or (node.domain, node.op_type) not in ATTENTION:
        return node in rows
    query = node.inputs[0]
    return query is not None and query.producer() in rows


def _leave_out_blanking(rows: dict[ir.Node, RowNode], facts: Facts, candidate: Candidate) -> None:
    """Leave out nodes that set hidden tokens to one number for others that read all tokens."""
    hidden, visible = candidate.ranges(facts)
    packed = frozenset(output for node in rows for output in node.outputs)
    ask = facts.asking()
    for node in reversed(list(rows)):
        output = node.outputs[0]
        users = [use.node for use in output.uses()]
        if not has(node, ELEMENTWISE | BROADCASTS) or (users and all(user in rows for user in users)):
            continue
        shape = facts.shape(output)
        assert shape is not None
        box = Box.of_shape(shape)
        token = token_of(shape, candidate.batch.lead(shape), candidate.batch.length)
        setting = Setting(candidate.value, hidden, visible, packed - {output})
        found = ask(ElementRange(Case(setting, token, True, box), axes(len(shape))), output)
        if found is not None and is_one_number(found):
            del rows[node]
            packed -= {output}
