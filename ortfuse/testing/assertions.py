"""Assertions about models: `assert_fused` and `assert_equal`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ortfuse.api.result import Result
    from ortfuse.io.convert_model_objects import AnyModel
    from ortfuse.options import ComparisonOptions, Options
    from ortfuse.verification.explanation import Missed

MOST_MISSES = 8
"""The most near misses that a failure quotes."""


def assert_fused(model: AnyModel | Result, options: Options | None = None, /, **sites: int) -> None:
    """Fail unless optimising a model makes so many sites of each family, fused or improved.

        assert_fused("bert.onnx", attention=12, gelu=12)

    Costs are those of the first table that ortfuse ships, so that the answer is the same on every machine, unless `options`
    name a target. Sites that an earlier run of ortfuse has fused, whose nodes say so, count too.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model`, `onnx_graphsurgeon.Graph`, or the `ortfuse.Result` of a run.
        options: How to optimise.
        **sites: The number of sites by family, as `ortfuse passes` lists them.

    Raises:
        AssertionError: There are more or fewer; the message says what came near, and what stopped it.
        RuleError: There is no such family.
        OrtfuseError: The model or an option cannot be used.
    """
    __tracebackhide__ = True
    from ortfuse.api.result import Result

    if not sites:
        raise TypeError("assert_fused takes the number of sites by family, such as attention=12")
    asked = options if options is not None or not isinstance(model, Result) else model.options
    usual = on_any_machine(asked)
    found = _sites(model, usual, tuple(sites))
    wrong = {family: count for family, count in sites.items() if found[family] != count}
    if wrong:
        lines = [f"{family}: {found[family]} fused, {count} expected" for family, count in wrong.items()]
        short = [family for family, count in wrong.items() if found[family] < count]
        lines += [] if isinstance(model, Result) or not short else _reasons(model, usual, short)
        raise AssertionError("\n".join(lines))


def assert_equal(
    original: AnyModel, other: AnyModel, options: Options | None = None, **changes: Unpack[ComparisonOptions]
) -> None:
    """Fail unless two models compute the same, as `ortfuse.verify` compares them.

    Args:
        original: Run without the runtime's own optimisations.
        other: Run both without and with them.
        options: How to compare.
        **changes: Single options, such as `inputs`, `sizes` or `tolerance`.

    Raises:
        AssertionError: They do not, or nothing could be compared.
        OrtfuseError: One of the models or options cannot be used.
    """
    __tracebackhide__ = True
    from ortfuse.api.compare import verify

    verdict = verify(original, other, options, **changes)
    if not verdict.ok:
        raise AssertionError(f"{verdict.state}: {verdict.summary()}")


def on_any_machine(options: Options | None) -> Options:
    """Options with the costs of one table for all machines, unless they name a target."""
    from ortfuse.options import Options
    from ortfuse.targets import Target, default_spec, shipped_tables

    found = Options.of(options)
    return found if found.target is not None else replace(found, target=Target(costs=shipped_tables(default_spec())[0]))


def _sites(model: AnyModel | Result, options: Options, families: tuple[str, ...]) -> Mapping[str, int]:
    """The sites of each family that a result has, or that optimising a model makes."""
    from ortfuse.api.optimize import optimize
    from ortfuse.api.result import Result
    from ortfuse.io.convert_model_objects import enter
    from ortfuse.pipeline import load_catalogue
    from ortfuse.verification.explanation import chosen_rules, fused_sites

    chosen = chosen_rules(load_catalogue(options.rules), families)
    if isinstance(model, Result):
        return Counter(model.report.families()) + Counter(model.report.improved())
    earlier = Counter(site.rule.partition(".")[0] for site in fused_sites(enter(model)[0], chosen))
    report = optimize(
        model, options.with_(output=None, bench=False, link=False, external_data=False, fastest=False)
    ).report
    return earlier + Counter(report.families()) + Counter(report.improved())


def _reasons(model: AnyModel, options: Options, families: list[str]) -> list[str]:
    """The near misses of these families, each with its refusal."""
    from ortfuse.api.explain import explain

    found = explain(model, families, options)
    lines = [_reason(miss) for miss in found.missed[:MOST_MISSES]]
    if len(found.missed) > MOST_MISSES:
        lines.append(f"and {len(found.missed) - MOST_MISSES} more: `ortfuse explain` says them all")
    return lines + [f"{rule}: {why}" for rule, why in found.absent.items()]


def _reason(miss: Missed) -> str:
    refusal: Any = miss.refusal
    return f"{miss.rule} at '{miss.site}' is stopped by: {refusal.reason}; it would match if {refusal.remedy}"
