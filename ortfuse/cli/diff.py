"""The command `diff`: two models side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ortfuse
from ortfuse.cli.arguments import Debug, Json, Report
from ortfuse.cli.given_options import Given, with_options
from ortfuse.cli.given_options import options as options_of
from ortfuse.cli.json_output import check_json, write_json
from ortfuse.cli.report_option import check_report, write_report
from ortfuse.cli.terminal import guarded, out, progress_line


@with_options
def diff(
    given: Given,
    first: Annotated[Path, typer.Argument(metavar="A", help="ONNX file.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="B", help="ONNX file to compare with it.", show_default=False)],
    run: Annotated[
        bool,
        typer.Option(
            "--run",
            help=(
                "Run both models, on generated inputs unless --inputs is given, and report the first tensor that "
                "differs."
            ),
        ),
    ] = False,
    json_file: Json = None,
    report: Report = None,
    debug: Debug = False,
) -> None:
    """Show where two models differ: ortfuse diff a.onnx b.onnx --inputs folder

    Compare nodes with their attributes, constants, inputs and outputs. Nodes match by name, else by operator and operands. With
    --inputs or --run, run both models and compare every tensor that both compute, in execution order.

    The exit code is 0 whatever is found. To check that models compute the same, use `ortfuse verify`.
    """
    with guarded(debug):
        from ortfuse.report.documents.diff import difference_document
        from ortfuse.report.terminal.document import show_document

        check_json(json_file)
        check_report(report)
        options = options_of(given)
        before, after = ortfuse.load(first), ortfuse.load(second)
        with progress_line() as progress:
            found = ortfuse.diff(before, after, options, run=run or None, progress=progress)
        document = difference_document(str(first), str(second), before, after, found)
        show_document(out, document)
        write_json(json_file, "diff", {"first": str(first), "second": str(second), **found.to_dict()})
        if report is not None:
            write_report(report, document)
