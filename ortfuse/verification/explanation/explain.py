"""Explain a model's rewrites: for each site the rule that fused it, or the nearest miss with its reason.

A miss is left out if it is uninformative (see `ortfuse.verification.explanation.near_miss_relevance`), if another rule
has since rewritten its nodes, if another rule of the family got further at the same value or was found to gain nothing
there, or if a rule of the family got further with mostly the same nodes. For a family that was asked for, each
remaining node that is characteristic of it (a "mark": Softmax for attention) has the nearest miss downstream of it
reported, however little of the pattern matched.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.errors import RuleError
from ortfuse.ir import walk
from ortfuse.ir.refusal import Refusal, refuse, words
from ortfuse.ir.traits import PLAIN
from ortfuse.naming import name_today
from ortfuse.pipeline import Catalogue, Counts, RunReport
from ortfuse.rewrite import NODES_KEY, RULE_KEY, NearMiss, Rule, Step
from ortfuse.serialization import Record
from ortfuse.verification.explanation.lost_sites import Taken, taken_sites
from ortfuse.verification.explanation.near_miss_relevance import POINTLESS, Nearness

FURTHEST = 6
"""The most nodes between a mark of a family and the root of its nearest miss."""

_NO_SITE = "no site comes near to"

_ASKED = ("unasked", "untried")
"""The codes of refusals of operators that are made only where `--force` asks for them."""

MOST_USERS = 3
"""The most users of a mark that are named."""

EXPLAINED_PASSES = frozenset({"compose_linear_maps"})
"""The passes that record near misses, as rules do."""

CANONICAL_FORM = "canonicalize"
"""The pass whose rules are not fusions, and are explained only when asked for by name."""


@dataclass(frozen=True)
class Fused(Record):
    """A site that a rule fused.

    Attributes:
        rule: The rule.
        site: The value it computes.
        operators: The nodes that the rule created.
        nodes: The names of the original nodes that these replace.
    """

    rule: str
    site: str
    operators: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Missed(Record):
    """A site at which a rule nearly applied.

    Attributes:
        rule: The rule of its family that got furthest.
        site: The value at the root.
        root: The node there, as its operator and name.
        step: The step at which it failed: the pattern, its guards (or another use of a node), or the replacement.
        matched: How many nodes matched.
        minimum: The minimum number of nodes of the pattern.
        refusal: What stopped it, and what would make it match.
        nodes: The names of the nodes that matched.
    """

    rule: str
    site: str
    root: str
    step: Step
    matched: int
    minimum: int
    refusal: Refusal
    nodes: tuple[str, ...]

    @property
    def family(self) -> str:
        """The family of the rule."""
        return self.rule.partition(".")[0]


@dataclass(frozen=True)
class Explanation(Record):
    """The fused sites of a model, and the near misses.

    Attributes:
        fused: The sites that rules fused, in the order of the graph.
        missed: The nearest misses, the nearest first.
        absent: For each rule that was asked for and found no site, the reason.
        lost: The sites that rules that were asked for did not get, and that something else has rewritten since.
        notes: Remarks of the run, such as rules left out because they are slower here.
    """

    fused: tuple[Fused, ...]
    missed: tuple[Missed, ...]
    absent: Mapping[str, str]
    notes: tuple[str, ...] = ()
    lost: tuple[Taken, ...] = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.fused)} fused, {len(self.missed)} missed>"


def explanation(model: ir.Model, report: RunReport, catalogue: Catalogue, rules: Sequence[str] = ()) -> Explanation:
    """Explain for each site of a model which rule fused it, or which came nearest.

    Args:
        model: The result of a run that recorded near misses.
        report: The report of that run.
        catalogue: The rules that the run could apply.
        rules: Families (`attention`) or rules (`attention.sdpa`) to explain; by default all fusions and the near misses.

    Raises:
        RuleError: There is no such family or rule.
    """
    chosen = chosen_rules(catalogue, rules)
    fused = fused_sites(model, chosen)
    fusions = {rule.name for name, group in catalogue.passes().items() if name != CANONICAL_FORM for rule in group}
    nearness = Nearness(chosen, rules, fusions)
    left_over = _left_over(model, report.misses, nearness, chosen)
    missed = nearest(report.misses, nearness, chosen, _preparing(catalogue, chosen), left_over)
    left_out, hits = _left_out(report, catalogue), report.log.hits()
    tried = {rule.family for name, rule in chosen.items() if name not in left_out}
    if rules and not fused and not missed and not any(name.partition(".")[0] in tried for name in hits):
        missed = _unused(model, nearness, [rule for name, rule in chosen.items() if name not in left_out])
    found = {site.rule for site in fused} | {site.rule for site in missed}
    families = {name.partition(".")[0] for name in found}
    sought = {name: rule for name, rule in chosen.items() if rule.family not in families} if rules else {}
    prepared = {site.family for site in missed if site.rule not in chosen}
    asked = (chosen[name] for name in rules if name in chosen and name not in found)
    sought |= {rule.name: rule for rule in asked if rule.family not in prepared}
    told = {(site.rule, site.site) for site in fused} | {(miss.rule, miss.site) for miss in missed}
    taken = taken_sites(report, chosen, told) if rules else ()
    absent = {
        **_absent(
            report.before,
            [rule for name, rule in sought.items() if name not in left_out],
            hits,
            {one.rule for one in taken},
            [miss for miss in report.misses if miss.refusal.code in _ASKED],
        ),
        **{name: f"the pipeline does not run {left_out[name]}" for name in sought if name in left_out},
    }
    notes = list(report.notes)
    if fusions <= left_out.keys():
        notes.append(f"the pipeline runs no fusions: {report.pipeline}")
    missed = [*missed, *misses_of_passes(report, rules)]
    return Explanation(tuple(fused), tuple(missed), absent, tuple(notes), taken)


def _left_out(report: RunReport, catalogue: Catalogue) -> dict[str, str]:
    """The rules whose pass the pipeline did not run, each with that pass."""
    run = {leaf.name.partition("{")[0] for entry in report.passes for leaf in entry.leaves()}
    return {rule.name: name for name, group in catalogue.passes().items() if name not in run for rule in group}


def misses_of_passes(report: RunReport, wanted: Sequence[str]) -> list[Missed]:
    """The near misses of passes that are asked for; by default those at values that the caller asks for."""
    names = {name_today(one, ("rules", "families"), tell=False) for one in wanted}
    found = [
        miss
        for miss in report.misses
        if miss.rule in EXPLAINED_PASSES
        and miss.stands
        and (miss.rule in names if wanted else miss.refusal.code == "graph_output")
    ]
    return [
        Missed(
            miss.rule, miss.site, words(miss.root), miss.step, miss.matched, 1, miss.refusal,
            tuple(node.name or node.op_type for node in miss.nodes),
        )
        for miss in found
    ]  # fmt: skip


def chosen_rules(catalogue: Catalogue, wanted: Sequence[str]) -> dict[str, Rule]:
    """The rules to explain, by name.

    Raises:
        RuleError: There is no such family or rule.
    """
    passes = catalogue.passes()
    known = {rule.name: rule for rules in passes.values() for rule in rules}
    if not wanted:
        return {rule.name: rule for name, rules in passes.items() if name != CANONICAL_FORM for rule in rules}
    chosen: dict[str, Rule] = {}
    there = {*known, *(rule.family for rule in known.values())}
    for name in (name_today(one, ("rules", "families"), there) for one in wanted):
        if name in EXPLAINED_PASSES:
            continue
        found = {key: rule for key, rule in known.items() if name in (key, rule.family)}
        if not found:
            close = difflib.get_close_matches(name, sorted(there), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise RuleError(f"there is no rule or family {name!r}{hint}; `ortfuse passes` shows all rules")
        chosen |= found
    return chosen


def fused_nodes(model: ir.Model, rules: Collection[str]) -> dict[tuple[str, str], list[ir.Node]]:
    """The nodes that rules created, by rule and the names of the original nodes that they replace."""
    groups: dict[tuple[str, str], list[ir.Node]] = {}
    for node in walk.nodes(model):
        rule = name_today(node.metadata_props.get(RULE_KEY, ""), ("rules",), rules, tell=False)
        if rule in rules:
            groups.setdefault((rule, node.metadata_props.get(NODES_KEY, "")), []).append(node)
    return groups


def fused_sites(model: ir.Model, chosen: Mapping[str, Rule]) -> list[Fused]:
    """The fused sites, by what their nodes say.

    Nodes that only move elements for a site are no site, if another rule of the family has fused that since.
    """
    groups = fused_nodes(model, chosen)
    telling = {key for key, nodes in groups.items() if any(node.op_type not in PLAIN for node in nodes)}

    def is_part(rule: str, names: str) -> bool:
        here = {name for name in names.split(";") if name}
        return (rule, names) not in telling and any(
            chosen[other].family == chosen[rule].family and here & set(others.split(";")) for other, others in telling
        )

    return [
        Fused(
            rule,
            nodes[-1].outputs[0].name or "?",
            tuple(node.op_type for node in nodes),
            tuple(name for name in names.split(";") if name),
        )
        for (rule, names), nodes in groups.items()
        if not is_part(rule, names)
    ]


def _left_over(
    model: ir.Model, misses: Iterable[NearMiss], nearness: Nearness, chosen: Mapping[str, Rule]
) -> list[NearMiss]:
    """For each remaining node that is a mark of a family, the nearest miss at a value computed from it."""
    families: dict[str, set[str]] = {}
    for rule in chosen.values():
        families.setdefault(rule.family, set()).update(nearness.marks(rule))
    there: dict[tuple[str, str], NearMiss] = {}
    for miss in misses:
        rule_of = chosen.get(miss.rule)
        if rule_of is None or not miss.stands or rule_of.is_refinement or miss.refusal.code in POINTLESS:
            continue
        key = (rule_of.family, miss.site)
        if key not in there or nearness.order(miss) > nearness.order(there[key]):
            there[key] = miss
    left = _marked(model, families)
    return [found for node, family in left if (found := _behind(node, family, there)) is not None]


def _marked(model: ir.Model, families: Mapping[str, Collection[str]]) -> Iterator[tuple[ir.Node, str]]:
    """The remaining nodes that are marks of a family, each with that."""
    for node in walk.nodes(model):
        for family, marks in families.items():
            if node.op_type in marks:
                yield node, family


def _unused(model: ir.Model, nearness: Nearness, rules: Iterable[Rule]) -> list[Missed]:
    """For rules without any site or miss: the remaining marks from which nothing comes that a site could end with."""
    found: dict[str, Missed] = {}
    for rule in rules:
        for node, _ in _marked(model, {rule.family: nearness.marks(rule)}):
            following = {one.op_type for level in _downstream(node) for one in level}
            if following.isdisjoint(rule.matcher.heads):
                users = dict.fromkeys(words(user) for value in node.outputs for user in value.consumers())
                goes = " and ".join([*users][:MOST_USERS]) or "an output of the model"
                refusal = refuse("not_continued", node.outputs[0], found=goes, needed=rule.matcher.heads)
                miss = NearMiss(rule.name, node.outputs[0].name or "?", "pattern", 1, refusal, node, (node,))
                found.setdefault(miss.site, described(miss, rule.least))
    return [*found.values()]


def _downstream(node: ir.Node) -> Iterator[list[ir.Node]]:
    """A node, those that take its results, and so on, level by level."""
    level, seen = [node], {node}
    for _ in range(FURTHEST):
        yield level
        level = list({use.node for one in level for value in one.outputs for use in value.uses()} - seen)
        seen.update(level)


def _behind(node: ir.Node, family: str, there: Mapping[tuple[str, str], NearMiss]) -> NearMiss | None:
    """The miss of a family at the closest value downstream of a node that has one."""
    for level in _downstream(node):
        names = [value.name or "?" for one in level for value in one.outputs]
        misses = [there[family, name] for name in names if (family, name) in there]
        if misses:
            return max(misses, key=lambda miss: miss.matched)
    return None


def _preparing(catalogue: Catalogue, chosen: Mapping[str, Rule]) -> dict[str, Rule]:
    """The refinements in the families of the chosen rules."""
    families = {rule.family for rule in chosen.values()}
    known = (rule for rules in catalogue.passes().values() for rule in rules)
    return {rule.name: rule for rule in known if rule.is_refinement and rule.family in families}


def nearest(
    misses: Iterable[NearMiss],
    nearness: Nearness,
    chosen: Mapping[str, Rule],
    preparing: Mapping[str, Rule],
    left_over: Iterable[NearMiss] = (),
) -> list[Missed]:
    """The nearest miss of each family at each site, without those that add nothing new; then those of remaining marks.

    `preparing` are the refinements in the families of the chosen rules: one that was refused at the value at which a
    pattern stops is told instead, whether it was chosen or not.
    """
    best: dict[tuple[str, str], NearMiss] = {}
    prepared: dict[tuple[str, str], NearMiss] = {}
    settled: set[tuple[str, str]] = set()
    for miss in misses:
        if miss.step == "replacement" and miss.refusal.code == "needless" and miss.rule in chosen:
            settled.add((chosen[miss.rule].family, miss.site))
        if _stops_preparation(miss, preparing):
            prepared[preparing[miss.rule].family, miss.site] = miss
        if nearness.tells(miss):
            key = (chosen[miss.rule].family, miss.site)
            if key not in best or nearness.order(miss) > nearness.order(best[key]):
                best[key] = miss
    ordered = sorted(best.items(), key=lambda item: nearness.order(item[1]), reverse=True)
    kept: list[tuple[str, NearMiss]] = []
    for (family, _), miss in ordered:
        if not any(family == other and _same_place(miss, further) for other, further in kept):
            kept.append((family, miss))
    for miss in left_over:
        family = chosen[miss.rule].family
        if not any(family == other and (miss.site == told.site or _same_place(miss, told)) for other, told in kept):
            kept.append((family, miss))
    told = [
        _unprepared(family, miss, prepared) if miss.step == "pattern" else miss
        for family, miss in kept
        if (family, miss.site) not in settled or miss.step == "replacement"
    ]
    return [described(miss, (chosen if miss.rule in chosen else preparing)[miss.rule].least) for miss in told]


def _unprepared(family: str, miss: NearMiss, prepared: Mapping[tuple[str, str], NearMiss]) -> NearMiss:
    """The refusal of a refinement at the value at which a pattern stops, if there is one; else the miss.

    If no part of that value is what the pattern looks for, it is sought at the parts too: at what plain nodes compute it from.
    """
    name = miss.refusal.subject.name
    names = [name]
    if miss.refusal.code == "no_part":
        makers = dict.fromkeys(
            value.producer() for node in (miss.root, *miss.nodes) if node for value in node.inputs if value
        )
        level = [node for node in makers if node is not None and name in (value.name for value in node.outputs)]
        for _ in range(FURTHEST):
            inputs = [value for node in level for value in node.inputs if value is not None]
            names += [value.name or "?" for value in inputs]
            found = dict.fromkeys(value.producer() for value in inputs)
            level = [node for node in found if node is not None and node.op_type in PLAIN - {"MatMul"}]
    return next((prepared[family, name] for name in names if (family, name) in prepared), miss)


def _stops_preparation(miss: NearMiss, preparing: Mapping[str, Rule]) -> bool:
    """Whether a rule that brings values into the form that the fusions of its family ask for was refused in the end.

    If such a fusion stops at that value, this tells more than the value's producer.
    """
    refused = miss.step != "pattern" and miss.refusal.code not in POINTLESS
    return miss.rule in preparing and refused and miss.root is not None


def _same_place(miss: NearMiss, other: NearMiss) -> bool:
    """Whether two misses matched mostly the same nodes, such as roots above each other in one sum or product."""
    nodes, others = set(miss.nodes), set(other.nodes)
    return 2 * len(nodes & others) > min(len(nodes), len(others))


def described(miss: NearMiss, least: int) -> Missed:
    """A near miss as it is told; `least` is the minimum number of nodes of the rule's pattern."""
    assert miss.root is not None
    root = f"{miss.root.op_type} '{miss.root.name}'"
    names = tuple(node.name or node.op_type for node in miss.nodes)
    return Missed(miss.rule, miss.site, root, miss.step, miss.matched, least, miss.refusal, names)


def _absent(
    before: Counts,
    sought: Iterable[Rule],
    hits: Mapping[str, int],
    taken: Collection[str],
    unasked: Collection[NearMiss],
) -> dict[str, str]:
    """Why rules that were asked for have no site and no near miss.

    `hits` are those of all rules in the run. If a rule's sites were `taken`, those are the reason. `unasked` are the misses of
    rules whose operators are made only where `--force` asks for them.
    """
    present: Counter[str] = Counter()
    for operator, count in before.operators.items():
        present[operator.rpartition(".")[2]] += count
    reasons = {rule.name: _why_absent(rule, present, hits) + _why_unasked(rule, unasked) for rule in sought}
    return {name: why for name, why in reasons.items() if name not in taken or not why.startswith(_NO_SITE)}


def _why_unasked(rule: Rule, unasked: Iterable[NearMiss]) -> str:
    """The refusal of an operator that a rule makes, for a rule of its family, to be added to a reason; empty if there is none."""
    of_family = (miss.refusal for miss in unasked if miss.rule.partition(".")[0] == rule.family)
    refusal = next((one for one in of_family if one.needed in rule.targets), None)
    return "" if refusal is None else f"; {refusal.reason}; it would match if {refusal.remedy}"


def _why_absent(rule: Rule, present: Counter[str], hits: Mapping[str, int]) -> str:
    if rule.name in hits:
        count = hits[rule.name]
        where = "1 site" if count == 1 else f"{count} sites"
        return f"applied at {where}, where later rules or passes replaced its result (the table of `ortfuse optimize` names them)"
    siblings = [f"{name} ({count})" for name, count in hits.items() if name.partition(".")[0] == rule.family]
    if siblings:
        return f"the sites are those of other rules of the family: {', '.join(siblings)}"
    lacking = sorted(rule.matcher.required - present.keys())
    text = (
        f"the model has no {' and no '.join(lacking)}, which the pattern needs"
        if lacking
        else f"{_NO_SITE} {rule.formula}"
    )
    made = (name.rpartition(".")[2] for name in rule.targets)
    there = [f"{present[op_type]} {op_type}" for op_type in made if present[op_type] and op_type not in PLAIN]
    return text + (f"; what the rule makes is there already: {', '.join(there)}" if there else "")
