"""Match the further roots of a pattern among the users of values that they share with the first.

The search is bounded: of the users of a shared value, no more than `MOST_USERS` are looked at, and no more than `MOST_TRIED`
next to the first root are tried, so that the work at all of many siblings grows with their number alone. Roots that are the same
but for their names are taken in the order of the users: otherwise every order of them would be a site.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal, Subject, refuse, words
from ortfuse.ir.walk import used_values
from ortfuse.rewrite.pattern.backtracking_machine import Goals, Machine
from ortfuse.rewrite.pattern.pattern_properties import op_depths
from ortfuse.rewrite.pattern.siblings import Siblings

MOST_USERS = 1024
"""The most nodes computed from a shared value that are looked at."""

MOST_TRIED = 32
"""The most nodes that are tried as one of the further roots."""

_MOST_NODES = 10_000
"""The most nodes visited to see whether one root depends on another."""


class Sibling:
    """The goal to find a further root, by its number."""

    __slots__ = ("number", "pattern")

    def __init__(self, pattern: Siblings, number: int) -> None:
        self.pattern, self.number = pattern, number


def match_siblings(m: Machine, pattern: Siblings, value: ir.Value, rest: Goals) -> Goals:
    """Match the first root, then look for the others."""
    m.put(m.roots, 0, value)
    goals = rest
    for number in reversed(range(1, len(pattern.roots))):
        goals = (Sibling(pattern, number), value, goals)
    return (pattern.roots[0], value, goals)


def match_sibling(m: Machine, state: Sibling, value: ir.Value, rest: Goals) -> Goals:
    """Try each node that may be at a further root."""
    return m.choose(_alternatives(m, state, rest))


def _alternatives(m: Machine, state: Sibling, rest: Goals) -> Iterator[Goals]:
    root = state.pattern.roots[state.number]
    anchor = _anchor(m, state)
    found = False
    for node in itertools.islice(_candidates(m, state, anchor), MOST_TRIED):
        for output in node.outputs:
            if output.uses() or output.is_graph_output():
                found = True
                m.put(m.roots, state.number, output)
                yield (root, output, rest)
    if not found:
        where = "beside" if state.pattern.twins[state.number] is None else "after"
        needed = f"{' or '.join(sorted(root.heads or ()))} {where} that"
        name = next((name for name, value in m.bindings.items() if value is anchor), "")
        before = words(m.root.producer())
        m.fail(lambda: refuse("not_continued", Subject.of(anchor, name), found=before, needed=needed))


def _anchor(m: Machine, state: Sibling) -> ir.Value:
    """The shared value with the fewest users."""
    values: list[ir.Value] = [m.bindings[name] for name in state.pattern.shared[state.number]]
    return min(values, key=lambda value: len(value.uses()))


def _candidates(m: Machine, state: Sibling, anchor: ir.Value) -> Iterator[ir.Node]:
    """The nodes that may be at a further root, beginning after the root before: behind a twin these alone, else around it."""
    roots, number = state.pattern.roots, state.number
    twin = state.pattern.twins[number]
    before = m.roots[0 if twin is None else twin].producer()
    heads, reach = roots[number].heads or frozenset(), _reach(state)
    users = _users(anchor, m.graph, heads | (roots[twin or 0].heads or frozenset()), reach)
    place = users.index(before) if before in users else -1
    ordered = users[place + 1 :] if twin is not None else [*users[place + 1 :], *users[: max(place, 0)]]
    if twin is not None and place < 0:
        return iter(())  # it is beyond those that are looked at
    return (node for node in ordered if node.op_type in heads and node not in m.nodes and node not in m.inner)


def _reach(state: Sibling) -> int:
    """The most nodes from a shared value to the roots, these included."""
    roots = state.pattern.roots
    return 1 + max(max(op_depths(root).values(), default=0) for root in (roots[0], roots[state.number]))


def _users(anchor: ir.Value, graph: ir.Graph, heads: Collection[str], reach: int) -> list[ir.Node]:
    """The nodes of these operators that are computed from a value by no more than `reach` nodes, the nearest first."""
    seen: dict[ir.Node, None] = {}
    level: Sequence[ir.Value] = [anchor]
    for _ in range(reach):
        fresh: list[ir.Node] = []
        for use in itertools.chain.from_iterable(value.uses() for value in level):
            if len(seen) == MOST_USERS:
                break
            if use.node.graph is graph and use.node not in seen:
                seen[use.node] = None
                fresh.append(use.node)
        level = [output for node in fresh for output in node.outputs]
    return [node for node in seen if node.op_type in heads]


def dependence(m: Machine) -> Refusal | None:
    """A refusal if one of several roots is computed from another, so that they cannot be computed together."""
    roots = list(m.roots.values())
    if len(roots) < 2:
        return None
    nodes = [root.producer() for root in roots]
    cones = [_cone(node, m.nodes) for node in nodes if node is not None]
    for number, (inside, _) in enumerate(cones):
        other = next((root for root, node in zip(roots, nodes, strict=True) if node in inside), roots[number])
        if other is not roots[number]:
            return refuse("cycle", other)
        others = [node for index, node in enumerate(nodes) if index != number and node is not None]
        # No root can be computed from another that reads the same value as it does.
        kept = [border for index, (_, border) in enumerate(cones) if index != number]
        loose = [value for value in cones[number][1] if not all(value in border for border in kept)]
        found = _computed_from(loose, others, m.graph)
        if found is not None:
            return found
    return None


def _cone(root: ir.Node, matched: Collection[ir.Node]) -> tuple[set[ir.Node], dict[ir.Value, None]]:
    """The matched nodes that a root is computed by, and the values that these read from elsewhere."""
    inside, border, pending = {root}, dict[ir.Value, None](), [root]
    while pending:
        for value in used_values(pending.pop()):
            producer = value.producer()
            if producer is None or producer not in matched:
                border[value] = None
            elif producer not in inside:
                inside.add(producer)
                pending.append(producer)
    return inside, border


def _computed_from(values: Iterable[ir.Value], sources: Collection[ir.Node], graph: ir.Graph) -> Refusal | None:
    """A refusal of the first value that one of the nodes is needed for, or if that takes too long to find out."""
    seen: set[ir.Node] = set()
    for value in values:
        pending = [value.producer()]
        while pending:
            node = pending.pop()
            if node is None or node in seen or node.graph is not graph:
                continue
            if node in sources:
                return refuse("cycle", value)
            seen.add(node)
            if len(seen) > _MOST_NODES:
                return refuse("search_limit", value, found=_MOST_NODES)
            pending += [above.producer() for above in used_values(node)]
    return None
