"""The commands about models: `optimize`, `verify`, `bisect`, `explain` and `bench`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import ortfuse
from ortfuse.cli.arguments import Check, Config, Debug, Json, Model, Models, Report
from ortfuse.cli.given_options import Given, settings_of, with_options
from ortfuse.cli.given_options import options as options_of
from ortfuse.cli.json_output import check_json, write_json
from ortfuse.cli.parsing import NO, UNUSABLE
from ortfuse.cli.regression_check import demand_no_regression, demand_same_model, demand_same_names, stored
from ortfuse.cli.report_option import check_report, profiled, write_report
from ortfuse.cli.terminal import guarded, out, progress_line
from ortfuse.options.parse_text import positive_number

if TYPE_CHECKING:
    import onnx_ir as ir

    from ortfuse.api.models_file import Settings
    from ortfuse.api.result import Result
    from ortfuse.options import Options


@with_options
def optimize(
    given: Given,
    model: Model,
    config: Config = None,
    models: Models = None,
    json_file: Json = None,
    check: Check = None,
    report: Report = None,
    debug: Debug = False,
) -> None:
    """Optimise a model: ortfuse optimize bert.onnx -o bert.opt.onnx --verify --bench

    Report the nodes before and after, the fused sites of each family, and the passes with their times and changes. Options add
    the largest error against the original, and the latency after each pass.

    The exit code is 1 if the result is wrong; then nothing is written. It is 3 on a regression against --check.
    """
    with guarded(debug):
        settings = settings_of(models, model)
        options = options_of(given, config, settings)
        if settings is not None:
            options = settings.without_idle(options)
        check_json(json_file)
        known = stored(check, "optimize")
        demand_same_model(known, model)
        check_report(report)
        asked = options.explain
        if report is not None:
            options = options.with_(explain=asked or True)
        original = None if report is None else _kept(model, options.output)
        try:
            with progress_line() as progress:
                result = ortfuse.optimize(model, options, progress=progress)
        except ortfuse.WrongResultError as error:
            result = error.result
        from ortfuse.report.terminal.console import show_result

        # What the page needs beyond what was asked for is on the page, and would hide the rest here.
        show_result(out, result if asked else replace(result, explanation=None))
        if result.verdict is not None:
            _tell(settings, result.verdict.ok)
        content = {"model": str(model), **result.to_dict()}
        write_json(json_file, "optimize", content)
        if report is not None:
            _write_page(model, original, result, report, options)
        if not result.ok:
            raise typer.Exit(NO)
        demand_no_regression(out, "optimize", known, content)


def _tell(settings: Settings | None, equal: bool) -> None:
    """Say whether a comparison ended as the file of models says, if that is not as usual."""
    if settings is not None and (remark := settings.remark(equal)):
        out.print(remark, highlight=False)


def _kept(model: Path, output: object) -> ir.Model | None:
    """The model, if the result takes its place, so that a page can show it as it was; otherwise it is read when it is needed."""
    same = output is not None and os.path.realpath(str(output)) == os.path.realpath(model)
    return ortfuse.load(model) if same else None


def _write_page(model: Path, original: ir.Model | None, result: Result, path: Path, options: Options) -> None:
    from ortfuse.pipeline import load_catalogue
    from ortfuse.report.html.pages import optimisation_page

    if result.left_alone:
        out.print("no page was written, since the model was left as it is", highlight=False)
        return
    formulas = {rule.name: rule.formula for rule in load_catalogue(result.options.rules).rules()}
    profiles = None
    if original is None:
        original = ortfuse.load(model)
        if result.latencies is not None:
            profiles = profiled(model, result.written or result.model, options)
    page = optimisation_page(str(model), result, original, result.model, formulas, profiles)
    write_report(path, page)


@with_options
def verify(
    given: Given,
    original: Annotated[Path, typer.Argument(metavar="A", help="ONNX file of the original model.", show_default=False)],
    optimised: Annotated[Path, typer.Argument(metavar="B", help="ONNX file to compare with it.", show_default=False)],
    models: Models = None,
    max_error: Annotated[
        float | None,
        typer.Option(
            "--max-error",
            parser=positive_number,
            metavar="NUMBER",
            help=(
                "Bound on the error by --metric, in place of --tolerance. By default the bound that `ortfuse "
                "quantize` wrote into B, if any."
            ),
            show_default=False,
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="METRIC",
            help=(
                "Error metric, as for `ortfuse quantize`: l2, max, cosine, top1, tokens, file.py:function or "
                "module:function. By default the metric that B states, or l2. A function that B states is called only "
                "if it is named here, too."
            ),
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            metavar="FILE",
            help="Labels for the function of --metric, as for `ortfuse quantize`.",
            show_default=False,
        ),
    ] = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Compare two models on generated inputs of several sizes: ortfuse verify a.onnx b.onnx

    The exit code is 0 if they are equal within tolerance, or B keeps the bound that it states or that is given. It is 1 if not,
    and 2 if they could not be compared.
    """
    with guarded(debug):
        check_json(json_file)
        settings = settings_of(models, original)
        options = options_of(given, None, settings, verify="whole")
        with progress_line() as progress:
            progress("comparing")
            verdict = ortfuse.verify(original, optimised, options, max_error=max_error, metric=metric, labels=labels)
        from ortfuse.report.terminal.console import show_verdict

        show_verdict(out, verdict)
        _tell(settings, verdict.ok)
        write_json(json_file, "verify", verdict.to_dict())
    if not verdict.ok:
        raise typer.Exit(UNUSABLE if verdict.state == "not compared" else NO)


@with_options
def bisect(
    given: Given,
    model: Model,
    runtime: Annotated[
        bool, typer.Option("--runtime", help="Bisect ONNX Runtime's own optimizers instead of ortfuse's passes.")
    ] = False,
    config: Config = None,
    models: Models = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Find the rewrite that changes an output: ortfuse bisect bert.onnx --patterns my_rules.py

    Narrow down the passes, rules and single rewrites that move an output beyond tolerance. Report the site, the error against
    float64 before and after, and a verdict: rounding or a wrong rewrite.

    The exit code is 1 if an output moves.
    """
    with guarded(debug):
        check_json(json_file)
        options = options_of(given, config, settings_of(models, model))
        with progress_line() as progress:
            found = (ortfuse.bisect_runtime if runtime else ortfuse.bisect)(model, options, progress=progress)
        for line in found.lines():
            out.print(line, markup=False, highlight=False)
        write_json(json_file, "bisect", {"model": str(model), **found.to_dict()})
    if found.moved:
        raise typer.Exit(NO)


@with_options
def explain(
    given: Given,
    model: Model,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            metavar="NAME",
            help="Family (attention) or rule to explain; by default all. Repeatable.",
            show_default=False,
        ),
    ] = None,
    config: Config = None,
    models: Models = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Explain each match site, fused or missed: ortfuse explain bert.onnx --rule attention

    For a fused site, report the rule. For a near miss, report how far the pattern matched, the node or fact that stopped it, and
    the change that would make it match.
    """
    with guarded(debug):
        check_json(json_file)
        options = options_of(given, config, settings_of(models, model))
        with progress_line() as progress:
            found = ortfuse.explain(model, rule or (), options, progress=progress)
        from ortfuse.report.terminal.console import show_explanation, show_notes

        show_explanation(out, found)
        show_notes(out, found.notes)
        write_json(json_file, "explain", {"model": str(model), **found.to_dict()})


@with_options
def bench(
    given: Given,
    model: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL...", help="Models with the same inputs. The first one is the baseline.", show_default=False
        ),
    ],
    models: Models = None,
    json_file: Json = None,
    check: Check = None,
    report: Report = None,
    debug: Debug = False,
) -> None:
    """Measure models side by side: ortfuse bench bert.onnx bert.opt.onnx

    Rounds are interleaved. The speedup is the median over rounds of the first model's latency divided by the other's, with its
    95 % confidence interval. Rounds are added until the intervals are narrow, within --budget.

    Generated inputs have the sizes that any of the models declares or fixes.
    """
    with guarded(debug):
        from ortfuse.report.terminal.console import show_latencies
        from ortfuse.runtime.bench import numbered

        check_json(json_file)
        known = stored(check, "bench")
        options = options_of(given, None, settings_of(models, model[0]), bench=True)
        check_report(report)
        named = numbered((str(path), path) for path in model)
        demand_same_names(known, named)
        with progress_line() as progress:
            progress("measuring")
            found = ortfuse.benchmark(named, options)
        show_latencies(out, found, f"Latency at {found.sizes}")
        write_json(json_file, "bench", found.to_dict())
        if report is not None:
            from ortfuse.report.html.pages import bench_page

            write_report(report, bench_page(found))
        demand_no_regression(out, "bench", known, found.to_dict())
