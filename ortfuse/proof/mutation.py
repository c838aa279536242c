"""Mutants of a rule: the rule with one of its conditions taken away, which its proof should notice.

A condition is a guard, the check of a variable or an attribute, or the demand that a variable is a constant.
"""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
from collections.abc import Collection, Iterator

from ortfuse.pattern.language import Attr, Op, Pattern, Var
from ortfuse.proof.prove import prove
from ortfuse.rewrite import Rule
from ortfuse.target import Target


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A rule that lacks `condition`."""

    rule: Rule
    condition: str

    @property
    def name(self) -> str:
        """Rule and condition: `noop.cast without guard keeps_dtype`."""
        return f"{self.rule.name} without {self.condition}"


def mutants(rule: Rule) -> Iterator[Mutant]:
    """Every rule that `rule` becomes by losing one condition."""
    for index, guard in enumerate(rule.guards):
        fewer = (*rule.guards[:index], *rule.guards[index + 1 :])
        yield Mutant(dataclasses.replace(rule, guards=fewer), f"guard {_guard_name(rule, index, guard)}")
    variables = {part.name: part for part in rule.pattern.walk() if isinstance(part, Var)}
    for name in sorted(variables):
        found = [part for part in rule.pattern.walk() if isinstance(part, Var) and part.name == name]
        if any(part.check for part in found):
            yield Mutant(_without_check(rule, name), f"check of {name}")
        if any(part.constant for part in found):
            yield Mutant(_without_constness(rule, name), f"demand that {name} is constant")
    for name in sorted({wanted.name for wanted in _attributes(rule.pattern) if wanted.check is not None}):
        yield Mutant(_without_attribute_check(rule, name), f"check of attribute {name}")


def _guard_name(rule: Rule, index: int, guard: object) -> str:
    """The function's name, or that of the function which made it; a number tells guards of one name apart."""

    def plain(function: object) -> str:
        name = str(getattr(function, "__qualname__", "guard"))
        return name.partition(".<locals>")[0] if ".<locals>" in name else name

    same = [position for position, other in enumerate(rule.guards) if plain(other) == plain(guard)]
    name = plain(guard).replace("<lambda>", "lambda")
    return name if len(same) == 1 else f"{name} ({same.index(index) + 1})"


def _attributes(pattern: Pattern) -> Iterator[Attr]:
    for part in pattern.walk():
        if isinstance(part, Op):
            yield from (wanted for wanted in part.attributes.values() if isinstance(wanted, Attr))


def _copied(rule: Rule) -> tuple[Rule, list[Pattern]]:
    """A rule with patterns of its own, and all of these; a pattern shared in the original is shared in the copy."""
    pattern, replacements, emits = copy.deepcopy((rule.pattern, rule.replacements, dict(rule.emits)))
    changed = dataclasses.replace(rule, pattern=pattern, replace=replacements, emits=emits)
    emitted = [made for one in changed.replacements for made in changed.emitted_with(one).values()]
    return changed, [part for root in (pattern, *replacements, *emitted) for part in root.walk()]


def _without_check(rule: Rule, name: str) -> Rule:
    changed, parts = _copied(rule)
    for part in parts:
        if isinstance(part, Var) and part.name == name:
            part.check = None
    return changed


def _without_constness(rule: Rule, name: str) -> Rule:
    changed, parts = _copied(rule)
    for part in parts:
        if isinstance(part, Var) and part.name == name:
            part.constant = False
    return changed


def _without_attribute_check(rule: Rule, name: str) -> Rule:
    changed, parts = _copied(rule)
    for part in parts:
        if isinstance(part, Op):
            for wanted in part.attributes.values():
                if isinstance(wanted, Attr) and wanted.name == name:
                    wanted.check = None
    return changed


@dataclasses.dataclass
class Score:
    """How many mutants their proofs noticed; `redundant` ones need not be, `stale` ones are called redundant and are not."""

    mutants: int = 0
    noticed: int = 0
    redundant: int = 0
    unnoticed: list[str] = dataclasses.field(default_factory=list)
    stale: list[str] = dataclasses.field(default_factory=list)

    def add(self, mutant: Mutant, noticed: bool) -> None:
        """Count one mutant."""
        excused = reason(mutant) is not None
        self.mutants += 1
        self.noticed += noticed
        self.redundant += excused and not noticed
        if not noticed and not excused:
            self.unnoticed.append(mutant.name)
        if noticed and excused:
            self.stale.append(mutant.name)

    @property
    def share(self) -> float:
        """The share of noticed mutants among those that a proof can notice."""
        relevant = self.mutants - self.redundant
        return self.noticed / relevant if relevant else 1.0


def reason(mutant: Mutant) -> str | None:
    """Why the rule is right without the condition, as its proof declares; `None` if it does not."""
    declared = mutant.rule.proof.redundant.items()
    return next((why for words, why in declared if fnmatch.fnmatchcase(mutant.condition, words)), None)


def is_noticed(mutant: Mutant, target: Target | None = None, known: Collection[str] = ()) -> bool:
    """Whether the proof of the mutant fails otherwise than the rule's own, whose failures are `known`."""
    return not prove(mutant.rule, target, first_failure=True, known=known).proved
