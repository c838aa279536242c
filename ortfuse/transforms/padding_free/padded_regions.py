"""Padded regions: connected nodes that mix tokens, such as attention, between nodes that run on packed ones.

A region becomes an If: where all tokens are packed, values have the sizes of the model, and nothing is moved.

    if all tokens are packed:   attention(q, k, v, mask)
    else:                       gather(attention(gather(q), gather(k), gather(v), mask))

A region of one attention operator is also cut to the longest sequence of packed tokens: behind it all keys are hidden.

A target may have a kernel of attention that reads packed tokens. Such a region has a third branch:

    if all packed tokens are visible:   attention(q, k, v, places of the tokens, first token of each sequence)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import attribute_value
from ortfuse.ir.dims import DimLike
from ortfuse.ir.traits import CONTROL_FLOW, MICROSOFT
from ortfuse.transforms.padding_free.plan import Plan
from ortfuse.transforms.padding_free.row_operators import ATTENTION


@dataclass(frozen=True)
class PaddedRegion:
    """Nodes that mix tokens.

    Attributes:
        nodes: The nodes, in topological order.
        inputs: The values of packed nodes that they read.
        results: The values that packed nodes read; nothing else outside of the region reads any of its values.
        is_cut: Whether it may be computed for the longest sequence of packed tokens alone.
        why_padded: Why attention of packed tokens does not compute it; empty if it is attention in which visible tokens see all
            visible ones of their sequence, and nothing else.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    results: tuple[ir.Value, ...]
    is_cut: bool = False
    why_padded: str = ""


def padded_regions(graph: ir.Graph, plan: Plan, facts: Facts) -> Iterator[PaddedRegion]:
    """Yield the regions that only packed nodes read from."""
    place = {node: number for number, node in enumerate(graph)}
    for nodes in _connected(graph, plan):
        inside = set(nodes)
        inputs = _distinct(
            value for node in nodes for value in node.inputs if value is not None and value.producer() in plan.rows
        )
        outputs = [output for node in nodes for output in node.outputs]
        results = [value for value in outputs if any(use.node not in inside for use in value.uses())]
        users = {use.node for value in results for use in value.uses()} - inside
        if not inputs or not users <= plan.rows.keys() or any(value.is_graph_output() for value in outputs):
            continue
        if any(node.op_type in CONTROL_FLOW for node in nodes):
            continue
        if not all(_read_as_rows(value, inside, plan) for value in results):
            continue
        if not all(_has_known_rows(value, facts) for value in (*inputs, *results)):
            continue
        if max(place[_producer(value)] for value in inputs) > min(place[user] for user in users):
            continue  # it reads what is computed from its own results
        is_cut = len(nodes) == 1 and _may_be_cut(nodes[0], plan, facts)
        why_padded = _why_padded(nodes, plan, facts) or (
            "" if is_cut else "its mask cannot be cut to the longest sequence"
        )
        yield PaddedRegion(tuple(nodes), inputs, tuple(results), is_cut, why_padded)


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def _distinct(values: Iterable[ir.Value]) -> tuple[ir.Value, ...]:
    return tuple(dict.fromkeys(values))


def _connected(graph: ir.Graph, plan: Plan) -> list[list[ir.Node]]:
    """The nodes that are reached by tokens and not packed, by the regions that they form."""
    marks, rows = plan.dependence.marks, plan.rows
    group: dict[ir.Node, ir.Node] = {}

    def root(node: ir.Node) -> ir.Node:
        while group[node] is not node:
            group[node] = group[group[node]]
            node = group[node]
        return node

    for node in graph:
        if node in rows or not any(value in marks for value in node.inputs if value is not None):
            continue
        group[node] = node
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer in group and value in marks:
                group[root(producer)] = root(node)
    found: dict[ir.Node, list[ir.Node]] = {}
    for node in group:
        found.setdefault(root(node), []).append(node)
    return list(found.values())


def _has_known_rows(value: ir.Value, facts: Facts) -> bool:
    """Whether the sizes behind the axes of tokens are numbers."""
    return all(isinstance(dim, int) for dim in (facts.shape(value) or ())[2:])


def _read_as_rows(value: ir.Value, inside: set[ir.Node], plan: Plan) -> bool:
    """Whether all packed nodes read a row of a value for each token."""
    uses = [use for use in value.uses() if use.node not in inside]
    return all(plan.rows[use.node].roles[use.idx] == "rows" for use in uses)


PACKED = "PackedMultiHeadAttention"
"""The operator of com.microsoft whose operands are packed tokens."""

MASKS: Mapping[tuple[str, str], Mapping[int, tuple[int, ...]]] = {
    ("", "Attention"): {3: (-2, -1)},
    (MICROSOFT, "MultiHeadAttention"): {4: (-1,), 5: (-2, -1)},
}
"""The operands of these that are masks, with the axes along which these may be cut."""


def _may_be_cut(node: ir.Node, plan: Plan, facts: Facts) -> bool:
    operator = (node.domain, node.op_type)
    if operator not in ATTENTION:
        return False
    taken = [node.inputs[number] for number in ATTENTION[operator]]
    if not all(value is not None and value.producer() in plan.rows and facts.rank(value) == 3 for value in taken):
        return False
    masks = [(number, node.inputs[number]) for number in MASKS[operator] if number < len(node.inputs)]
    return all(
        value is None or cut_axes(facts.shape(value), MASKS[operator][number], plan.mask.batch.length) is not None
        for number, value in masks
    )


def _why_padded(nodes: Sequence[ir.Node], plan: Plan, facts: Facts) -> str:
    """Why `PACKED` does not compute what nodes that mix tokens do; empty if it does, where all tokens are visible."""
    node, operators = nodes[0], dict.fromkeys(one.op_type for one in nodes)
    if len(nodes) > 1 or (node.domain, node.op_type) != (MICROSOFT, "MultiHeadAttention"):
        return f"it is {', '.join(operators)}, not one MultiHeadAttention"
    if node not in plan.dependence.unmasked:
        return "its mask or bias says more than which tokens are visible"
    query, key, value = (facts.shape(one) for one in node.inputs[:3]) if len(node.inputs) > 2 else (None, None, None)
    if query is None or key is None or value is None or query != key:
        return "keys do not provably have the shape of queries"
    heads = attribute_value(node, "num_heads", facts)
    sizes = (query[2], value[2])
    if not isinstance(heads, int) or not all(isinstance(size, int) and size % heads == 0 for size in sizes):
        return "the sizes of its heads are not known"
    return ""


def cut_axes(shape: Sequence[DimLike] | None, candidates: Sequence[int], length: DimLike) -> tuple[int, ...] | None:
    """Return the axes of a mask that are as long as the sequences, of some candidates; `None` if that is not known of one."""
    if shape is None:
        return None
    found = []
    for number in candidates:
        if len(shape) + number < 0 or shape[number] == 1:
            continue
        if shape[number] != length:
            return None
        found.append(number)
    return tuple(found)
