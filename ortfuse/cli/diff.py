"""The command `diff`: compare two models by nodes, attributes, constants and, if asked, tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ortfuse
from ortfuse.cli.command_output import Answer
from ortfuse.cli.options_as_flags import Given, options_of, with_options
from ortfuse.cli.terminal import progress_line


@with_options
def diff(
    given: Given,
    first: Annotated[Path, typer.Argument(metavar="A", help="ONNX file.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="ONNX file to compare with it.")],
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
    *,
    answer: Answer,
) -> None:
    """Show where two models differ: ortfuse diff a.onnx b.onnx --inputs folder

    Compare nodes with their attributes, constants, inputs and outputs. Nodes match by name, else by operator and operands. With
    --inputs or --run, run both models and compare every tensor that both compute, in execution order.

    The exit code is 0 whatever is found. To check that models compute the same, use `ortfuse verify`.
    """
    from ortfuse.report.documents.diff import difference_document

    options = options_of(given)
    before, after = ortfuse.load(first), ortfuse.load(second)
    with progress_line() as progress:
        found = ortfuse.diff(before, after, options, run=run or None, progress=progress)
    document = difference_document(str(first), str(second), before, after, found)
    answer.give(document, {"first": str(first), "second": str(second), **found.to_dict()})
