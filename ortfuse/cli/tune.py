"""The command `tune`: the fastest model and session for this machine, under constraints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import ortfuse
from ortfuse.cli import arguments
from ortfuse.cli.arguments import (
    CheckUser,
    Config,
    CustomOps,
    Debug,
    InputFiles,
    Json,
    Link,
    MaxOpset,
    Model,
    Models,
    Output,
    Passes,
    Patterns,
    Report,
    Rounds,
    Seed,
    Sizes,
    Threads,
)
from ortfuse.cli.json_output import check_json, refused, write_json
from ortfuse.cli.parsing import NO, positive_number, quantity
from ortfuse.cli.report_option import check_report, write_report
from ortfuse.cli.terminal import err, guarded, out, progress_line
from ortfuse.errors import ConstraintError, OptionError


def _share(text: Any) -> float:
    """Reads a share: `5%` or `0.05`."""
    written = str(text).strip()
    try:
        share = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise typer.BadParameter(f"write a share such as 5% or 0.05, not {text}")
    return share


def tune(
    context: typer.Context,
    model: Model,
    output: Output = None,
    inputs: InputFiles = None,
    budget: Annotated[
        float,
        typer.Option(
            "--budget",
            parser=quantity(("", "s", "min", "m", "h"), 1.0, "120s"),
            metavar="TIME",
            help="The time for the search, such as 120s (the default) or 10min; a search that was stopped goes on with the rest.",
            show_default=False,
        ),
    ] = 120.0,
    max_error: Annotated[
        float | None,
        typer.Option(
            "--max-error",
            parser=positive_number,
            metavar="NUMBER",
            help="Relative error of the outputs that lower precision may make, such as 0.01; by default none is tried.",
            show_default=False,
        ),
    ] = None,
    max_latency: Annotated[
        float | None,
        typer.Option(
            "--max-latency",
            parser=quantity(("", "ms", "s"), 1e-3, "10ms"),
            metavar="TIME",
            help="What 95 % of the runs have to stay under, such as 10ms.",
            show_default=False,
        ),
    ] = None,
    min_throughput: Annotated[
        float | None,
        typer.Option(
            "--min-throughput",
            parser=positive_number,
            metavar="NUMBER",
            help="Runs a second, one after the other.",
            show_default=False,
        ),
    ] = None,
    max_memory: Annotated[
        float | None,
        typer.Option(
            "--max-memory",
            parser=quantity(("", "kB", "MB", "GB"), 1.0, "500MB"),
            metavar="SIZE",
            help="What the process of a session may hold, Python and the runtime with it, such as 500MB.",
            show_default=False,
        ),
    ] = None,
    max_regression: Annotated[
        float,
        typer.Option(
            "--max-regression",
            parser=_share,
            metavar="SHARE",
            help="How much longer than the original's a run may take where other limits ask for it, such as 10%; by default 5%.",
            show_default=False,
        ),
    ] = 0.05,
    study: Annotated[
        Path | None,
        typer.Option(
            "--study",
            metavar="FILE",
            help="The SQLite file that keeps the trials; by default RESULT.tune.sqlite.",
            show_default=False,
        ),
    ] = None,
    sampler: Annotated[
        str, typer.Option("--sampler", help="tpe (the default) or random, to compare with.", show_default=False)
    ] = "tpe",
    config: Config = None,
    models: Models = None,
    passes: Passes = None,
    patterns: Patterns = None,
    check_user: CheckUser = None,
    max_opset: MaxOpset = None,
    size: Sizes = None,
    seed: Seed = None,
    threads: Threads = None,
    rounds: Rounds = None,
    link: Link = None,
    custom_ops: CustomOps = None,
    json_file: Json = None,
    report: Report = None,
    debug: Debug = False,
) -> None:
    """Find the fastest model and session here: ortfuse tune bert.onnx -o bert.tuned.onnx --budget 120s

    Tries pass lists, operators, settings of the session and, with --max-error, lower precision, each measured beside the
    original in a process of its own. Writes the model, the settings of its session and the options that make it. The exit
    code is 1 if nothing keeps the limits, and then nothing is written.
    """
    with guarded(debug):
        from ortfuse.report.terminal.tuning import show_tuned
        from ortfuse.tuning import Constraints

        settings = arguments.settings_of(models, model)
        options = arguments.options(
            config, settings, output=output, passes=passes, patterns=patterns, check_user=check_user,
            max_opset=max_opset, inputs=inputs, sizes=size, seed=seed, threads=threads, rounds=rounds,
            link=link, custom_ops=custom_ops, bench=True,
        )  # fmt: skip
        check_json(json_file)
        check_report(report)
        if sampler not in ("tpe", "random"):
            raise OptionError("sampler", f"write tpe or random, not {sampler}")
        limits = Constraints(max_latency, min_throughput, max_memory, max_error, max_regression)
        try:
            with progress_line() as progress:
                found = ortfuse.tune(
                    model,
                    options,
                    budget=budget,
                    constraints=limits,
                    study=study,
                    sampler=sampler,  # type: ignore[arg-type]
                    progress=progress,
                    began=context.find_root().obj,
                )
        except ConstraintError as error:
            err.print(f"{error}; nothing was written", style="red", markup=False, highlight=False, soft_wrap=True)
            write_json(json_file, "tune", refused(model, error))
            if report is not None:
                from ortfuse.report.html.pages import unmet_page

                write_report(report, unmet_page(str(model), str(error), error.tried))
            raise typer.Exit(NO) from None
        show_tuned(out, found)
        write_json(json_file, "tune", {"model": str(model), **found.to_dict()})
        if report is not None:
            from ortfuse.report.html.pages import tuning_page

            write_report(report, tuning_page(str(model), found))
