"""What the rewriter did: events, per-rule statistics and, on request, the nearest misses."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir


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
    refines: bool = False


@dataclass(frozen=True, slots=True)
class NearMiss:
    """The furthest that a rule came at a site without being applied."""

    rule: str
    site: str
    matched: int
    reason: str


@dataclass
class Log:
    """Everything that happened while rules ran. Near misses are kept only if `explain` is set, for they cost time."""

    explain: bool = False
    events: list[Event] = field(default_factory=list)
    rules: dict[str, RuleStatistics] = field(default_factory=dict)
    misses: dict[tuple[str, str], NearMiss] = field(default_factory=dict)

    def statistics(self, rule: str, refines: bool = False) -> RuleStatistics:
        """The statistics of one rule, created when first asked for."""
        return self.rules.setdefault(rule, RuleStatistics(refines=refines))

    def miss(self, rule: str, value: ir.Value, matched: int, reason: str) -> None:
        """Keep a near miss, the latest at each site: the graph around it has changed since the ones before."""
        site = value.name or "?"
        self.misses[rule, site] = NearMiss(rule, site, matched, reason)

    def hits(self) -> dict[str, int]:
        """How many sites each rule rewrote, rules without any left out."""
        return {name: entry.hits for name, entry in self.rules.items() if entry.hits}
