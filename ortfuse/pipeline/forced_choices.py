"""Lets the rules that follow a pin go first.

A family may have several ways to a site: one rule makes the pinned operator of the nodes as they were exported, another rule
of the family would make something else of them before. Costs do not count where an operator is pinned, nor does the order in
which the pipeline usually tries the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ortfuse.errors import PipelineError
from ortfuse.naming import name_today
from ortfuse.pipeline.steps import Repeated, Single, Step
from ortfuse.rewrite import Rule
from ortfuse.transforms import LEAVE, DeadCodeElimination, HorizontalMatMulFusion, RulePass, check_pins, names_one

PASS = "pins"
"""The name of the pass that runs such rules before the others of their family."""


_ON_REQUEST = {kind.name: kind for kind in (HorizontalMatMulFusion,)}
"""Passes that are run where a pin asks for what they make."""


def is_pass(name: str) -> bool:
    """Whether pins of this name ask for a pass."""
    return name in _ON_REQUEST


def checked(pins: Mapping[str, str], rules: Iterable[Rule]) -> dict[str, str]:
    """Check that some rule or pass can follow each pin, and return the pins by the names of today.

    Raises:
        PipelineError: There is no such rule, family or pass, or none makes the operator.
    """
    rules = list(rules)
    known = {*_ON_REQUEST, *(name for rule in rules for name in (rule.name, rule.family))}
    pins = {name_today(name, ("rules", "families", "passes"), known): pin for name, pin in pins.items()}
    for name, kind in _ON_REQUEST.items():
        if name in pins and pins[name] != LEAVE and not names_one(pins[name], kind.makes):
            raise PipelineError(
                f"pin {name}={pins[name]}: the pass {name} makes {', '.join(kind.makes)}; {LEAVE} leaves it out"
            )
    check_pins({name: pin for name, pin in pins.items() if name not in _ON_REQUEST}, rules)
    return pins


def with_pinned_passes(steps: tuple[Step, ...], pins: Mapping[str, str]) -> tuple[Step, ...]:
    """The steps with the passes that pins ask for behind them."""
    asked = [kind for name, kind in _ON_REQUEST.items() if pins.get(name, LEAVE) != LEAVE]
    further = [*(Single(kind.name, kind()) for kind in asked), Single(DeadCodeElimination.name, DeadCodeElimination())]
    return (*steps, *further) if asked else steps


def pinned_rules(rules: Sequence[Rule], name: str) -> list[Rule]:
    """The rules that a pin of this name, a rule or a family, is about."""
    return [rule for rule in rules if name in (rule.name, rule.family)]


def following(rules: Sequence[Rule], name: str, pin: str) -> list[Rule]:
    """The rules that a pin is about and that make its operator."""
    return [rule for rule in pinned_rules(rules, name) if pin != LEAVE and names_one(pin, rule.targets)]


def pins_first(steps: tuple[Step, ...], pins: Mapping[str, str]) -> tuple[Step, ...]:
    """The steps of a pipeline with the rules that follow a pin before all others of their family, if the pipeline has both."""
    rules = [rule for found in _rule_passes(steps) for rule in found.rules if rule.name not in found.without.split()]
    makers = {rule.name: rule for name, pin in pins.items() for rule in following(rules, name, pin)}
    first = tuple(rule for rule in makers.values() if not rule.is_refinement)
    rivals = {rule.name for name in pins for rule in pinned_rules(rules, name)} - makers.keys()
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
