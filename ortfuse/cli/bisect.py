"""The command `bisect`: find the rewrite that changes an output."""

from __future__ import annotations

from typing import Annotated

import typer

import ortfuse
from ortfuse.cli.command_output import Answer
from ortfuse.cli.options_as_flags import Given, options_of, settings_of, with_options
from ortfuse.cli.parsing import NO
from ortfuse.cli.shared_arguments import Config, Model, Models
from ortfuse.cli.terminal import progress_line


@with_options
def bisect(
    given: Given,
    model: Model,
    runtime: Annotated[
        bool, typer.Option("--runtime", help="Bisect ONNX Runtime's own optimizers instead of ortfuse's passes.")
    ] = False,
    config: Config = None,
    models: Models = None,
    *,
    answer: Answer,
) -> None:
    """Find the rewrite that changes an output: ortfuse bisect bert.onnx --patterns my_rules.py

    Narrow down the passes, rules and single rewrites that move an output beyond tolerance. Report the site, the error against
    float64 before and after, and a verdict: rounding or a wrong rewrite.

    The exit code is 1 if an output moves.
    """
    from ortfuse.report.documents.bisection import bisection_document

    options = options_of(given, config, settings_of(models, model))
    with progress_line() as progress:
        found = (ortfuse.bisect_runtime if runtime else ortfuse.bisect)(model, options, progress=progress)
    answer.give(bisection_document(model.name, found), {"model": str(model), **found.to_dict()})
    if found.moved:
        raise typer.Exit(NO)
