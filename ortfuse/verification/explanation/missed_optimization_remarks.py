"""Collect missed-optimization remarks: one per rule family with a near miss.

Only real candidates count, of rules that make an operator of several:

- sites where everything was there but a kernel, an opset or a cost, or where only the guards or another use stood in the way;
- sites where most of the pattern matched, with an operator that tells what was meant
(`ortfuse.verification.explanation.near_miss_relevance`);
- telling operators that are left among all that a pattern has besides, however little of it matched: a Softmax between two
  products, the mean of a normalisation.

The misses are those that the rewriter came upon anyway. Only at what is left over are patterns matched once more.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir import walk
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE, JOINS, LAYER, MOVES, PRODUCT, REDUCES, SUM, has
from ortfuse.pipeline import Catalogue, RunReport
from ortfuse.pipeline.report import Remark
from ortfuse.rewrite import NearMiss, Rule, RuleEntry, Step
from ortfuse.rewrite.pattern import Match, Miss
from ortfuse.rewrite.pattern.min_nodes import least_operators, uncovered
from ortfuse.rewrite.rule import SOME
from ortfuse.verification.explanation.explain import CANONICAL_FORM, FURTHEST, Missed, described, nearest
from ortfuse.verification.explanation.near_miss_relevance import Nearness

TOLD_ELSEWHERE = frozenset({"kept", "left_out", "not_equal", "forced", "unasked"})
"""Codes of refusals that the report tells of by themselves."""

_PRODUCTS = frozenset({"MatMul", "Einsum"})
MANY = 4
"""The fewest nodes of a pattern, or of a part of it that matched, that tell that it was meant."""

MOST_OF_IT = 0.75
"""The part of a pattern that has to match, if it is not the whole."""

ENOUGH = 0.85
"""The part of the nodes of a pattern that has to be around, if less of it matched."""

MOST_AROUND = 40
"""The most nodes that are looked at around a site."""

MOST_ROOTS = 4
"""The most values that are tried as the root of a site."""

_CARRIES = ELEMENTWISE | BROADCASTS | MOVES | JOINS | {"Dropout"}
"""Operators between a product and what belongs to it: they scale, mask, add and move."""

_INSIDE = (_CARRIES | REDUCES | LAYER) - {"Dropout"}
"""Operators that may be inside of a site; a product or a recurrent layer ends it."""


def remarks(model: ir.Model, report: RunReport, catalogue: Catalogue) -> list[Remark]:
    """The sites that were left, by family, those of the user's own rules first.

    Args:
        model: The result of the run.
        report: Its report.
        catalogue: The rules that it could apply.
    """
    run = {leaf.name.partition("{")[0] for entry in report.passes for leaf in entry.leaves()}
    entries = {
        rule.name: rule
        for name, rules in catalogue.entries().items()
        if name in run and name != CANONICAL_FORM
        for rule in rules
    }
    fusions = _Loaded(entries)
    own = {rule.name for rule in catalogue.rules_from("user") if rule.name in fusions}
    met = [miss for miss in (*report.log.misses.values(), *report.log.near.values()) if miss.rule in fusions]
    settled = {node for miss in met if miss.refusal.code in TOLD_ELSEWHERE for node in (miss.root, *miss.nodes)}
    misses = [miss for miss in met if settled.isdisjoint((miss.root, *miss.nodes))]
    at_hand = _AtHand(model)
    tell = [miss for miss in misses if miss.rule in own or _is_candidate(miss, fusions[miss.rule], at_hand)]
    preparing = _Loaded({name: rule for name, rule in entries.items() if rule.is_refinement})
    found = nearest(tell, Nearness(fusions, own, fusions.keys()), fusions, preparing)
    lowered = {miss.rule.partition(".")[0] for miss in report.log.limited(entries.keys())}
    found += [
        miss
        for miss in _left_over(model, misses, fusions, {miss.site for miss in found}, at_hand)
        if miss.family not in lowered  # what the target made of operators that it lacks
    ]
    by_family: dict[str, list[Missed]] = {}
    for miss in sorted(found, key=lambda miss: miss.rule not in own):
        by_family.setdefault(miss.family, []).append(miss)
    return [*map(_remark, by_family.values()), *_without_a_site(report, own, by_family)]


class _Loaded(Mapping[str, Rule]):
    """Rules by name, each loaded when it is asked for."""

    def __init__(self, entries: Mapping[str, RuleEntry]) -> None:
        self._entries = entries

    def entries(self) -> Iterable[RuleEntry]:
        """The rules, or what stands for them."""
        return self._entries.values()

    def __getitem__(self, name: str) -> Rule:
        return self._entries[name].loaded()

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class _AtHand:
    """The facts about the result, which are computed only if something asks."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    @functools.cached_property
    def facts(self) -> Facts:
        """The facts."""
        return Facts(self._model)


def _is_candidate(miss: NearMiss, rule: Rule, at_hand: _AtHand) -> bool:
    """Whether what stands there is what the rule is about."""
    if not miss.stands or rule.notable == sys.maxsize:
        return False
    if miss.step == "pattern":
        return miss.matched >= max(MANY, MOST_OF_IT * rule.least)
    if miss.refusal.code in ("used_elsewhere", "graph_output"):  # guards were not asked
        assert miss.root is not None
        value = next((one for one in miss.root.outputs if one.name == miss.site), miss.root.outputs[0])
        return isinstance(rule.matcher.match(value, at_hand.facts, rule.allow_extra_operands, lenient=True), Match)
    return miss.step == "replacement" or (miss.matched >= SOME and miss.refusal.code != "condition")


def _remark(missed: list[Missed]) -> Remark:
    first = missed[0]
    sites = tuple(dict.fromkeys(miss.site for miss in missed))
    return Remark(first.family, first.rule, sites, first.refusal.reason, first.refusal.remedy)


def _without_a_site(report: RunReport, own: Collection[str], told: Collection[str]) -> Iterator[Remark]:
    """A remark for each of the user's own rules that was applied nowhere and came near nowhere."""
    hits = report.log.hits()
    refused = {rule for rule, _ in report.log.refused}
    for name in sorted(own - hits.keys() - refused):
        family = name.partition(".")[0]
        if family not in told:
            yield Remark(family, name, (), "nothing in the model comes near to its pattern", "")


def _left_over(
    model: ir.Model, misses: Iterable[NearMiss], rules: _Loaded, told: Collection[str], at_hand: _AtHand
) -> list[Missed]:
    """The nearest miss at each remaining node that stands among others as the telling one of a rule does."""
    marks: dict[str, list[RuleEntry]] = {}
    for entry in rules.entries():
        for mark in entry.marks:
            marks.setdefault(mark, []).append(entry)
    known = {(miss.rule, miss.site): miss for miss in misses if miss.stands}
    found: list[Missed] = []
    taken: set[ir.Node] = set()
    operators = {node.op_type for node in walk.nodes(model)}
    for node in (node for node in walk.nodes(model) if node.op_type in marks):
        sites = list(itertools.islice(_sites_of(node, marks[node.op_type]), MOST_ROOTS))
        if any(value.name in told or value.producer() in taken for value, _ in sites):
            continue
        missed = [
            miss
            for value, candidates in sites
            for rule in candidates
            if (miss := known.get((rule.name, value.name or "?")) or _tried(rule, value, at_hand.facts)) is not None
        ]
        if missed:
            best = max(missed, key=lambda one: _how_near(rules[one.rule], one, operators))
            found.append(described(best, rules[best.rule].least))
            taken.update(root for value, _ in sites if (root := value.producer()) is not None)
    return found


def _how_near(rule: Rule, miss: NearMiss, operators: Collection[str]) -> tuple[bool, int, int, int]:
    """How near a rule came, in a model of these operators.

    If rules came equally near, the one with fewer further conditions is more likely to be meant.
    """
    return miss.step != "pattern", miss.matched, -len(rule.matcher.required - set(operators)), -len(rule.guards)


def _sites_of(node: ir.Node, rules: Iterable[RuleEntry]) -> Iterator[tuple[ir.Value, list[Rule]]]:
    """The values that rules might have fused with a node, the closest first, each with these rules."""
    for root in _following(node):
        likely = (entry.loaded() for entry in rules if root.op_type in entry.heads)
        fitting = [rule for rule in likely if _looks_like(rule, root, node)]
        if fitting:
            yield root.outputs[0], fitting


def _looks_like(rule: Rule, root: ir.Node, mark: ir.Node) -> bool:
    """Whether all kinds of nodes that a rule looks for are around: a normalisation, or a Softmax between two products."""
    if rule.matcher.heads <= _PRODUCTS:
        return _follows_a_product(mark) and _carries_to(mark, root)
    if rule.least < MANY:
        return False
    around = _around(root, max(rule.matcher.depths.values()) + 1)
    needed = least_operators(rule.pattern)
    missing = uncovered(needed, (node.op_type for node in around))
    only_plain = all(kinds & (SUM | PRODUCT) for kinds in missing)
    return mark in around and only_plain and len(missing) <= (1 - ENOUGH) * len(needed)


def _around(root: ir.Node, depth: int) -> set[ir.Node]:
    """The nodes up to some levels above a root, as many as a pattern might have."""
    level, found = [root], {root}
    for _ in range(depth):
        above = {value.producer() for node in level for value in node.inputs if value is not None} - {None} - found
        level = [node for node in above if node is not None and has(node, _INSIDE)]
        found.update(level)
        if len(found) > MOST_AROUND:
            break
    return found


def _tried(rule: Rule, value: ir.Value, facts: Facts) -> NearMiss | None:
    """How far a rule comes at a value of the result; `None` if it would be applied there."""
    miss = rule.matcher.match(value, facts, rule.allow_extra_operands)
    if not isinstance(miss, Miss):
        return None
    step: Step = "guards" if miss.whole else "pattern"
    return NearMiss(rule.name, value.name or "?", step, miss.matched, miss.refusal, value.producer(), miss.nodes)


def _following(node: ir.Node) -> Iterator[ir.Node]:
    """The nodes that come after a node, level by level."""
    level, seen = [node], {node}
    for _ in range(FURTHEST):
        level = [one for one in dict.fromkeys(_users(level)) if one not in seen]
        seen.update(level)
        yield from level


def _users(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    return (use.node for one in nodes for value in one.outputs for use in value.uses())


def _carries_to(node: ir.Node, root: ir.Node) -> bool:
    """Whether what a node computes gets to another one by operators that belong to it."""
    level, seen = [node], {node}
    for _ in range(FURTHEST):
        following = [one for one in dict.fromkeys(_users(level)) if one not in seen]
        if root in following:
            return True
        seen.update(following)
        level = [one for one in following if has(one, _CARRIES)]
    return False


def _follows_a_product(node: ir.Node) -> bool:
    """Whether the first operand of a node comes from a product, by operators that belong to it."""
    level, seen = [node], {node}
    for number in range(FURTHEST):
        operands = [value for one in level for value in (one.inputs if number else one.inputs[:1]) if value is not None]
        above = [one for value in operands if (one := value.producer()) is not None and one not in seen]
        if any(one.op_type in _PRODUCTS for one in above):
            return True
        seen.update(above)
        level = [one for one in above if has(one, _CARRIES)]
    return False
