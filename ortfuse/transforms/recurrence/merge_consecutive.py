"""LSTMs, GRUs and RNNs with the same weights, each of which begins with the state that the one before leaves, are one.

    s = lstm(x, s0), t = lstm(y, s)   =   t = lstm(concat(x, y), s0)

Layers that are called on one step after the other leave such chains. Their hidden states are parts of those of the one operator.

Does not handle: operators of unknown length, with lengths of their own, or of another direction; cell states between two of them
that are used elsewhere; and an input that depends on the state before, as where a network reads what it has written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.linear_form import Forms
from ortfuse.analysis.loop_summary.recurrent_operators_in_body import (
    STATES,
    is_operator,
    operands_of,
    results_of,
    steps_of,
    unreshaped,
)
from ortfuse.analysis.node_parameters import UNKNOWN, attribute_value
from ortfuse.ir.traits import RESHAPES
from ortfuse.ir.walk import Scope, used_values
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder, Rounds
from ortfuse.transforms.recurrence.sequence_operands import Track

_NAME = "recurrent.consecutive"
_Chain = list[ir.Node]


def join_consecutive(scope: Scope, context: Context) -> int:
    """Make one operator of several; returns how many were made."""
    return sum(_join(chain, scope, context) for chain in list(_chains(scope.graph, context.facts)))


def _chains(graph: ir.Graph, facts: Facts) -> Iterator[_Chain]:
    """The chains of at least two operators, none of which depends on another but by its state."""
    chains: list[_Chain] = []
    chain_of: dict[ir.Node, _Chain] = {}
    for node in graph:
        if not is_operator(node) or steps_of(node, facts) is None:
            continue
        before = _before(node, facts)
        chain = None if before is None else chain_of.get(before)
        if before is not None and chain is not None and chain[-1] is before and _continues(before, node, facts):
            chain.append(node)
        else:
            chains.append(chain := [node])
        chain_of[node] = chain
    for chain in chains:
        if len(chain) > 1:
            yield from (part for part in _independent(chain, graph) if len(part) > 1)


def _independent(chain: _Chain, graph: ir.Graph) -> Iterator[_Chain]:
    """The parts of a chain whose inputs do not depend on states within the part."""
    members, part, computed = set(chain), _Chain(), set[ir.Value]()
    for node in graph:
        if node in members:
            if node.inputs[0] in computed:
                yield part
                part, computed = [], set()
            part.append(node)
            computed.update(node.outputs)
        elif part and any(value in computed for value in used_values(node)):
            computed.update(node.outputs)
    yield part


def _before(node: ir.Node, facts: Facts) -> ir.Node | None:
    """The operator that leaves the hidden state that an operator begins with."""
    state = unreshaped(operands_of(node)[STATES])
    before = None if state is None else state.producer()
    if before is None or not is_operator(before) or before.graph is not node.graph:
        return None
    states, final, *_ = results_of(before)
    return before if state is final or (state is states and steps_of(before, facts) == 1) else None


def _continues(before: ir.Node, node: ir.Node, facts: Facts) -> bool:
    """Whether an operator does for later steps what the one before does for earlier ones."""
    mine, others = operands_of(node), operands_of(before)
    shapes = facts.shape(mine[0]), facts.shape(others[0])
    names = {*node.attributes} | {*before.attributes}
    values = [(attribute_value(node, name, facts), attribute_value(before, name, facts)) for name in names]
    if node.op_type != before.op_type or any(one is UNKNOWN or one != other for one, other in values):
        return False
    if any(mine[index] is not others[index] for index in (1, 2, 3, 7)) or shapes[0] is None or shapes[1] is None:
        return False
    if shapes[0][1:] != shapes[1][1:]:
        return False
    return node.op_type != "LSTM" or _is_handed_on(results_of(before)[2], node, STATES + 1)


def _is_handed_on(state: ir.Value | None, node: ir.Node, index: int) -> bool:
    """Whether a state is an initial state of an operator, and nothing else."""
    value = operands_of(node)[index]
    while value is not None and not value.is_graph_output() and len(value.uses()) == 1:
        if value is state:
            return True
        producer = value.producer()
        value = None if producer is None or producer.op_type not in RESHAPES else producer.inputs[0]
    return False


def _join(chain: _Chain, scope: Scope, context: Context) -> bool:
    first, last, facts = chain[0], chain[-1], context.facts
    counts = [steps_of(node, facts) or 0 for node in chain]
    with context.editor.change(_NAME, rule=Rounds(_NAME), nodes=chain) as change:
        build = Builder(scope, context.editor, last)
        sequence = _sequence([node.inputs[0] for node in chain if node.inputs[0] is not None], build, facts)
        results = results_of(last)
        made = build.node(
            last.op_type,
            [sequence, *first.inputs[1:]],
            {name: attribute.value for name, attribute in last.attributes.items()},
            len(results),
        )
        states = build.squeeze(made[0], 1)
        for old, new in zip(results[1:], made[1:], strict=True):
            if old is not None:
                context.editor.replace(old, new)
        for node, count, end, after in zip(chain, counts, accumulate(counts), [*chain[1:], None], strict=True):
            own, final, *_ = results_of(node)
            if own is not None:
                # Behind the axis of the directions, which most users drop, parts that are joined are seen to be neighbours.
                context.editor.replace(own, build.unsqueeze(build.slice(states, 0, end - count, end), 1))
            if after is not None and final is not None and not _is_handed_on(final, after, STATES):
                context.editor.replace(final, build.gather(made[0], 0, end - 1))
        context.editor.sort(scope.graph)
    if change:
        context.log.statistics(_NAME).hits += 1
    return bool(change)


def _sequence(inputs: Sequence[ir.Value], build: Builder, facts: Facts) -> ir.Value:
    """The inputs of all steps, [steps, batch, size]."""
    parts = [part for part in map(Forms(facts).unit_part, inputs) if part is not None]
    if len(parts) == len(inputs) and all(place == 0 for _, place in parts):
        track = Track.of([source for source, _ in parts])
        if track.direction == 1:
            return track.sequence(build, facts, 1)
    return build.concat(inputs, 0)
