"""Run the test of a rule: on instances it must fire and be right, on near misses not fire or be right."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ortfuse.errors import RuleError
from ortfuse.rewrite import Rule, Variation
from ortfuse.rewrite.pattern.language import Op
from ortfuse.rewrite.rule import operators_of
from ortfuse.serialization import Record, derived, entry
from ortfuse.targets import Target, installed
from ortfuse.verification.rule_tests.build_instances import (
    OPSETS,
    Builder,
    element_type,
    exists,
    missing_at_all,
    opsets_for,
)
from ortfuse.verification.rule_tests.instance import Instance
from ortfuse.verification.rule_tests.near_miss_inputs import hidden
from ortfuse.verification.rule_tests.near_misses import Possible, evenly, near_misses, near_misses_with_less_known
from ortfuse.verification.rule_tests.rule_trial import Tried
from ortfuse.verification.rule_tests.run_instance import Rewritten, Runner, may_fire, rewrite
from ortfuse.verification.rule_tests.spelling_choices import Chooser, Coverage, spellings

OTHER_DTYPES = ("float32", "float16", "float64", "bfloat16", "int32", "int64")
OLDER_OPSETS = (*OPSETS, 11)

PAIRS = 24
"""The number of spellings built for pairs of options, beyond those that cover each option once."""


@dataclass
class RuleTestReport(Record):
    """The instances that were tried for one rule, and the failures; none if it passed."""

    rule: str
    instances: int = 0
    options: int = 0
    options_covered: int = 0
    pairs: int = 0
    pairs_covered: int = 0
    near_misses: int = 0
    near_misses_fired: int = 0
    counterexamples_tried: int = 0
    untriggered: list[str] = field(default_factory=list)
    """Instances that run but on which the rule does not fire, with the reason; not failures by themselves."""
    failures: list[str] = field(default_factory=list)
    counterexamples: dict[str, ir.Model] = field(default_factory=dict, metadata=entry(omit=True))
    """For each failure that a single model shows, that model."""

    @property
    @derived()
    def passed(self) -> bool:
        """Whether instances were found and nothing failed."""
        return self.instances > 0 and not self.failures

    @property
    def proved(self) -> bool:
        """The former name of `passed`."""
        return self.passed

    def fail(self, text: str, model: ir.Model | None) -> None:
        """Record a failure and the model that shows it."""
        self.failures.append(text)
        if model is not None:
            self.counterexamples.setdefault(text, model)

    @property
    def smallest(self) -> tuple[str, ir.Model] | None:
        """The first failure on a model with the fewest nodes, with that model."""
        return min(self.counterexamples.items(), key=lambda item: len(item[1].graph), default=None)


class _Enough(Exception):  # noqa: N818 - no error: ends a rule test whose witness has seen enough
    pass


Witness = Callable[[Tried], bool]
"""Called with every model that a rule is tried on; returns whether to continue."""


def run_rule_test(
    rule: Rule,
    target: Target | None = None,
    pairs: int = PAIRS,
    *,
    near_misses: bool = True,
    most_nodes: int | None = None,
    witness: Witness = lambda tried: True,
    judged: bool = True,
) -> RuleTestReport:
    """Try `rule` on instances of its pattern, on near misses of them and on its declared counterexamples.

    Every shape set is tried in every element type and opset, and every option of the pattern and of the rule test at least once;
    `pairs` more spellings cover as many pairs of options as possible. Without `near_misses` only the declared ones are tried:
    that says nothing about the pattern and the guards. With `most_nodes`, no more of them are tried than have so many nodes
    together, spread evenly over their kinds and places. Results are not `judged` where only the witness decides.
    """
    report = RuleTestReport(rule.name)
    if rule.spells_out and not {*operators_of(rule.pattern)} & {*rule.targets}:
        # The operator may be lowered on each target: the kernel, where there is one, tells whether that is right.
        rule = dataclasses.replace(rule, spells_out=False)
    run = _Run(rule, target or installed(), report, witness, judged)
    try:
        run.try_counterexamples()
        run.try_instances(pairs)
        if near_misses:
            run.try_near_misses(most_nodes)
    except _Enough:
        return report
    return report


class _Run:
    def __init__(self, rule: Rule, target: Target, report: RuleTestReport, witness: Witness, judged: bool) -> None:
        self.rule, self.target, self.report, self.witness, self.judged = rule, target, report, witness, judged
        self.coverage = Coverage()
        self.groups = [
            (number, dtype, opset)
            for number in range(len(rule.test.shape_sets()))
            for dtype in rule.test.dtypes
            for opset in opsets_for(rule)
        ]
        if not self.groups:
            raise RuleError(f"rule {rule.name}: no opset of {OPSETS} has {missing_at_all(rule)}")
        self.fired: dict[tuple[int, str, int], bool] = dict.fromkeys(self.groups, False)
        self.reasons: dict[tuple[int, str, int], str] = {}
        self.spelled: dict[tuple[tuple[str, int], ...], Instance] = {}

    def _try(self, instance: Instance, runner: Runner, exact: Callable[[], ir.Model] | None = None) -> Tried:
        """A model that the rule may be applied to, which is a near miss unless `exact` makes it in float64."""

        def rewritten() -> Rewritten:
            return rewrite(self.rule, instance.model, self.target, explain=exact is not None)

        matches = exact is not None or may_fire(self.rule, instance.model, self.target)
        tried = Tried(instance, runner, rewritten, is_near=exact is None, matches=matches, exact=exact)
        if not self.witness(tried):
            raise _Enough
        return tried

    # Instances

    def try_instances(self, pairs: int) -> None:
        for group in self.groups:
            self._attempt(Chooser(self._group_options(group)))
        spellings(self._attempt, self.coverage, pairs)
        for group, fired in self.fired.items():
            if not fired:
                self.report.fail(
                    f"no instance fires with {_group_text(group)}: {self.reasons.get(group, 'not tried')}", None
                )
        if any(self.fired.values()):
            self._report_coverage()

    def _group_options(self, group: tuple[int, str, int]) -> dict[str, int]:
        number, dtype, opset = group
        return {
            "shapes": number, "element type": list(self.rule.test.dtypes).index(dtype),
            "opset": opsets_for(self.rule).index(opset),
        }  # fmt: skip

    def _attempt(self, chooser: Chooser) -> bool:
        """Build what `chooser` says and try it; always true, to continue."""
        test, opsets = self.rule.test, opsets_for(self.rule)
        number = chooser.pick("shapes", [str(dict(shapes)) for shapes in test.shape_sets()])
        dtype = test.dtypes[chooser.pick("element type", test.dtypes)]
        opset = opsets[chooser.pick("opset", [str(one) for one in opsets])]
        instance = Builder(self.rule, number, element_type(dtype), opset, chooser).instance()
        self.coverage.learn(chooser)
        group = (number, dtype, opset)
        text = ", ".join([_group_text(group), *(
            f"{label}: {chooser.points[label].options[index]}" for label, index in chooser.made.items()
            if index and label not in ("shapes", "element type", "opset")
        )])  # fmt: skip
        instance.text = text

        def exact() -> ir.Model:
            return Builder(self.rule, number, ir.DataType.DOUBLE, opset, Chooser(chooser.made)).instance().model

        runner = Runner(instance.model, self.rule)
        if runner.run(instance.inputs(next(instance.bindings()), 0)) is None:
            self.reasons.setdefault(group, runner.refusal)
            return True
        tried = self._try(instance, runner, exact)
        if not tried.rewritten.hits:
            self.report.untriggered.append(f"{text}: {tried.rewritten.reason}")
            self.reasons[group] = tried.rewritten.reason
            return True
        self.report.instances += 1
        self.fired[group] = True
        self.coverage.cover(chooser)
        self.spelled.setdefault(tuple(sorted(chooser.made.items())), instance)
        if self.judged and (problem := tried.problem(self.rule, tried.rewritten)):
            self.report.fail(f"{text} {problem}", instance.model)
        return True

    def _report_coverage(self) -> None:
        report, coverage = self.report, self.coverage
        report.options, report.pairs = coverage.count()
        missing = {coverage.text(option) for option in coverage.uncovered()}
        report.options_covered, report.pairs_covered = report.options - len(missing), len(coverage.pairs)
        for text in sorted(missing - set(self.rule.test.uncovered)):
            self.report.fail(f"no instance covers {text}", None)
        for text in sorted(set(self.rule.test.uncovered) - missing):
            self.report.fail(
                f"the rule test calls {text} uncovered, but an instance covers it or no such option exists", None
            )

    # Near misses and counterexamples

    def try_near_misses(self, most_nodes: int | None) -> None:
        for possible in evenly(list(self._near_misses()), most_nodes):
            near = possible.made()
            if near is not None:
                self._try_near_miss(near)

    def _near_misses(self) -> Iterator[Possible]:
        seen: set[str] = set()
        for instance in self.spelled.values():
            yield from near_misses(instance, seen)
        first = next(iter(self.spelled.values()), None)
        if first is not None:
            yield from near_misses_with_less_known(first)
        yield from self._other_types_and_opsets()

    def _other_types_and_opsets(self) -> Iterator[Possible]:
        test = self.rule.test
        opset = opsets_for(self.rule)[0]
        for number in range(len(test.shape_sets())):
            for dtype in OTHER_DTYPES:
                if dtype not in test.dtypes:
                    instance = Builder(self.rule, number, element_type(dtype), opset).instance(f"in {dtype}")
                    yield Possible(instance, instance.text, _as_it_is)
                    if dtype in ("float16", "float64"):
                        yield from near_misses(instance, numbers_only=True)
            for other in OLDER_OPSETS:
                if other not in opsets_for(self.rule) and self._exists_at(other):
                    instance = Builder(self.rule, number, element_type(test.dtypes[0]), other).instance()
                    yield Possible(instance, f"at opset {other}", _as_it_is)

    def _exists_at(self, opset: int) -> bool:
        return all(exists(part, opset) for part in self.rule.pattern.walk() if isinstance(part, Op))

    def _try_near_miss(self, near: Instance, must_run: bool = False) -> None:
        self.report.near_misses += 1
        tried = self._try(near, Runner(near.model, self.rule))
        if must_run and not tried.runs:
            self.report.fail(f"near miss ({near.text}): the runtime refuses it: {tried.runner.refusal}", near.model)
        # A near miss is rewritten only if the runtime executes it: otherwise nothing can be said about the result.
        if not self.judged or not tried.matches or not tried.executed(self.rule) or not tried.rewritten.hits:
            return
        problem = tried.problem(self.rule, tried.rewritten)
        if problem is None:
            return
        self.report.near_misses_fired += 1
        if problem:
            self.report.fail(f"near miss ({near.text}) {problem}", near.model)

    def try_counterexamples(self) -> None:
        for name, variation in self.rule.test.counterexamples.items():
            self.report.counterexamples_tried += 1
            self._try_near_miss(_varied(self.rule, name, variation), must_run=True)


def _as_it_is(instance: Instance) -> bool:
    return True


def _varied(rule: Rule, name: str, variation: Variation) -> Instance:
    test = rule.test
    shapes: dict[str, Any] = {**test.shape_sets()[variation.shape_set], **variation.shapes}
    attributes = {key: [value] for key, value in variation.attributes.items()}
    scalars = {key: [value] for key, value in variation.scalars.items()}
    changed = dataclasses.replace(
        test,
        shapes={key: shape for key, shape in shapes.items() if shape is not None},
        attributes={**test.attribute_set(variation.shape_set), **attributes},
        alternatives=test.alternatives[variation.shape_set : variation.shape_set + 1],
        scalars={**test.scalars, **scalars},
        constants={**test.constants, **variation.constants},
        inputs={**test.inputs, **variation.inputs},
    )
    opset = variation.opset or opsets_for(rule)[0]
    dtype = element_type(variation.dtype or test.dtypes[0])
    chooser = _ByWords(variation.options)
    builder = Builder(dataclasses.replace(rule, test=changed), 0, dtype, opset, chooser)
    instance = builder.instance(f"counterexample {name!r}")
    if unknown := set(variation.options) - chooser.used:
        raise RuleError(f"rule {rule.name}, counterexample {name!r}: no option is called {sorted(unknown)}; "
                        f"there are {sorted(chooser.made)}")  # fmt: skip
    for position, value in enumerate(instance.model.graph.inputs):
        if value.name in variation.unknown:
            hidden(position)(instance)
    if variation.change is not None:
        variation.change(instance.model)
    instance.pinned.update(variation.sizes)
    instance.fixed.update(variation.fixed)
    return instance


class _ByWords(Chooser):
    """Select options by their description instead of their number."""

    def __init__(self, words: Mapping[str, str]) -> None:
        super().__init__()
        self._words = words
        self.used: set[str] = set()

    def pick(self, label: str, options: Any, forced: int | None = None) -> int:
        words = next((words for words in self._words if fnmatch.fnmatchcase(label, words)), None)
        if words is not None and forced is None:
            word = self._words[words]
            self.used.add(words)
            found = [index for index, option in enumerate(options) if option.startswith(word)]
            if not found:
                raise RuleError(f"a counterexample asks for {label}: {word}; the options are {list(options)}")
            forced = found[0]
        return super().pick(label, options, forced)


def _group_text(group: tuple[int, str, int]) -> str:
    return f"shape set {group[0]} in {group[1]} at opset {group[2]}"
