"""Two LSTMs, GRUs or RNNs that read one sequence in both directions are one operator of both directions.

    concat(lstm(x), lstm(x, direction = reverse))  =  lstm(x, direction = bidirectional)

Their hidden states, or their final states, are joined along the features or along the axis of the directions; axes may be moved
in between. Final states that are used otherwise are parts of those of the one operator.

Does not handle: operators whose results are nowhere joined, or joined backward first; hidden states that are used otherwise too;
operators with different attributes or lengths, and of which one has biases or initial states that the other lacks, or depends
on the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.loop_structure import needed
from ortfuse.analysis.loop_summary.recurrent_operators_in_body import (
    LENGTHS,
    USUAL,
    dropped_axes,
    is_operator,
    operands_of,
    results_of,
)
from ortfuse.analysis.node_parameters import UNKNOWN, attribute_value, parameter
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder, Rounds

_NAME = "fuse_recurrent.both_directions"
_LABELS = ("tdbh", "dbh", "dbh")
"""The axes of the results: time, direction, batch and features."""

_PARAMETERS = {"Sigmoid": 0, "Tanh": 0, "Relu": 0, "HardSigmoid": 1}
"""How many numbers activations take from each of the lists `activation_alpha` and `activation_beta`."""


@dataclass(frozen=True)
class _Use:
    """The use of a result, with its axes in some order, as an operand of a Concat."""

    concat: ir.Node
    index: int
    labels: str


def join_directions(scope: Scope, context: Context) -> int:
    """Make one operator of two; returns how many times."""
    count = 0
    for node in [node for node in scope.graph if is_operator(node)]:
        if node.graph is not None and _direction(node, context.facts) == "forward":
            count += any(_join(node, other, scope, context) for other in _candidates(node, context.facts))
    return count


def _direction(node: ir.Node, facts: Facts) -> Any:
    return attribute_value(node, "direction", facts)


def _candidates(node: ir.Node, facts: Facts) -> list[ir.Node]:
    """The operators that read the same sequence backward."""
    sequence = node.inputs[0]
    found = [] if sequence is None else [use.node for use in sequence.uses() if use.idx == 0]
    return [
        other
        for other in found
        if (other.domain, other.op_type, other.graph) == (node.domain, node.op_type, node.graph)
        and _direction(other, facts) == "reverse"
    ]


def _join(forward: ir.Node, back: ir.Node, scope: Scope, context: Context) -> bool:
    facts = context.facts
    attributes, joins = _attributes(forward, back, facts), _joins(forward, back, facts)
    if attributes is None or not any(joins) or not _are_alike(forward, back, facts):
        return False
    if _depends(forward, back) or _depends(back, forward):
        return False
    last = back if _comes_before(forward, back) else forward
    with context.editor.change(_NAME, rule=Rounds(_NAME), nodes=[forward, back]) as change:
        build = Builder(scope, context.editor, last)
        operands = [
            one if index == LENGTHS or one is None or other is None else build.concat([one, other], 0)
            for index, (one, other) in enumerate(zip(operands_of(forward), operands_of(back), strict=True))
        ]
        while operands[-1] is None:
            operands.pop()
        results = [results_of(forward), results_of(back)]
        made = build.node(forward.op_type, [forward.inputs[0], *operands[1:]], attributes, len(results[0]))
        for number, (labels, new) in enumerate(zip(_LABELS, made, strict=False)):
            for use in joins[number]:
                _replace(use, new, labels, scope, context)
            for place, old in enumerate(() if joins[number] else (results[0][number], results[1][number])):
                if old is not None and _is_used(old):
                    context.editor.replace(old, build.slice(new, 0, place, place + 1))
        context.editor.sort(scope.graph)
    if change:
        context.log.statistics(_NAME).hits += 1
    return bool(change)


def _replace(use: _Use, new: ir.Value, axes: str, scope: Scope, context: Context) -> None:
    """Put a result of both directions in the place of a Concat of those of each."""
    node, build = use.concat, Builder(scope, context.editor, use.concat)
    if "d" in use.labels:
        joined = build.transpose(new, [axes.index(label) for label in use.labels])
    else:
        order = use.labels[:-1] + "dh"
        size = (context.facts.shape(new) or ())[-1]
        assert isinstance(size, int)
        moved = build.transpose(new, [axes.index(label) for label in order])
        joined = build.reshape(moved, [*([0] * (len(order) - 2)), 2 * size])
    operands = [*node.inputs[: use.index], joined, *node.inputs[use.index + 2 :]]
    axis = parameter(node, "axis", context.facts)
    context.editor.replace(node.outputs[0], build.concat([one for one in operands if one is not None], axis))
    context.editor.remove(node)


def _are_alike(forward: ir.Node, back: ir.Node, facts: Facts) -> bool:
    """Whether the operands of two operators can be joined."""
    pairs = list(zip(operands_of(forward), operands_of(back), strict=True))
    lengths = pairs.pop(LENGTHS)
    if lengths[0] is not lengths[1] or any((one is None) != (other is None) for one, other in pairs):
        return False
    shapes = [(facts.shape(one), facts.shape(other)) for one, other in pairs[1:] if one is not None]
    size = (shapes[1][0] or (None,))[-1]
    return isinstance(size, int) and all(one is not None and one == other and one[0] == 1 for one, other in shapes)


def _attributes(forward: ir.Node, back: ir.Node, facts: Facts) -> Mapping[str, Any] | None:
    """The attributes of one operator of both directions; `None` if there is none like both."""
    special = {"direction", "activations", "activation_alpha", "activation_beta"}
    names = ({*forward.attributes} | {*back.attributes}) - special
    values = {name: [attribute_value(node, name, facts) for node in (forward, back)] for name in sorted(names)}
    if any(one is UNKNOWN or one != other for one, other in values.values()) or values.get("layout", [0])[0]:
        return None
    found = {name: one for name, (one, _) in values.items() if name in forward.attributes or name in back.attributes}
    found["direction"] = "bidirectional"
    usual = USUAL[forward.op_type]
    activations = [(attribute_value(node, "activations", facts) or usual)[: len(usual)] for node in (forward, back)]
    if not all(name in _PARAMETERS for one in activations for name in one):
        return None
    found["activations"] = [*activations[0], *activations[1]]
    for name in ("activation_alpha", "activation_beta"):
        numbers = [attribute_value(node, name, facts) or [] for node in (forward, back)]
        wanted = [sum(_PARAMETERS[one] for one in names) for names in activations]
        if numbers != [[], []] and [len(one) for one in numbers] != wanted:
            return None
        if numbers != [[], []]:
            found[name] = [*numbers[0], *numbers[1]]
    return found


def _depends(node: ir.Node, other: ir.Node) -> bool:
    """Whether an operator needs a result of another one that reads the same sequence."""
    operands = [value for value in node.inputs[1:] if value is not None]
    return node.graph is not None and not needed(operands, node.graph).isdisjoint(other.outputs)


def _comes_before(node: ir.Node, other: ir.Node) -> bool:
    graph = node.graph
    return graph is not None and next(one for one in graph if one is node or one is other) is node


def _joins(forward: ir.Node, back: ir.Node, facts: Facts) -> list[list[_Use]]:
    """For each result where those of both operators are joined, if that is all that they are used for."""
    found = []
    for number, (one, other) in enumerate(zip(results_of(forward), results_of(back), strict=True)):
        first, second = (_uses(value, _LABELS[number], facts) for value in (one, other))
        is_joined = bool(first) and second == [_Use(use.concat, use.index + 1, use.labels) for use in first or ()]
        is_joined &= len({use.concat for use in first or ()}) == len(first or ())
        if not is_joined and number == 0 and any(value is not None and _is_used(value) for value in (one, other)):
            return []
        found.append((first or []) if is_joined else [])
    return found


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _uses(value: ir.Value | None, labels: str, facts: Facts) -> list[_Use] | None:
    """The Concats that join a value, with its axes moved; `None` if it is used otherwise too."""
    if value is None or value.is_graph_output():
        return None
    found: list[_Use] = []
    for use in value.uses():
        node = use.node
        if node.domain or node.graph is not value.graph:
            return None
        if node.op_type == "Concat":
            axis = parameter(node, "axis", facts)
            joined = labels[axis] if isinstance(axis, int) and 0 <= axis < len(labels) else ""
            if joined != "d" and ("d" in labels or joined != "h" or axis != len(labels) - 1):
                return None
            found.append(_Use(node, use.idx, labels))
            continue
        moved = _moved(node, labels, facts) if use.idx == 0 else None
        behind = None if moved is None else _uses(node.outputs[0], moved, facts)
        if behind is None:
            return None
        found += behind
    return sorted(found, key=lambda use: (id(use.concat), use.index))


def _moved(node: ir.Node, labels: str, facts: Facts) -> str | None:
    """The axes behind a node that moves them, or drops that of the directions."""
    if node.op_type == "Transpose":
        perm = parameter(node, "perm", facts)
        return "".join(labels[axis] for axis in perm) if isinstance(perm, tuple | list) else None
    is_dropped = "d" in labels and dropped_axes(node, facts) == (labels.index("d"),)
    return labels.replace("d", "") if is_dropped else None
