"""The log of the rewriter: events, per-rule statistics and, on request, the nearest misses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import onnx_ir as ir

from ortfuse.ir import walk
from ortfuse.ir.editor import Change
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.traits import PLAIN
from ortfuse.rewrite.rule import Exactness
from ortfuse.serialization import Record, entry

Step = Literal["pattern", "guards", "replacement"]
"""The step at which a rule failed: "pattern" if only part of its pattern matched; "guards" if all of it did, but a guard or
another use of one of the nodes was in the way; "replacement" if the replacement cannot be built or executed."""


@dataclass(frozen=True, slots=True)
class Event:
    """One rewrite: the rule, the site, the nodes removed and added, and the time it took (seconds)."""

    rule: str
    site: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    seconds: float


@dataclass(slots=True)
class RuleStatistics:
    """Statistics of a rule: tries, applications, seconds spent on each, and whether it refines other rules' results."""

    attempts: int = 0
    hits: int = 0
    seconds: float = 0.0
    is_refinement: bool = False


def _names(nodes: Sequence[ir.Node]) -> list[str]:
    return [node.name or node.op_type for node in nodes]


@dataclass(frozen=True, slots=True)
class NearMiss(Record):
    """The closest that a rule came to being applied at a site where it was not.

    Attributes:
        rule: The rule.
        site: The value at the root.
        step: The step at which it failed.
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
    root: ir.Node | None = field(default=None, repr=False, compare=False, metadata=entry(omit=True))
    nodes: tuple[ir.Node, ...] = field(default=(), repr=False, compare=False, metadata=entry(convert=_names))

    @property
    def taker(self) -> str:
        """The rule or pass that has removed one of its nodes, for another value in its place; empty if none has."""
        nodes = () if self.root is None else (self.root, *self.nodes)
        return next((str(node.meta[_TAKER]) for node in nodes if node.graph is None and _TAKER in node.meta), "")

    @property
    def stands(self) -> bool:
        """Whether its nodes are still in the graph, not rewritten by anything else."""
        return self.root is not None and all(node.graph is not None for node in (self.root, *self.nodes))


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A site that a rule fused: the rule, and the telling operators that it made there."""

    rule: str
    operators: frozenset[str]


_TAKER = "ortfuse.taker"
"""The entry of the `meta` of a removed node with the rule or pass that put something in its place."""

_SITES = "ortfuse.sites"
"""The entry of a node's `meta` with the fused sites that it is what became of."""


def _sites_in(node: ir.Node) -> Iterator[Site]:
    """The sites that a node and those nested in it are what became of."""
    for one in (node, *walk.nested_nodes(node)):
        yield from one.meta.get(_SITES, ())


@dataclass
class Log:
    """Everything that happened. Near misses are kept only where they are asked for, because they cost time.

    Attributes:
        explain: Whether to keep the near misses of all rules.
        watched: Rules whose near misses are kept in any case.
        events: The rewrites, in order.
        rules: Statistics of each rule.
        misses: The near miss of each rule at each site.
        near: Of rules that are not explained, the misses that are worth a remark.
        changes: How many changes each rule and pass has made.
        rounded: How many changes of each rule and pass may have rounded otherwise than what they replaced.
        refused: Why a change was undone, for each rule or pass and site.
        chosen: For each pass and site that a forced choice is about, why it is not followed; empty if it is.
        lost: For each rule, how many of its sites later changes have taken apart or removed; known once the log is settled.
    """

    explain: bool = False
    watched: frozenset[str] = frozenset()
    events: list[Event] = field(default_factory=list)
    rules: dict[str, RuleStatistics] = field(default_factory=dict)
    misses: dict[tuple[str, str], NearMiss] = field(default_factory=dict)
    near: dict[tuple[str, str], NearMiss] = field(default_factory=dict)
    changes: Counter[str] = field(default_factory=Counter)
    rounded: Counter[str] = field(default_factory=Counter)
    refused: dict[tuple[str, str], Refusal] = field(default_factory=dict)
    chosen: dict[tuple[str, str], str] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)
    _made: list[Site] = field(default_factory=list, repr=False)

    def explains(self, rule: str) -> bool:
        """Whether the near misses of a rule are kept."""
        return self.explain or rule in self.watched

    def changed(self, change: Change) -> None:
        """Count a change of the model, and follow what becomes of fused sites; rewrites are also recorded as events."""
        self.changes[change.author] += 1
        if change.rule is not None and change.rule.exactness is not Exactness.EXACT:
            self.rounded[change.author] += 1
        if change.replaced:
            for node in change.removed:
                node.meta[_TAKER] = change.author
        if not change.added:
            return
        olds = dict.fromkeys([*change.nodes, *change.removed, *(old.producer() for old, _ in change.replaced)])
        sites = [site for node in olds if node is not None for site in _sites_in(node)]
        if len(change.nodes or change.removed) == 1 and len(change.added) > 1:
            operator = (change.nodes or change.removed)[0].op_type
            sites = [site for site in sites if operator not in site.operators]  # one operator became several
        operators = frozenset(node.op_type for node in change.added) - PLAIN
        if change.match is not None and operators:
            self._made.append(Site(change.author, operators))
            sites.append(self._made[-1])
        if sites:
            known = tuple(dict.fromkeys(sites))
            for node in change.added:
                node.meta[_SITES] = known

    def settle(self, model: ir.Model) -> None:
        """Count the fused sites of which nothing is left in the result."""
        left = {site for node in walk.nodes(model) for site in node.meta.pop(_SITES, ())}
        self.lost = Counter(site.rule for site in self._made if site not in left)

    def refuse(self, change: Change, refusal: Refusal) -> None:
        """Record why a change was undone; of several at a site, the last is kept."""
        self.refused[change.author, change.site] = refusal

    def choose(self, name: str, site: str, obstacle: str) -> None:
        """Record that a pass follows a forced choice at a site, or the obstacle, if it is not empty."""
        self.chosen[name, site] = obstacle

    def statistics(self, rule: str, is_refinement: bool = False) -> RuleStatistics:
        """The statistics of one rule, created when first asked for."""
        found = self.rules.get(rule)
        if found is None:
            found = self.rules[rule] = RuleStatistics(is_refinement=is_refinement)
        return found

    def miss(
        self,
        rule: str,
        value: ir.Value,
        step: Step,
        matched: int,
        refusal: Refusal,
        nodes: Iterable[ir.Node],
    ) -> None:
        """Record a near miss; the latest at each site is kept, as the graph around it may have changed since earlier ones."""
        site = value.name or "?"
        kept = self.misses if self.explains(rule) else self.near
        kept[rule, site] = NearMiss(rule, site, step, matched, refusal, value.producer(), tuple(nodes))

    def limited(self, rules: Collection[str]) -> list[NearMiss]:
        """The sites where the limits of a kernel stopped one of these rules, so that another one of them was applied."""
        return [
            miss
            for miss in (*self.misses.values(), *self.near.values())
            if miss.rule in rules
            and miss.refusal.code == "kernel_limit"
            and miss.taker in rules
            and miss.taker != miss.rule
        ]

    def there(self, rule: str, hits: int) -> int:
        """The number of sites that a rule rewrote and that are still there."""
        return max(hits - self.lost[rule], 0)

    def hits(self) -> dict[str, int]:
        """The number of sites that each rule rewrote; rules that rewrote none are left out."""
        return {name: entry.hits for name, entry in self.rules.items() if entry.hits}
