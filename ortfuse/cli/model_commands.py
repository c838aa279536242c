"""The commands about models: `optimize`, `verify`, `bisect`, `explain` and `bench`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import ortfuse
from ortfuse.cli import arguments
from ortfuse.cli.arguments import (
    Approximate,
    Assume,
    Bench,
    BenchBudget,
    Budget,
    Check,
    CheckUser,
    Config,
    CustomOps,
    Debug,
    Explain,
    Fastest,
    For,
    Inference,
    InputFiles,
    Json,
    LeastRounds,
    Link,
    Lists,
    Load,
    MaxGrowth,
    MaxOpset,
    Measure,
    Model,
    Models,
    Output,
    Passes,
    Patterns,
    Pins,
    Preprocess,
    Report,
    Seed,
    Sizes,
    Target,
    Threads,
    Tolerance,
    Verify,
    VerifyBudget,
)
from ortfuse.cli.check import demand_no_regression, demand_same_model, demand_same_names, stored
from ortfuse.cli.declared_sizes import Fix, Same, SizeRange
from ortfuse.cli.json_output import check_json, write_json
from ortfuse.cli.parsing import NO, UNUSABLE, positive_number
from ortfuse.cli.report_option import check_report, profiled, write_report
from ortfuse.cli.terminal import guarded, out, progress_line

if TYPE_CHECKING:
    import onnx_ir as ir

    from ortfuse.api.models_file import Settings
    from ortfuse.api.result import Result
    from ortfuse.options import Options


def optimize(
    model: Model,
    output: Output = None,
    config: Config = None,
    models: Models = None,
    passes: Passes = None,
    purpose: For = None,
    patterns: Patterns = None,
    lists: Lists = None,
    target: Target = None,
    max_opset: MaxOpset = None,
    max_growth: MaxGrowth = None,
    approximate: Approximate = None,
    inference: Inference = None,
    assume: Assume = None,
    same: Same = None,
    size_range: SizeRange = None,
    fix: Fix = None,
    pin: Pins = None,
    measure: Measure = None,
    verify: Verify = None,
    verify_budget: VerifyBudget = None,
    check_user: CheckUser = None,
    bench: Bench = None,
    fastest: Fastest = None,
    explain: Explain = None,
    inputs: InputFiles = None,
    size: Sizes = None,
    seed: Seed = None,
    tolerance: Tolerance = None,
    threads: Threads = None,
    rounds: LeastRounds = None,
    bench_budget: BenchBudget = None,
    link: Link = None,
    load: Load = None,
    custom_ops: CustomOps = None,
    json_file: Json = None,
    check: Check = None,
    report: Report = None,
    debug: Debug = False,
) -> None:
    """Optimise a model: ortfuse optimize bert.onnx -o bert.opt.onnx --verify --bench

    Prints the nodes before and after, the fused sites of each family, the passes with their time and changes and, when
    asked for, the largest error against the original and the latency after each pass. The exit code is 1 if the result is
    wrong, and then it is not written; 3 if it is worse than what --check names.
    """
    with guarded(debug):
        settings = arguments.settings_of(models, model)
        options = arguments.options(
            config, settings, output=output, passes=passes, purpose=purpose, patterns=patterns, lists=lists, target=target,
            max_opset=max_opset, max_growth=max_growth, approximate=approximate, assume=assume,
            same=same, size_range=size_range, fix=fix, inference=inference, pins=pin,
            measure=measure, verify=verify, verify_budget=verify_budget, check_user=check_user, bench=bench, fastest=fastest,
            explain=explain, inputs=inputs, sizes=size,
            seed=seed, tolerance=tolerance, threads=threads, rounds=rounds, bench_budget=bench_budget, link=link,
            loaded=load, custom_ops=custom_ops,
        )  # fmt: skip
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


def verify(
    original: Annotated[Path, typer.Argument(metavar="A", help="The original model.", show_default=False)],
    optimised: Annotated[Path, typer.Argument(metavar="B", help="The model to compare with it.", show_default=False)],
    models: Models = None,
    inputs: InputFiles = None,
    preprocess: Preprocess = None,
    size: Sizes = None,
    seed: Seed = None,
    tolerance: Tolerance = None,
    verify_budget: VerifyBudget = None,
    max_error: Annotated[
        float | None,
        typer.Option(
            "--max-error",
            parser=positive_number,
            metavar="NUMBER",
            help="Compare under a bound instead, by --metric. `ortfuse quantize` writes its bound into its results; that one "
            "holds unless --tolerance or --max-error is given.",
            show_default=False,
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            help="l2, max, cosine, top1, tokens, file.py:function or module:function, as for `ortfuse quantize`; by default what "
            "B states, or l2. A function that B names is called only if it is named here, too.",
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            metavar="FILE",
            help="What the function of --metric finds as 'labels' among the inputs, as for `ortfuse quantize`.",
            show_default=False,
        ),
    ] = None,
    custom_ops: CustomOps = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Compare two models on generated inputs of several sizes: ortfuse verify a.onnx b.onnx

    The exit code is 0 if they are equal within tolerance, or B keeps the bound that it states or that is given; 1 if not, and 2
    if they could not be compared.
    """
    with guarded(debug):
        check_json(json_file)
        settings = arguments.settings_of(models, original)
        options = arguments.options(
            None, settings, inputs=inputs, preprocess=preprocess, sizes=size, seed=seed, tolerance=tolerance, verify="whole",
            verify_budget=verify_budget, custom_ops=custom_ops,
        )  # fmt: skip
        with progress_line() as progress:
            progress("comparing")
            verdict = ortfuse.verify(original, optimised, options, max_error=max_error, metric=metric, labels=labels)
        from ortfuse.report.terminal.console import show_verdict

        show_verdict(out, verdict)
        _tell(settings, verdict.ok)
        write_json(json_file, "verify", verdict.to_dict())
    if not verdict.ok:
        raise typer.Exit(UNUSABLE if verdict.state == "not compared" else NO)


def bisect(
    model: Model,
    runtime: Annotated[
        bool, typer.Option("--runtime", help="Search ONNX Runtime's own optimisers instead of ortfuse's passes.")
    ] = False,
    config: Config = None,
    models: Models = None,
    passes: Passes = None,
    patterns: Patterns = None,
    lists: Lists = None,
    target: Target = None,
    max_opset: MaxOpset = None,
    max_growth: MaxGrowth = None,
    approximate: Approximate = None,
    assume: Assume = None,
    same: Same = None,
    size_range: SizeRange = None,
    fix: Fix = None,
    inputs: InputFiles = None,
    seed: Seed = None,
    tolerance: Tolerance = None,
    custom_ops: CustomOps = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Find what moves an output: ortfuse bisect bert.onnx --patterns my_rules.py

    Narrows down the passes, the rules and the single rewrites that move an output beyond tolerance, names the site, gives
    the error against float64 before and after, and says whether it is rounding or a wrong rewrite. The exit code is 1 if
    an output moves.
    """
    with guarded(debug):
        check_json(json_file)
        options = arguments.options(
            config, arguments.settings_of(models, model), passes=passes, patterns=patterns, lists=lists, target=target,
            max_opset=max_opset, max_growth=max_growth, approximate=approximate, assume=assume,
            same=same, size_range=size_range, fix=fix, inputs=inputs,
            seed=seed, tolerance=tolerance, custom_ops=custom_ops,
        )  # fmt: skip
        with progress_line() as progress:
            found = (ortfuse.bisect_runtime if runtime else ortfuse.bisect)(model, options, progress=progress)
        for line in found.lines():
            out.print(line, markup=False, highlight=False)
        write_json(json_file, "bisect", {"model": str(model), **found.to_dict()})
    if found.moved:
        raise typer.Exit(NO)


def explain(
    model: Model,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            help="A family (attention) or a rule (attention.sdpa); may be given several times.",
            show_default=False,
        ),
    ] = None,
    config: Config = None,
    models: Models = None,
    passes: Passes = None,
    patterns: Patterns = None,
    lists: Lists = None,
    target: Target = None,
    max_opset: MaxOpset = None,
    max_growth: MaxGrowth = None,
    approximate: Approximate = None,
    check_user: CheckUser = None,
    assume: Assume = None,
    same: Same = None,
    size_range: SizeRange = None,
    fix: Fix = None,
    custom_ops: CustomOps = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Say for each site what fused it, or what came nearest: ortfuse explain bert.onnx --rule attention

    Of a near miss it says how far it matched, the node or fact that stopped it, and what would make it match.
    """
    with guarded(debug):
        check_json(json_file)
        options = arguments.options(
            config, arguments.settings_of(models, model), passes=passes, patterns=patterns, lists=lists, target=target,
            max_opset=max_opset, max_growth=max_growth, approximate=approximate, assume=assume,
            same=same, size_range=size_range, fix=fix, check_user=check_user,
            custom_ops=custom_ops,
        )  # fmt: skip
        with progress_line() as progress:
            found = ortfuse.explain(model, rule or (), options, progress=progress)
        from ortfuse.report.terminal.console import show_explanation, show_notes

        show_explanation(out, found)
        show_notes(out, found.notes)
        write_json(json_file, "explain", {"model": str(model), **found.to_dict()})


def bench(
    model: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL...", help="Models with the same inputs; the first is the yardstick.", show_default=False
        ),
    ],
    models: Models = None,
    inputs: InputFiles = None,
    size: Sizes = None,
    seed: Seed = None,
    threads: Threads = None,
    rounds: LeastRounds = None,
    budget: Budget = None,
    custom_ops: CustomOps = None,
    json_file: Json = None,
    check: Check = None,
    report: Report = None,
    debug: Debug = False,
) -> None:
    """Measure models side by side: ortfuse bench bert.onnx bert.opt.onnx

    Runs are interleaved; the speedup is the median over rounds of the first model's latency divided by each one's, and
    beside it stand the bounds between which that median lies with 95 % confidence. There are as many rounds as it takes for
    these to be narrow, within the time of --budget. Inputs that are generated have the sizes that are declared or fixed in any
    of the models.
    """
    with guarded(debug):
        from ortfuse.report.terminal.console import show_latencies
        from ortfuse.runtime.bench import numbered

        check_json(json_file)
        known = stored(check, "bench")
        options = arguments.options(
            None, arguments.settings_of(models, model[0]), inputs=inputs, sizes=size, seed=seed, threads=threads, rounds=rounds,
            bench_budget=budget, bench=True, custom_ops=custom_ops,
        )  # fmt: skip
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
