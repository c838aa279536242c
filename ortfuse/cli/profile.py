"""The command `profile`: report the time of a model by operator, block, module and rule."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ortfuse
from ortfuse.cli.command_output import Answer
from ortfuse.cli.json_output import check_json
from ortfuse.cli.options_as_flags import Given, options_of, settings_of, with_options
from ortfuse.cli.shared_arguments import Model, Models
from ortfuse.cli.terminal import progress_line


@with_options
def profile(
    given: Given,
    model: Model,
    models: Models = None,
    remedies: Annotated[
        bool,
        typer.Option(
            "--remedies/--no-remedies",
            help=(
                "Find remedies: fusions and near misses of `ortfuse optimize`, legal quantization, and the cost of "
                "denormal numbers (the default)."
            ),
        ),
    ] = True,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write one row per executed node to this file.")] = None,
    png: Annotated[
        Path | None, typer.Option("--png", help="Draw the times and the roofline (needs ortfuse\\[plot]).")
    ] = None,
    *,
    answer: Answer,
) -> None:
    """Report where the time of a model goes: ortfuse profile bert.onnx --size sequence=128

    Report time by operator, fused block, module of the original network, and rule. Report what the runtime did at session
    creation, the fraction of this machine's peak, latency, throughput and memory. List the bottlenecks, each with a remedy.
    """
    from ortfuse.report.documents.profile import profile_document
    from ortfuse.report.profile_files import check_plot, write_csv, write_png

    for path in (csv, png):
        check_json(path)
    check_plot(png)
    options = options_of(given, None, settings_of(models, model), bench=True)
    with progress_line() as progress:
        found = ortfuse.profile(model, options, remedies=remedies, progress=progress)
    write_csv(csv, found)
    write_png(png, found, model.name)
    answer.give(profile_document(model.name, found), {"model": str(model), **found.to_dict()})
