"""What the rewriter did: events, per-rule statistics and, on request, the nearest misses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import onnx_ir as ir

from ortfuse.graph.editor import Change
from ortfuse.refusal import Refusal

Step = Literal["pattern", "guards", "replacement"]
"""What a rule failed at: only part of its pattern matched; all of it did, but a guard or another use of one of the nodes was in
the way; or nothing was, but the replacement cannot be made or executed."""


@dataclass(frozen=True, slots=True)
class Event:
    """One rewrite: which rule, where, what went out and came in, and how long it took (seconds)."""

    rule: str
    site: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    seconds: float


@dataclass(slots=True)
class RuleStatistics:
    """How often a rule was tried and applied, the time spent on both (seconds), and whether it refines another's site."""

    attempts: int = 0
    hits: int = 0
    seconds: float = 0.0
    is_refinement: bool = False


@dataclass(frozen=True, slots=True)
class NearMiss:
    """The furthest that a rule came at a site without being applied.

    Attributes:
        rule: The rule.
        site: The value at the root.
        step: What it failed at.
        matched: How many nodes matched.
        refusal: What stopped it.
        root: The node that computes the value at the root.
        nodes: The nodes that matched.
    """

    rule: str
    site: str
    step: Step
    matched: int
    refusal: Refusal
    root: ir.Node | None = field(default=None, repr=False, compare=False)
    nodes: tuple[ir.Node, ...] = field(default=(), repr=False, compare=False)

    @property
    def stands(self) -> bool:
        """Whether its nodes are still in the graph: nothing else has rewritten them."""
        return self.root is not None and all(node.graph is not None for node in (self.root, *self.nodes))

    def to_dict(self) -> dict[str, Any]:
        """The miss as data for JSON."""
        return {
            "rule": self.rule,
            "site": self.site,
            "step": self.step,
            "matched": self.matched,
            "refusal": self.refusal.to_dict(),
            "nodes": [node.name or node.op_type for node in self.nodes],
        }


@dataclass
class Log:
    """Everything that happened. Near misses are kept only if `explain` is set, for they cost time.

    Attributes:
        explain: Whether to keep near misses.
        events: The rewrites, in order.
        rules: Statistics of each rule.
        misses: For rules at sites, the furthest that they came.
        changes: How many changes each rule and pass has made.
        refused: For rules and passes at sites, why a change of theirs was undone.
    """

    explain: bool = False
    events: list[Event] = field(default_factory=list)
    rules: dict[str, RuleStatistics] = field(default_factory=dict)
    misses: dict[tuple[str, str], NearMiss] = field(default_factory=dict)
    changes: Counter[str] = field(default_factory=Counter)
    refused: dict[tuple[str, str], Refusal] = field(default_factory=dict)

    def changed(self, change: Change) -> None:
        """Count a change of the model; a rewrite is also an event of its own."""
        self.changes[change.author] += 1

    def refuse(self, change: Change, refusal: Refusal) -> None:
        """Keep why a change was undone, the last time at each site."""
        self.refused[change.author, change.site] = refusal

    def statistics(self, rule: str, is_refinement: bool = False) -> RuleStatistics:
        """The statistics of one rule, created when first asked for."""
        return self.rules.setdefault(rule, RuleStatistics(is_refinement=is_refinement))

    def miss(
        self,
        rule: str,
        value: ir.Value,
        step: Step,
        matched: int,
        refusal: Refusal,
        nodes: Iterable[ir.Node],
    ) -> None:
        """Keep a near miss, the latest at each site: the graph around it has changed since the ones before."""
        site = value.name or "?"
        self.misses[rule, site] = NearMiss(rule, site, step, matched, refusal, value.producer(), tuple(nodes))

    def hits(self) -> dict[str, int]:
        """How many sites each rule rewrote, rules without any left out."""
        return {name: entry.hits for name, entry in self.rules.items() if entry.hits}
