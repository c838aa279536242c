"""The command `diff`: two models side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ortfuse
from ortfuse.cli import arguments
from ortfuse.cli.arguments import Debug, InputFiles, Json, Preprocess, Report, Seed, Tolerance
from ortfuse.cli.json_output import check_json, write_json
from ortfuse.cli.report_option import check_report, write_report
from ortfuse.cli.terminal import guarded, out, progress_line


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A model.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="B", help="The model to show beside it.", show_default=False)],
    inputs: InputFiles = None,
    preprocess: Preprocess = None,
    run: Annotated[
        bool,
        typer.Option(
            "--run",
            help="Run both models, on generated inputs unless --inputs names some, and tell the first tensor that differs.",
        ),
    ] = False,
    seed: Seed = None,
    tolerance: Tolerance = None,
    json_file: Json = None,
    report: Report = None,
    debug: Debug = False,
) -> None:
    """Show where two models differ: ortfuse diff a.onnx b.onnx --inputs folder

    Compares nodes with their attributes, constants, inputs and outputs. Nodes match by name, else by operator and operands. With
    --inputs or --run both models are run, and every tensor that both compute is compared: the first that differs comes from
    where they differ. The exit code is 0 whatever is found: whether models compute the same is a question for `ortfuse verify`.
    """
    with guarded(debug):
        from ortfuse.report.terminal.diff import show_difference

        check_json(json_file)
        check_report(report)
        options = arguments.options(None, None, inputs=inputs, preprocess=preprocess, seed=seed, tolerance=tolerance)
        before, after = ortfuse.load(first), ortfuse.load(second)
        with progress_line() as progress:
            found = ortfuse.diff(before, after, options, run=run or None, progress=progress)
        show_difference(out, before, after, found)
        write_json(json_file, "diff", {"first": str(first), "second": str(second), **found.to_dict()})
        if report is not None:
            from ortfuse.report.html.pages import difference_page

            write_report(report, difference_page(str(first), str(second), before, after, found))
