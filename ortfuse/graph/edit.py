"""What a change of a graph is to those who look at it before it is final, and may object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import onnx_ir as ir

from ortfuse.graph.walk import Scope
from ortfuse.refusal import Refusal


@dataclass(frozen=True)
class Edit:
    """A change at the moment before it is final: the nodes of both sides stand in the graph, and have facts.

    Attributes:
        author: The rule or pass that makes it.
        nodes: The nodes that compute what is replaced, or that are removed.
        added: The nodes that compute what takes their place; they stand in the graph, and nothing else uses them yet.
        outputs: The values that are replaced, each with the one that takes its place: computed, or a constant, perhaps not
            in the graph yet. None if nodes are only removed.
        scope: The graph.
        facts: What is known about its values: `ortfuse.facts.facts.Facts`, which this floor knows nothing of.
        rule: The rule, if the change is a rewrite.
        match: What the rule matched.
        witnesses: Nodes that every run executes, and whose failure is a failure of the run: where they fail, the values need
            not be equal.
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
        """The value at the root, or the first that is replaced or removed, by which reports call the edit."""
        if self.match is not None:
            value = self.match.root
        elif self.outputs:
            value = self.outputs[0][0]
        else:
            value = next((output for node in self.nodes for output in node.outputs), None)
        return (value.name if value is not None else None) or "?"


class Inspector(Protocol):
    """Looks at every change before it is final. What it objects to is left undone, and the rest goes on."""

    def objection(self, edit: Edit) -> Refusal | None:
        """Why the change must not be, or `None`. The graph must not be changed."""
