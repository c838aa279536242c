"""Class `Edit`: a pending change of a graph, which inspectors may reject before it becomes final."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import onnx_ir as ir

from ortfuse.ir import walk
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.walk import Scope


@dataclass(frozen=True)
class Edit:
    """A change just before it is final: the nodes of both sides are in the graph and have facts.

    Attributes:
        author: The rule or pass that makes it.
        nodes: The nodes that compute what is replaced, or that are removed.
        added: The nodes that compute the replacement; they are in the graph, but nothing else uses them yet.
        outputs: The values that are replaced, each with its replacement: computed, or a constant that may not be in the
            graph yet. Empty if nodes are only removed.
        scope: The graph.
        facts: What is known about its values: an `ortfuse.analysis.facts.Facts`, which this layer does not import.
        rule: The rule, if the change is a rewrite.
        match: What the rule matched.
        witnesses: Nodes that every run executes and whose failure makes the run fail: where they fail, the values need not
            be equal.
    """

    author: str
    nodes: Sequence[ir.Node]
    added: Sequence[ir.Node]
    outputs: Sequence[tuple[ir.Value, ir.Value]]
    scope: Scope
    facts: Any
    rule: Any = None
    match: Any = None
    witnesses: Sequence[ir.Node] = ()

    @property
    def name(self) -> str:
        """The value by which reports refer to the edit: the one at the root, or the first that is replaced or removed."""
        if self.match is not None:
            value = self.match.root
        elif self.outputs:
            value = self.outputs[0][0]
        else:
            value = next((output for node in self.nodes for output in node.outputs), None)
        return (value.name if value is not None else None) or "?"


MOST_NODES = 500
"""The nodes on one side of a change."""


def sides_of(
    outputs: Sequence[tuple[ir.Value, ir.Value]], added: Sequence[ir.Node]
) -> tuple[Sequence[ir.Node], Sequence[ir.Node]]:
    """The nodes that compute the old values and those that compute the new ones, down to what both are computed from."""
    before, after = _upstream([old for old, _ in outputs]), _upstream([new for _, new in outputs])
    olds = [node for node in before if node not in after]
    news = [node for node in after if node not in before]
    if len(olds) + len(news) > MOST_NODES:
        return [node for old, _ in outputs if (node := old.producer()) is not None], added
    return olds, news


def _upstream(values: Iterable[ir.Value]) -> dict[ir.Node, None]:
    """All nodes from which the values are computed, directly or indirectly."""
    found: dict[ir.Node, None] = {}
    pending = [node for value in values if (node := value.producer()) is not None]
    while pending:
        node = pending.pop()
        if node not in found:
            found[node] = None
            pending += [above for v in node.inputs if v is not None and (above := v.producer()) is not None]
    return found


def needed_elsewhere(node: ir.Node, removed: Collection[ir.Node]) -> Refusal | None:
    """Why a node cannot be removed together with `removed`: something else still needs it. `None` if nothing does."""
    for output in node.outputs:
        users = [use.node for use in output.uses() if use.node not in removed]
        if users or output.is_graph_output():
            user = walk.describe(users[0]) if users else "the outputs of the graph"
            return refuse("used_elsewhere", output, found=user)
    return None


class Inspector(Protocol):
    """Look at every change before it is final. A change it objects to is undone, and everything else goes on."""

    def objection(self, edit: Edit) -> Refusal | None:
        """Why the change must not be made, or `None`. The graph must not be modified."""


class Guard(Protocol):
    """Look at each use of a value that was given another value, where what stands next to each other matters."""

    def objection(self, node: ir.Node, index: int, before: ir.Value) -> Refusal | None:
        """Why the node must not have that operand instead of the one `before`, or `None`."""
