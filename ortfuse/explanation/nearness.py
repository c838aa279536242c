"""Which near misses are worth telling: those that make it likely that the author of the model meant what the rule makes.

Sums, products, comparisons and data movement are everywhere, and mean nothing by themselves. A rule is told by its
*telling* operators: those of its pattern that are not plain, and, unless its family was asked for, that it does not make
itself. A miss of a family that was asked for must have a telling node, if the pattern has any; others are near if

- the replacement is what failed: all that the rule looks for is there; or
- the pattern matched as a whole, a telling node or `MANY` nodes with it; or
- at least half of the pattern matched, that is at least `SOME` nodes, with a telling one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ortfuse.graph.traits import COMPARES, EXACT, LOGICAL, PRODUCT, SIZES, SUM
from ortfuse.pattern.least import least_nodes
from ortfuse.rewrite import RULE_KEY, NearMiss, Rule

PLAIN = EXACT | SUM | PRODUCT | COMPARES | LOGICAL | SIZES | {"Cast", "MatMul", "Pow", "Sqrt", "Sum"}
"""Operators that tell nothing of what is meant."""

POINTLESS = frozenset({"needless", "other_rule"})
"""Why rules refuse what is well as it is."""

FEWEST = 2
"""Nodes that must match at least: of a pattern of which only the root matched there is nothing to tell."""

SOME = 3
"""Nodes of a part of a pattern that is near."""

MANY = 4
"""Plain nodes that make up a pattern which is unlikely to match as a whole by chance."""

HALF = 0.5


class Nearness:
    """Judges the misses of some rules.

    Args:
        rules: The rules by name.
        asked: The families and rules that were asked for by name.
        fusions: The names of all rules that fuse.
    """

    def __init__(self, rules: Mapping[str, Rule], asked: Collection[str], fusions: Collection[str]) -> None:
        self._rules, self._asked, self._fusions = rules, asked, fusions
        self.least = {name: least_nodes(rule.pattern) for name, rule in rules.items()}
        """How many nodes the pattern of each rule takes at least."""
        self._telling = {name: frozenset(rule.matcher.depths) - PLAIN for name, rule in rules.items()}

    def marks(self, rule: Rule) -> frozenset[str]:
        """The telling operators that every site of a rule has and that it does not make: where they are left, it is missed."""
        if rule.is_refinement or not (rule.name in self._asked or rule.family in self._asked):
            return frozenset()
        return rule.matcher.required - PLAIN - {name.rpartition(".")[2] for name in rule.targets}

    def order(self, miss: NearMiss) -> tuple[bool, bool, float, int]:
        """Larger for what came nearer."""
        return (
            miss.step == "replacement",
            miss.step == "guards",
            min(miss.matched / max(self.least[miss.rule], 1), 1.0),
            miss.matched,
        )

    def tells(self, miss: NearMiss) -> bool:
        """Whether the miss is worth telling."""
        rule = self._rules.get(miss.rule)
        if rule is None or not miss.stands or miss.matched < FEWEST:
            return False
        if miss.rule in self._asked:
            return True
        if miss.refusal.code in POINTLESS:
            return False
        # Rules that refine what others make, and sites where another rule was the better one.
        if rule.is_refinement or (miss.root is not None and miss.root.metadata_props.get(RULE_KEY) in self._fusions):
            return False
        wanted = self._telling[miss.rule]
        found = {node.op_type for node in miss.nodes}
        made = {name.rpartition(".")[2] for name in rule.targets}
        if rule.family in self._asked:
            return not wanted or not wanted.isdisjoint(found)
        return self._is_near(miss, not wanted.isdisjoint(found - made))

    def _is_near(self, miss: NearMiss, telling: bool) -> bool:
        match miss.step:
            case "replacement":
                return True
            case "guards":
                return telling or miss.matched >= MANY
            case "pattern":
                return telling and miss.matched >= max(SOME, HALF * self.least[miss.rule])
