"""What the rewriter shows of a rewrite before it is final, and who may object to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from ortfuse.facts.facts import Facts
from ortfuse.graph.scopes import Scope
from ortfuse.pattern.match import Match
from ortfuse.rewrite.rule import Rule


@dataclass(frozen=True)
class Site:
    """A rewrite at the moment before the old nodes go: the nodes of both sides stand in the graph, and have facts.

    Attributes:
        rule: The rule.
        match: What it matched.
        added: The new nodes, already in the graph; nothing uses their results yet.
        outputs: The values that are about to be replaced, each with the one that takes its place.
        scope: The graph.
        facts: What is known about its values.
    """

    rule: Rule
    match: Match
    added: Sequence[ir.Node]
    outputs: Sequence[tuple[ir.Value, ir.Value]]
    scope: Scope
    facts: Facts

    @property
    def name(self) -> str:
        """The value at the root, by which reports call the site; a rewrite does not change it."""
        return self.match.root.name or "?"

    @property
    def nodes(self) -> Sequence[ir.Node]:
        """The old nodes."""
        return self.match.nodes


@dataclass(frozen=True)
class Edit:
    """What a pass that is no rule is about to do: values are replaced by equal ones, or nodes are removed as dead.

    Attributes:
        author: The pass.
        nodes: The nodes that compute what is replaced, or that are removed.
        added: The nodes that compute what takes their place; they stand in the graph already.
        outputs: The values that are replaced, each with the one that takes its place: computed, or a constant, perhaps not
            in the graph yet. None if nodes are only removed.
        scope: The graph.
        facts: What is known about its values.
    """

    author: str
    nodes: Sequence[ir.Node]
    added: Sequence[ir.Node]
    outputs: Sequence[tuple[ir.Value, ir.Value]]
    scope: Scope
    facts: Facts

    @property
    def name(self) -> str:
        """The value that is replaced, or the first of those that are removed, by which reports call the edit."""
        value = (
            self.outputs[0][0]
            if self.outputs
            else next((output for node in self.nodes for output in node.outputs), None)
        )
        return (value.name if value is not None else None) or "?"


class Inspector(Protocol):
    """Looks at every change before it is final. What it objects to is left undone, and the rest goes on."""

    def objection(self, site: Site) -> str | None:
        """Why the rewrite must not be, in words, or `None`. The graph must not be changed."""

    def edit_objection(self, edit: Edit) -> str | None:
        """The same for an edit of a pass that is no rule."""
