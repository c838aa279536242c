"""Outcomes of the user's forced choices: the sites that follow them, and the obstacles at the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.ir.traits import PLAIN
from ortfuse.pipeline import Catalogue, RunReport
from ortfuse.pipeline.run_rules_of_forced_choices_first import following, forced_rules, is_pass
from ortfuse.rewrite import Exactness, NearMiss, Rule
from ortfuse.serialization import Record
from ortfuse.targets import KnownBug
from ortfuse.transforms import LEAVE, names_one
from ortfuse.verification.explanation.explain import explanation, fused_nodes

MOST_SITES = 3
"""The most sites named in one line."""


@dataclass(frozen=True)
class ForcedOutcome(Record):
    """The outcome of a forced choice.

    Attributes:
        name: The family or rule.
        operator: What its sites were to become, or `none`.
        followed: The sites that became that, or that a forced choice to `none` left as they are.
        not_followed: For each other site of the family: what it is now, and why.
        absent: Why the forced choice had no site; empty if it had one.
    """

    name: str
    operator: str
    followed: tuple[str, ...]
    not_followed: Mapping[str, str]
    absent: str = ""

    def lines(self) -> list[str]:
        """The outcome in words; sites with the same reason share a line."""
        wanted = f"forced {self.name}={self.operator}"
        found = [f"{wanted}: {self.absent}"] if self.absent else []
        if self.followed:
            found.append(f"{wanted}: followed at {_listed(self.followed)}")
        reasons: dict[str, list[str]] = {}
        for site, why in self.not_followed.items():
            reasons.setdefault(why.replace(f"'{site}'", "it"), []).append(site)
        return found + [f"{wanted}: NOT followed at {_listed(sites)}: {why}" for why, sites in reasons.items()]


def forced_outcomes(
    forced: Mapping[str, str],
    model: ir.Model,
    report: RunReport,
    catalogue: Catalogue,
    *,
    approximate: bool,
    quirks: frozenset[KnownBug],
    target: str,
) -> tuple[ForcedOutcome, ...]:
    """The outcome of each forced choice.

    Args:
        forced: The forced choices.
        model: The result of a run that recorded the near misses of the rules that the forced choices are about.
        report: The report of that run.
        catalogue: The rules that the run could apply.
        approximate: Whether approximations were allowed.
        quirks: The quirks of the target.
        target: The short name of the target.
    """
    rules = list(catalogue.rules())
    idle = _idle(report, catalogue, approximate, quirks, target)
    return tuple(
        _of_pass(name, wanted, report)
        if is_pass(name)
        else _left(name, report)
        if wanted == LEAVE
        else _outcome(name, wanted, model, report, catalogue, following(rules, name, wanted), idle)
        for name, wanted in forced.items()
    )


def _of_pass(name: str, wanted: str, report: RunReport) -> ForcedOutcome:
    """The outcome of a forced choice that asks for a pass, whose log and notes say what it did."""
    chosen = {site: obstacle for (author, site), obstacle in report.log.chosen.items() if author == name}
    absent = "" if wanted == LEAVE or report.log.changes[name] else "no site of it"
    otherwise = {site: obstacle for site, obstacle in chosen.items() if obstacle}
    otherwise |= {site: str(refusal) for (author, site), refusal in report.log.refused.items() if author == name}
    return ForcedOutcome(name, wanted, tuple(site for site in chosen if site not in otherwise), otherwise, absent)


def _outcome(
    name: str,
    wanted: str,
    model: ir.Model,
    report: RunReport,
    catalogue: Catalogue,
    makers: Sequence[Rule],
    idle: Mapping[str, str],
) -> ForcedOutcome:
    family = [rule.name for rule in forced_rules(list(catalogue.rules()), name)]
    at_work = [rule.name for rule in makers if rule.name not in idle]
    why_idle = list(dict.fromkeys(idle[rule.name] for rule in makers if rule.name in idle))
    followed: list[str] = []
    otherwise: dict[str, str] = {}
    for (rule, originals), nodes in fused_nodes(model, family).items():
        site, made = nodes[-1].outputs[0].name or "?", [_full_name(node) for node in nodes]
        telling = [operator for operator in dict.fromkeys(made) if operator.rpartition(".")[2] not in PLAIN]
        if names_one(wanted, made):
            followed.append(site)
        elif telling:
            why = _stopped(nodes, originals.split(";"), report, at_work) if at_work else []
            otherwise[site] = f"{rule} made it {', '.join(telling)}: {'; '.join([*why, *why_idle])}"
    found = explanation(model, report, catalogue, [name])
    for miss in (miss for miss in found.missed if miss.site not in followed):
        why = [miss.refusal.reason] if at_work else []
        otherwise.setdefault(miss.site, f"left as it was: {'; '.join([*why, *why_idle])}")
    if followed or otherwise:
        return ForcedOutcome(name, wanted, tuple(followed), otherwise)
    reasons = why_idle if not at_work else list(dict.fromkeys(found.absent.values()))
    return ForcedOutcome(name, wanted, (), {}, "; ".join(reasons) or "no site of it")


def _full_name(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _stopped(nodes: Sequence[ir.Node], originals: Sequence[str], report: RunReport, makers: Sequence[str]) -> list[str]:
    """The refusals of the rules that would have followed the forced choice at a site that another rule fused."""
    values = {output.name for node in nodes for output in node.outputs}
    nearest: dict[str, NearMiss] = {}
    for miss in report.misses:
        here = miss.site in values or {node.name or node.op_type for node in miss.nodes} & set(originals)
        if miss.rule in makers and here and (miss.rule not in nearest or miss.matched >= nearest[miss.rule].matched):
            nearest[miss.rule] = miss
    reasons = [f"{rule}: {miss.refusal.reason}" for rule, miss in nearest.items()]
    reasons += [
        f"{rule}: {why.reason}" for (rule, site), why in report.log.refused.items() if rule in makers and site in values
    ]
    return reasons or [f"it is not what {' or '.join(makers)} looks for"]


def _left(name: str, report: RunReport) -> ForcedOutcome:
    """The outcome of a forced choice to `none`, which holds wherever a rule would have been applied."""
    sites = dict.fromkeys(
        miss.site
        for miss in report.misses
        if miss.refusal.code == "forced" and miss.stands and name in (miss.rule, miss.rule.partition(".")[0])
    )
    return ForcedOutcome(name, LEAVE, tuple(sites), {}, "" if sites else "no site of it")


def _idle(
    report: RunReport, catalogue: Catalogue, approximate: bool, quirks: frozenset[KnownBug], target: str
) -> dict[str, str]:
    """The rules that the run did not try at all, each with the reason."""
    run = {leaf.name.partition("{")[0] for entry in report.passes for leaf in entry.leaves()}
    idle: dict[str, str] = {}
    for_others = catalogue.for_others(target)
    for pass_name, rules in catalogue.passes().items():
        for rule in rules:
            if pass_name not in run:
                idle[rule.name] = f"the pipeline does not run {pass_name}, with {rule.name}"
            elif rule.exactness is Exactness.APPROXIMATE and not approximate:
                idle[rule.name] = f"{rule.name} is an approximation: --approximate allows it"
            elif rule.exactness is Exactness.LOSSY:
                idle[rule.name] = f"{rule.name} lowers the precision, which is done under a bound on the error alone"
            elif rule.name in for_others:
                idle[rule.name] = (
                    f"{rule.name} is for the target {' or '.join(for_others[rule.name])}, and not for {target}"
                )
            elif rule.because is not None and rule.because not in quirks:
                idle[rule.name] = f"{rule.name} is for runtimes that the target is not one of"
    return idle


def _listed(sites: Sequence[str]) -> str:
    more = f" and {len(sites) - MOST_SITES} more" if len(sites) > MOST_SITES else ""
    return f"{len(sites)} site{'s' if len(sites) > 1 else ''} ({', '.join(sites[:MOST_SITES])}{more})"
