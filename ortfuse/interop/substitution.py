"""Replace each subgraph that computes one small model by another small model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.api.assess_optimization import Progress, silent
from ortfuse.api.optimize import optimize
from ortfuse.api.result import Result
from ortfuse.errors import InvalidModelError, OptionError, RuleError
from ortfuse.interop.function_rules import rule_from
from ortfuse.interop.patterns_from_models import Formula, corresponding, refuse_unknown, stem
from ortfuse.io.convert_model_objects import AnyModel
from ortfuse.ir.refusal import Refusal
from ortfuse.naming.former_arguments import former_arguments, former_fields
from ortfuse.options import AllOptions, Options, PipelineOptions
from ortfuse.pipeline.discover_rule_files import GIVEN
from ortfuse.rewrite import RULE_KEY, Exactness, Rule, RuleTest, missing_shapes
from ortfuse.rewrite.pattern import Guard, Match, Matcher, redundant
from ortfuse.rewrite.pattern.find import matches
from ortfuse.serialization import Record, derived, entry
from ortfuse.verification.explanation import Explanation
from ortfuse.verification.rule_tests import RuleTestReport, run_rule_test

_GATHERS = frozenset({"Gather", "GatherElements", "GatherND"})

_ALONG_ONE_AXIS = 13
"""The opset from which on Softmax and its kin are computed along one axis; before, over all axes from that one on."""


@former_arguments(proof="test")
def rule_from_models(
    find: AnyModel,
    replace: AnyModel,
    *,
    free: Sequence[str] = (),
    name: str | None = None,
    exactness: Exactness = Exactness.ROUNDING,
    source: str | None = None,
    test: RuleTest | None = None,
    **fields: Any,
) -> Rule:
    """A rule from two models: wherever the nodes of the first are found, they are replaced by those of the second.

    The inputs and outputs of the two correspond by name or, if no name is shared, by order. If there are several
    outputs, those not computed on the way to another share an input.

    Args:
        find: What is looked for; its inputs are any values of their element types and shapes (a number is that size, a name any
            size and the same everywhere), its initializers are exactly those numbers.
        replace: What is to be computed instead.
        free: The initializers, and attributes as `NODE.ATTRIBUTE`, that may be anything; see
        `ortfuse.interop.patterns_from_models`.
        name: The name of the rule, by default `substitute.` and the name of the first file.
        exactness: How far the results of the two may differ.
        source: The source of the formula, by default the names of the two.
        test: What the models do not say of instances; element types, and examples of what is free, are taken from them.
        **fields: Further fields of `Rule`.

    Raises:
        RuleError: The two do not go together, or one cannot be a formula; the message names the file and the value.
        OrtfuseError: One of the models cannot be used.
    """
    sought, made = Formula.of(find, free), Formula.of(replace, free)
    refuse_unknown(free, sought, made)
    # Where the newest opset writes it differently, that comes first: what the model's own opset has is preferred anyhow.
    forms = [formula for formula in (made.raised(free), made) if formula is not None]
    bodies = []
    for formula in forms:
        names, outputs = corresponding(sought, formula)
        bodies.append(formula.body(names, outputs))
    rule = rule_from(
        sought.body(),
        bodies,
        name=name or f"substitute.{stem(sought.name)}",
        exactness=exactness,
        source=source or f"given as models: {sought.name}, {made.name}",
        test=_completed(test or RuleTest(), sought),
        guards=(*_types(sought), *_meanings(sought), *fields.pop("guards", ())),
        **fields,
    )
    if missing := missing_shapes(rule):
        raise RuleError(
            f"{sought.name}: {', '.join(missing)} has no shape, so that nothing can be tried: declare one, with names for "
            "dimensions of any size"
        )
    contains_itself = any(True for _ in matches(made.model, Matcher(rule.pattern), Facts(made.model)))
    return dataclasses.replace(rule, guards=(*rule.guards, _once(rule.name))) if contains_itself else rule


def _completed(test: RuleTest, sought: Formula) -> RuleTest:
    """The rule test, with the element types of the model and the sizes of its constants."""
    dtypes = sought.dtypes()
    floats = [dtype for dtype in dtypes.values() if dtype.is_floating_point()]
    main = next(iter((*floats, *dtypes.values())), ir.DataType.FLOAT)
    others = {name: _word(dtype) for name, dtype in dtypes.items() if dtype != main}
    return dataclasses.replace(
        test,
        dtypes=test.dtypes if test.dtypes != RuleTest().dtypes else (_word(main),),
        inputs={**others, **_indices(sought), **test.inputs},
        shapes=[{**sought.sizes(), **given} for given in test.shape_sets()],
    )


def _indices(sought: Formula) -> dict[str, Any]:
    """The maker of inputs that are indices: numbers that exist even in small tensors."""
    found: dict[str, Any] = {}
    for value in sought.inputs:
        is_index = any(use.node.op_type in _GATHERS and use.idx == 1 for use in value.uses())
        if is_index and value.dtype is not None:
            found[value.name or ""] = _small_index(value.name or "", value.dtype)
    return found


def _small_index(name: str, dtype: ir.DataType) -> Callable[[Any], ir.Value]:
    def make(builder: Any) -> ir.Value:
        number = builder.input(name, builder.dims(name), dtype)
        return builder.node("Mod", [number, builder.constant(np.asarray(2, dtype.numpy()))]).outputs[0]  # type: ignore[no-any-return]

    return make


def _word(dtype: ir.DataType) -> str:
    """An element type as rule tests call it."""
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(dtype.name, dtype.name.lower())


def _types(sought: Formula) -> Iterable[Guard]:
    """A guard for the element type of each captured value."""
    for name, dtype in sought.dtypes().items():
        yield _has_type(name, dtype)


def _has_type(name: str, dtype: ir.DataType) -> Guard:
    def has_its_type(match: Match) -> Refusal | None:
        """The element type is the one that the model declares."""
        return match.unless_dtype(name, dtype)

    return has_its_type


def _meanings(sought: Formula) -> Iterable[Guard]:
    """A guard where an operator of the model means something else at other opsets."""
    if any(_changed_meaning(node) for node in sought.graph):
        is_new = sought.model.graph.opset_imports.get("", 1) >= _ALONG_ONE_AXIS

        @redundant("of two axes, both meanings may be the same")
        def has_its_meaning(match: Match) -> Refusal | None:
            """Softmax and its kin are meant as at the opset of the model."""
            for node in filter(_changed_meaning, match.nodes):
                if (version := match.facts.version(node)) and (version >= _ALONG_ONE_AXIS) != is_new:
                    needed = (
                        f"of opset {_ALONG_ONE_AXIS} or newer" if is_new else f"of an opset before {_ALONG_ONE_AXIS}"
                    )
                    return match.refuse("condition", "root", needed, f"{node.op_type} of opset {version}")
            return None

        yield has_its_meaning


def _changed_meaning(node: ir.Node) -> bool:
    return not node.domain and node.op_type in ("Softmax", "LogSoftmax", "Hardmax")


def _once(name: str) -> Guard:
    """A guard for a rule whose replacement holds what it looks for."""

    def is_not_its_own(match: Match) -> Refusal | None:
        """The rule has not made this itself."""
        nodes = [node for root in match.roots if (node := root.producer()) is not None]
        is_its_own = any(node.metadata_props.get(RULE_KEY) == name for node in nodes)
        return match.refuse("other_rule", "root", "what the rule has not made itself") if is_its_own else None

    return is_not_its_own


class RuleTestError(RuleError):
    """A pair of models does not compute the same, or nothing shows that it does; nothing was replaced.

    Attributes:
        report: What was tried, and what failed.
    """

    def __init__(self, report: RuleTestReport) -> None:
        failure = report.failures[0] if report.failures else "no instance of it runs"
        super().__init__(f"{report.rule} fails its rule test: {failure}")
        self.report = report


UnprovedError = RuleTestError
"""The former name of `RuleTestError`."""


@former_fields(proof="rule_test")
@dataclass(frozen=True)
class Substitution(Record):
    """The result of a substitution.

    Attributes:
        rule: The rule that the two models make.
        rule_test: The report of its rule test; `None` if there was none.
        result: The optimisation that applied it: the model, its checks and measurements.
        explanation: Where it was applied, and what stopped it elsewhere.
    """

    rule: Rule = field(metadata=entry(omit=True))
    rule_test: RuleTestReport | None
    result: Result = field(metadata=entry(inline=True))
    explanation: Explanation

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.rule.name}, {self.count} sites>"

    @property
    @derived("substituted")
    def count(self) -> int:
        """The number of sites at which it was applied."""
        return self.result.report.log.hits().get(self.rule.name, 0)

    @property
    @derived()
    def ok(self) -> bool:
        """Whether it was applied, and the result passed all checks."""
        return self.count > 0 and self.result.ok

    @property
    @derived("rule")
    def rule_name(self) -> str:
        """The name of the rule."""
        return self.rule.name

    @property
    @derived()
    def formula(self) -> str:
        """The rule as a formula."""
        return self.rule.formula


def substitute(
    model: AnyModel,
    find: AnyModel,
    replace: AnyModel,
    options: Options | None = None,
    *,
    free: Sequence[str] = (),
    untested: bool = False,
    unproved: bool = False,
    progress: Progress | None = None,
    **changes: Unpack[AllOptions],
) -> Substitution:
    """Replace one subgraph by another wherever a model has it. The input model is not changed.

    The two are made a rule (`ortfuse.rule_from_models`), which must pass its rule test before it is applied. Nothing else of the
    model is rewritten, unless `passes` says so: `"canonicalize, user"` brings the model to its canonical form first.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`.
        find: The subgraph to look for, as a model of any of these kinds.
        replace: What is to be there instead, likewise.
        options: As for `ortfuse.optimize`. Where nothing is found, nothing is written.
        free: The initializers and attributes (`NODE.ATTRIBUTE`) that may be anything; see `ortfuse.rule_from_models`.
        untested: Apply the pair without a rule test. The result must then be checked: give `verify`.
        unproved: The former name of `untested`.
        progress: Called with short messages about what is going on.
        **changes: Single options; they override those of `options`.

    Raises:
        RuleTestError: The pair fails its rule test.
        WrongResultError: With `verify="whole"`, the result does not compute what the model computes.
        OptionError: `untested` without `verify`, or an option is invalid.
        OrtfuseError: One of the models, or an option, cannot be used.
    """
    options, progress = Options.of(options, **changes), progress or silent
    untested = untested or unproved
    if untested and options.verify is None:
        raise OptionError("untested", 'a pair without a rule test has to be checked: add `verify`, "sites" or "whole"')
    rule = rule_from_models(find, replace, free=free)
    report = None
    if not untested:
        progress(f"testing {rule.name}")
        report = run_rule_test(rule)
        if not report.passed:
            raise RuleTestError(report)
    asked = options.with_(
        patterns=(*options.rules, rule), passes=GIVEN if options.pipeline == "auto" else options.pipeline,
        explain=(rule.name,),
    )  # fmt: skip
    first = Options(
        **{name: getattr(asked, name) for name in PipelineOptions.__annotations__}, explain=asked.explain, loaded=False
    )
    result = optimize(model, first, check_user=False, progress=progress)
    if result.report.log.hits().get(rule.name, 0):
        result = optimize(model, asked, progress=progress)
    if result.explanation is None:
        raise InvalidModelError(f"nothing can be substituted: {result.unchanged}")
    return Substitution(rule, report, result, result.explanation)
