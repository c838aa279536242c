"""What the rewriter shows of a rewrite before it is final, and who may object to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from ortfuse.ir.facts import Facts
from ortfuse.pattern.match import Match
from ortfuse.rewrite.rule import Rule
from ortfuse.rewrite.scopes import Scope


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


class Inspector(Protocol):
    """Looks at every rewrite before it is final. What it objects to is undone, and the rest goes on."""

    def objection(self, site: Site) -> str | None:
        """Why the rewrite must not be, in words, or `None`. The graph must not be changed."""
