"""Find sites where a rule matched but another rule, another pass or the cost model prevailed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ortfuse.ir.refusal import Subject, refuse
from ortfuse.pipeline import RunReport
from ortfuse.rewrite import Event, NearMiss, Rule
from ortfuse.rewrite.pattern.min_nodes import least_operators, uncovered
from ortfuse.rewrite.rule import HALF
from ortfuse.serialization import Record
from ortfuse.transforms import Choice
from ortfuse.verification.explanation.near_miss_relevance import FEWEST

MOST_SITES = 3
"""The most sites named in one line."""


@dataclass(frozen=True)
class Taken(Record):
    """Sites that a rule did not get, and whose nodes something else has rewritten since.

    Attributes:
        rule: The rule.
        sites: The values at the root, by the names that they had then.
        lost_to: The rules and passes that took them, each with the number of sites.
        reason: Why the rule did not take them when it could, such as their cost; empty if another one came first.
        remedy: What would have it take them all the same.
    """

    rule: str
    sites: tuple[str, ...]
    lost_to: Mapping[str, int]
    reason: str = ""
    remedy: str = ""

    def text(self) -> str:
        """In words, without the name of the rule."""
        count = len(self.sites)
        more = f" and {count - MOST_SITES} more" if count > MOST_SITES else ""
        where = f"{count} site{'' if count == 1 else 's'} ({', '.join(self.sites[:MOST_SITES])}{more})"
        takers = ", ".join(f"{name} ({hits})" for name, hits in self.lost_to.items())
        if not self.reason:
            return f"{where} taken by {takers}"
        return f"{where} left: {self.reason}; {self.remedy}" + (f"; since rewritten by {takers}" if takers else "")


def taken_sites(report: RunReport, chosen: Mapping[str, Rule], told: Collection[tuple[str, str]]) -> tuple[Taken, ...]:
    """The sites that rules did not get.

    Args:
        report: The report of a run that recorded near misses.
        chosen: The rules that were asked for, by name.
        told: The rules and sites that are told otherwise: those that were fused, and misses that still stand.
    """
    found = [*_by_cost(report, chosen, told)]
    known = {*told, *((one.rule, site) for one in found for site in one.sites)}
    found += _by_others(report.misses, chosen, known)
    rest = [rule for name, rule in chosen.items() if name not in {one.rule for one in found}]
    told_rules = {name for name, _ in told}
    return (*found, *_in_events(report.events, [rule for rule in rest if rule.name not in told_rules]))


def _by_cost(report: RunReport, chosen: Mapping[str, Rule], told: Collection[tuple[str, str]]) -> Iterator[Taken]:
    """The sites that cost decided against."""
    sites_of: dict[str, tuple[Choice, list[str]]] = {}
    for choice in report.choices:
        if not choice.applied and choice.rule in chosen:
            left = [site for site in choice.sites if (choice.rule, site) not in told]
            sites_of.setdefault(choice.rule, (choice, []))[1].extend(left)
    for name, (choice, sites) in sites_of.items():
        if sites:
            by: dict[str, int] = {}
            for site in sites:
                taker = _last_at(site, report.events, name)
                if taker:
                    by[taker] = by.get(taker, 0) + 1
            reason = refuse("slower", Subject("rule", name), found=str(choice.estimate)).reason
            wanted = "" if "," in choice.produces else f" {name.partition('.')[0]}={choice.produces}"
            yield Taken(name, tuple(dict.fromkeys(sites)), by, reason, f"--force{wanted} takes it whatever it costs")


def _last_at(site: str, events: Iterable[Event], rule: str) -> str:
    """The last of the other rules that rewrote a site."""
    takers = [event.rule for event in events if event.site == site and event.rule != rule]
    return takers[-1] if takers else ""


def _by_others(
    misses: Iterable[NearMiss], chosen: Mapping[str, Rule], told: Collection[tuple[str, str]]
) -> Iterator[Taken]:
    """The sites that came near until something else took their nodes."""
    by: dict[str, dict[str, str]] = {}
    for miss in misses:
        rule = chosen.get(miss.rule)
        if rule is None or miss.stands or (miss.rule, miss.site) in told:
            continue
        near = miss.step != "pattern" or miss.matched >= max(FEWEST, HALF * rule.least)
        if near and miss.taker not in ("", miss.rule):
            by.setdefault(miss.rule, {})[miss.site] = miss.taker
    for name, sites in by.items():
        yield Taken(name, tuple(sites), _counted(sites.values()))


def _in_events(events: Iterable[Event], rules: Iterable[Rule]) -> Iterator[Taken]:
    """The sites of other families that had all the operators of a rule that was never tried there."""
    events = list(events)
    for rule in rules:
        if rule.least < FEWEST or not rule.matcher.required & rule.telling:
            continue
        needed = least_operators(rule.pattern)
        sites = {
            event.site: event.rule
            for event in events
            if len(event.removed) >= len(needed)
            and event.rule.partition(".")[0] != rule.family
            and not uncovered(needed, event.removed)
        }
        if sites:
            yield Taken(rule.name, tuple(sites), _counted(sites.values()))


def _counted(names: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found
