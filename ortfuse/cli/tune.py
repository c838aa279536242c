"""The command `tune`: find the fastest model and session for this machine, under constraints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import ortfuse
from ortfuse.cli.command_output import Answer
from ortfuse.cli.options_as_flags import Given, options_of, settings_of, with_options
from ortfuse.cli.shared_arguments import Config, Model, Models
from ortfuse.cli.terminal import progress_line
from ortfuse.errors import ConstraintError, OptionError
from ortfuse.options.parse_text import positive_number, quantity


def _share(text: Any) -> float:
    """Read a share: `5%` or `0.05`."""
    written = str(text).strip()
    try:
        share = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"write a share such as 5% or 0.05, not {text}")
    return share


@with_options
def tune(
    given: Given,
    context: typer.Context,
    model: Model,
    budget: Annotated[
        float,
        typer.Option(
            "--budget",
            parser=quantity(("", "s", "min", "m", "h"), 1.0, "120s"),
            metavar="TIME",
            help="Time limit of the search, such as 10min; by default 120s. A stopped search resumes with the rest.",
        ),
    ] = 120.0,
    max_error: Annotated[
        float | None,
        typer.Option(
            "--max-error",
            parser=positive_number,
            metavar="NUMBER",
            help=(
                "Relative error of the outputs that lower precision may cause, such as 0.01. By default no lower "
                "precision is tried."
            ),
        ),
    ] = None,
    max_latency: Annotated[
        float | None,
        typer.Option(
            "--max-latency",
            parser=quantity(("", "ms", "s"), 1e-3, "10ms"),
            metavar="TIME",
            help="Limit that 95 % of the runs must stay under, such as 10ms.",
        ),
    ] = None,
    min_throughput: Annotated[
        float | None,
        typer.Option(
            "--min-throughput",
            parser=positive_number,
            metavar="NUMBER",
            help="Least number of runs per second, one after the other.",
        ),
    ] = None,
    max_memory: Annotated[
        float | None,
        typer.Option(
            "--max-memory",
            parser=quantity(("", "kB", "MB", "GB"), 1.0, "500MB"),
            metavar="SIZE",
            help="Limit for the memory of a process with the session, such as 500MB. Python and the runtime count.",
        ),
    ] = None,
    max_regression: Annotated[
        float,
        typer.Option(
            "--max-regression",
            parser=_share,
            metavar="SHARE",
            help="Slowdown relative to the original that is allowed to meet other limits, such as 10%; by default 5%.",
        ),
    ] = 0.05,
    study: Annotated[
        Path | None,
        typer.Option(
            "--study", metavar="FILE", help="SQLite file that keeps the trials; by default RESULT.tune.sqlite."
        ),
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            "--sampler", metavar="NAME", help="Sampler of the search: tpe (the default), or random as a baseline."
        ),
    ] = "tpe",
    config: Config = None,
    models: Models = None,
    *,
    answer: Answer,
) -> None:
    """Find the fastest model and session settings for this machine: ortfuse tune bert.onnx -o bert.tuned.onnx --budget 120s

    Try pass lists, operators, session settings and, with --max-error, lower precision. Measure each trial beside the original in
    a process of its own. Write the model, the settings of its session, and the options that reproduce it.

    The exit code is 1 if no trial keeps the limits; then nothing is written.
    """
    from ortfuse.report.documents.tuning import failed_trials, tuning_document
    from ortfuse.tuning import Constraints

    settings = settings_of(models, model)
    options = options_of(given, config, settings, bench=True)
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
        answer.refuse(model, error, failed_trials(error.tried))
    answer.give(tuning_document(str(model), found), {"model": str(model), **found.to_dict()})
