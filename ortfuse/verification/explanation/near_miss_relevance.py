"""Select the near misses worth reporting: those whose subgraph is probably meant to be the operator of the rule.

Sums, products, comparisons and data movement are everywhere, and mean nothing by themselves. A rule is recognised by its
*telling* operators: those of its pattern that are not plain and, unless its family was asked for, that the rule does not
create itself. A miss of a family that was asked for must have a telling node, if the pattern has any; other misses are
near if

- the replacement is what failed: everything the rule looks for is present; or
- the entire pattern matched, with a telling node or at least `MANY` nodes; or
- at least half of the pattern, and at least `SOME` nodes, matched, with a telling one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ortfuse.ir.traits import PLAIN
from ortfuse.rewrite import RULE_KEY, NearMiss, Rule
from ortfuse.rewrite.rule import HALF, SOME

POINTLESS = frozenset({"needless", "other_rule"})
"""Codes of refusals at sites that are fine as they are."""

FEWEST = 2
"""The fewest nodes that must match: if only the root matched, there is nothing to report."""

MANY = 4
"""The fewest nodes of a pattern of plain operators that is unlikely to match by chance."""


class Nearness:
    """Judge how near the misses of some rules are.

    Args:
        rules: The rules by name.
        asked: The families and rules that were asked for by name.
        fusions: The names of all rules that fuse.
    """

    def __init__(self, rules: Mapping[str, Rule], asked: Collection[str], fusions: Collection[str]) -> None:
        self._rules, self._asked, self._fusions = rules, asked, fusions

    def marks(self, rule: Rule) -> frozenset[str]:
        """The telling operators that every site of a rule has and that it does not create: where one remains, it missed."""
        if rule.is_refinement or not (rule.name in self._asked or rule.family in self._asked):
            return frozenset()
        return rule.matcher.required - PLAIN - {name.rpartition(".")[2] for name in rule.targets}

    def order(self, miss: NearMiss) -> tuple[bool, bool, float, int]:
        """A sort key, larger for nearer misses."""
        return (
            miss.step == "replacement",
            miss.step == "guards",
            min(miss.matched / max(self._rules[miss.rule].least, 1), 1.0),
            miss.matched,
        )

    def tells(self, miss: NearMiss) -> bool:
        """Whether the miss is worth reporting."""
        rule = self._rules.get(miss.rule)
        maker = None if miss.root is None else miss.root.metadata_props.get(RULE_KEY)
        if rule is None or not miss.stands or maker == miss.rule:
            return False
        if miss.rule in self._asked and miss.matched >= min(FEWEST, self._rules[miss.rule].least):
            return True
        if miss.matched < FEWEST:
            return False
        if miss.refusal.code in POINTLESS:
            return False
        # What nobody asked for is not missing; where `--force` asks for it and is not followed, that is told by itself.
        if rule.on_request and rule.family not in self._asked:
            return False
        # Leave out rules that refine results of others, and sites where another rule was the better one.
        if rule.is_refinement or maker in self._fusions:
            return False
        wanted = rule.telling
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
                return telling and miss.matched >= max(SOME, HALF * self._rules[miss.rule].least)
