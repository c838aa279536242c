"""Mutation testing of rules: a mutant is a rule with one of its conditions removed, which its rule test should notice.

A condition is a guard, the check of a variable or an attribute, or the requirement that a variable is constant, that a
dimension is the same in two places, or that a dimension is a number.
"""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
from collections import Counter
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from ortfuse.rewrite import Rule
from ortfuse.rewrite.pattern.language import Attr, Op, Pattern, Var
from ortfuse.rewrite.pattern.rearrangement import Rearrange
from ortfuse.rewrite.pattern.redundant_guard_decorator import redundant_because
from ortfuse.targets import Target, installed
from ortfuse.verification.rule_tests.rule_test_runner import run_rule_test
from ortfuse.verification.rule_tests.rule_trial import Tried
from ortfuse.verification.rule_tests.run_instance import Rewritten, rewrite


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A rule, the `original`, without `condition`."""

    original: Rule
    condition: str
    rule: Rule
    redundant: str | None = None
    """Why the rule is right without the condition, if the condition itself declares that."""
    is_shared_size: bool = False
    """Whether the condition is that two sizes are equal, which the pattern's operators may demand by themselves."""

    @property
    def name(self) -> str:
        """Rule and condition: `noop.cast without guard keeps_dtype`."""
        return f"{self.rule.name} without {self.condition}"


def mutants(rule: Rule) -> Iterator[Mutant]:
    """Every mutant of `rule`: the rule without one of its conditions."""
    for index, guard in enumerate(rule.guards):
        fewer = (*rule.guards[:index], *rule.guards[index + 1 :])
        name = f"guard {_guard_name(rule, index, guard)}"
        yield Mutant(rule, name, dataclasses.replace(rule, guards=fewer), redundant_because(guard))
    variables = {part.name: part for part in rule.pattern.walk() if isinstance(part, Var)}
    for name in sorted(variables):
        found = [part for part in rule.pattern.walk() if isinstance(part, Var) and part.name == name]
        if any(part.check for part in found):
            yield Mutant(rule, f"check of {name}", _without_check(rule, name))
        if any(part.constant for part in found):
            yield Mutant(rule, f"demand that {name} is constant", _without_constness(rule, name))
    for name in _shared_dimensions(rule.pattern):
        yield Mutant(rule, f"dimension {name}", _without_dimension(rule, name), is_shared_size=True)
    for name in sorted({wanted.name for wanted in _attributes(rule.pattern) if wanted.check is not None}):
        yield Mutant(rule, f"check of attribute {name}", _without_attribute_check(rule, name))


def _guard_name(rule: Rule, index: int, guard: object) -> str:
    """The name of the guard function, or of the function that made it; guards with the same name are numbered."""

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
    """A copy of a rule with copied patterns, and these patterns; what is shared in the original is shared in the copy."""
    pattern, replacements, intermediates = copy.deepcopy((rule.pattern, rule.replacements, dict(rule.intermediates)))
    changed = dataclasses.replace(rule, pattern=pattern, replace=replacements, intermediates=intermediates)
    emitted = [made for one in changed.replacements for made in changed.intermediates_with(one).values()]
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


def _shapes(pattern: Pattern) -> dict[object, list[Pattern]]:
    """The parts of a pattern that state shapes, grouped if they state the same one: a variable and its rearrangements."""
    found: dict[object, list[Pattern]] = {}
    for part in pattern.walk():
        named = part.inner if isinstance(part, Rearrange) else part
        if _names(part):
            found.setdefault(("variable", named.name) if isinstance(named, Var) else id(part), []).append(part)
    return found


def _names(part: Pattern) -> set[str]:
    shapes = [part.axes, part.before, part.after] if isinstance(part, Rearrange) else [part.axes]
    return {name for shape in shapes if shape is not None for name in shape.names()}


def _shared_dimensions(pattern: Pattern) -> list[str]:
    """The dimensions that occur in several shapes."""
    together = (set().union(*map(_names, parts)) for parts in _shapes(pattern).values())
    counts = Counter(name for names in together for name in names)
    return sorted(name for name, count in counts.items() if count > 1)


def _without_dimension(rule: Rule, name: str) -> Rule:
    """The rule with a dimension renamed everywhere but in the first shape that has it."""
    changed, _ = _copied(rule)
    having = [parts for parts in _shapes(changed.pattern).values() if any(name in _names(part) for part in parts)]
    for number, parts in enumerate(having):
        names = {name: f"{name}{'_' * number}"}
        for part in parts:
            part.axes = part.axes.renamed(names) if part.axes is not None else None
            if isinstance(part, Rearrange):
                part.before, part.after = part.before.renamed(names), part.after.renamed(names)
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
    """The number of mutants that rule tests noticed; `redundant` ones need not be, `stale` ones are wrongly declared redundant.

    Two sizes that a pattern demands to be equal often are so in every model that runs at all, as its operators imply it: a
    mutant without the demand that acts where the rule does not, but never wrongly, is `implied`.
    """

    mutants: int = 0
    noticed: int = 0
    redundant: int = 0
    implied: list[str] = dataclasses.field(default_factory=list)
    unnoticed: list[str] = dataclasses.field(default_factory=list)
    stale: list[str] = dataclasses.field(default_factory=list)

    def add(self, mutant: Mutant, noticed: bool, acted: int = 0) -> None:
        """Count one mutant, which `acted` otherwise than the rule on so many models without being wrong."""
        excused = reason(mutant) is not None
        self.mutants += 1
        self.noticed += noticed
        self.redundant += excused and not noticed
        if not noticed and not excused:
            (self.implied if mutant.is_shared_size and acted else self.unnoticed).append(mutant.name)
        if noticed and excused:
            self.stale.append(mutant.name)

    @property
    def share(self) -> float:
        """The share of noticed mutants among those that a rule test can notice."""
        relevant = self.mutants - self.redundant - len(self.implied)
        return self.noticed / relevant if relevant else 1.0


def reason(mutant: Mutant) -> str | None:
    """Why the rule is right without the condition, as the condition or the rule test declares; `None` if neither does."""
    if mutant.redundant is not None:
        return mutant.redundant
    declared = mutant.rule.test.redundant.items()
    return next((why for words, why in declared if fnmatch.fnmatchcase(mutant.condition, words)), None)


class Trial:
    """A witness of a rule test: tries mutants of the rule on every model that the rule itself is tried on.

    Attributes:
        found: The conditions whose removal was noticed, each with a description of the first counterexample.
        acted: For each condition, on how many models its mutant did otherwise than the rule without being wrong.
    """

    def __init__(self, mutants: Iterable[Mutant], target: Target | None = None) -> None:
        self.found: dict[str, str] = {}
        self.acted: Counter[str] = Counter()
        self._left, self._target = list(mutants), target or installed()

    def see(self, tried: Tried) -> bool:
        """Try the remaining mutants on a model; false once none is left."""
        self._left = [mutant for mutant in self._left if not self._is_wrong(mutant, tried)]
        return bool(self._left)

    def _is_wrong(self, mutant: Mutant, tried: Tried) -> bool:
        rewritten = rewrite(mutant.rule, tried.instance.model, self._target)
        if not rewritten.hits or _same(rewritten, tried.rewritten):
            return False
        problem = tried.problem(mutant.rule, rewritten)
        if problem:
            self.found[mutant.condition] = f"{tried.instance.text} {problem}"
        else:
            self.acted[mutant.condition] += 1
        return bool(problem)


def _same(one: Rewritten, other: Rewritten) -> bool:
    """Whether two rules did the same: a mutant is judged only by what the original rule would not have done."""
    if not other.hits or one.error is not None or other.error is not None:
        return False
    return bool(ir.to_proto(one.model) == ir.to_proto(other.model))


def counterexample(mutant: Mutant, target: Target | None = None) -> str | None:
    """A description of the first model tried by the rule test of the original on which the mutant is wrong; `None` if none."""
    trial = Trial([mutant], target)
    run_rule_test(mutant.original, target, witness=trial.see, judged=False)
    return trial.found.get(mutant.condition)
