"""Run the rules that make a forced operator before the others of their family.

A family may have several ways to a site: one rule makes the forced operator of the nodes as they were exported, another rule
of the family would make something else of them before. Costs do not count where an operator is forced, nor does the order in
which the pipeline usually tries the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ortfuse.errors import PipelineError
from ortfuse.naming import name_today
from ortfuse.pipeline.built_in_passes import BUILT_IN
from ortfuse.pipeline.pipeline_text import Call
from ortfuse.pipeline.registry import make_pass
from ortfuse.pipeline.steps import Repeated, Single, Step
from ortfuse.rewrite import Rule
from ortfuse.transforms import LEAVE, RulePass, check_forced, names_one

PASS = "forced"
"""The name of the pass that runs such rules before the others of their family."""


_ON_REQUEST = ("horizontal_matmul_fusion",)
"""Passes that are run where `--force` asks for what they make."""

_CHOOSING = ("padding_free",)
"""Passes that other options ask for, and that make the operators that `--force` names."""

_PASSES = (*_ON_REQUEST, *_CHOOSING)


def is_pass(name: str) -> bool:
    """Whether forced choices of this name ask for a pass."""
    return name in _PASSES


def checked(forced: Mapping[str, str], rules: Iterable[Rule]) -> dict[str, str]:
    """Check that some rule or pass can follow each forced choice, and return the forced choices by the names of today.

    Raises:
        PipelineError: There is no such rule, family or pass, or none makes the operator.
    """
    rules = list(rules)
    known = {*_PASSES, *(name for rule in rules for name in (rule.name, rule.family))}
    forced = {name_today(name, ("rules", "families", "passes"), known): wanted for name, wanted in forced.items()}
    for name in BUILT_IN.keys() & forced.keys() - known:
        raise PipelineError(
            f"force {name}={forced[name]}: {name} is a pass, and choices are of rules and families;"
            f""" --passes 'all{{without="{name}"}}' leaves it out"""
        )
    for name in _PASSES:
        wanted = forced.get(name, LEAVE)
        makes = () if wanted == LEAVE else BUILT_IN[name].loaded().makes
        if wanted != LEAVE and not names_one(wanted, makes):
            raise PipelineError(
                f"force {name}={wanted}: the pass {name} makes {', '.join(makes)}; {LEAVE} leaves it out"
            )
    check_forced({name: wanted for name, wanted in forced.items() if name not in _PASSES}, rules)
    return forced


def with_forced_passes(steps: tuple[Step, ...], forced: Mapping[str, str]) -> tuple[Step, ...]:
    """The steps with the passes that `--force` asks for behind them."""
    asked = [name for name in _ON_REQUEST if forced.get(name, LEAVE) != LEAVE]
    further = [Single(name, make_pass(Call(name, {}))) for name in (*asked, "dce")]
    return (*steps, *further) if asked else steps


def forced_rules(rules: Sequence[Rule], name: str) -> list[Rule]:
    """The rules that a forced choice of this name, a rule or a family, is about."""
    return [rule for rule in rules if name in (rule.name, rule.family)]


def following(rules: Sequence[Rule], name: str, wanted: str) -> list[Rule]:
    """The rules that a forced choice is about and that make its operator."""
    return [rule for rule in forced_rules(rules, name) if wanted != LEAVE and names_one(wanted, rule.targets)]


def forced_first(steps: tuple[Step, ...], forced: Mapping[str, str]) -> tuple[Step, ...]:
    """Put the rules that follow a forced choice before the others of their family, if the pipeline has both."""
    if not forced:
        return steps
    rules = [
        rule.loaded() for found in _rule_passes(steps) for rule in found.rules if rule.name not in found.without.split()
    ]
    makers = {rule.name: rule for name, wanted in forced.items() for rule in following(rules, name, wanted)}
    first = tuple(rule for rule in makers.values() if not rule.is_refinement)
    rivals = {rule.name for name in forced for rule in forced_rules(rules, name)} - makers.keys()
    if not (first and rivals):
        return steps
    return _before(steps, Single(PASS, RulePass(PASS, first)), rivals)[0]


def _rule_passes(steps: Sequence[Step]) -> Iterator[RulePass]:
    for step in steps:
        if isinstance(step, Repeated):
            yield from _rule_passes(step.steps)
        elif isinstance(step.run, RulePass):
            yield step.run


def _before(steps: tuple[Step, ...], added: Single, rivals: set[str]) -> tuple[tuple[Step, ...], bool]:
    """The steps with one more before the first that runs any of these rules, and whether there is such a step."""
    for index, step in enumerate(steps):
        if isinstance(step, Repeated):
            inner, found = _before(step.steps, added, rivals)
            if found:
                return (*steps[:index], replace(step, steps=inner), *steps[index + 1 :]), True
        elif isinstance(step.run, RulePass) and any(rule.name in rivals for rule in step.run.rules):
            return (*steps[:index], added, *steps[index:]), True
    return steps, False
