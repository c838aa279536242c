"""The command `inspect`: list the opsets, operators, blocks and costs of a model."""

from __future__ import annotations

from typing import Annotated

import typer

import ortfuse
from ortfuse.cli.command_output import Answer
from ortfuse.cli.options_as_flags import Given, options_of, with_options
from ortfuse.cli.shared_arguments import Model
from ortfuse.cli.terminal import progress_line


@with_options
def inspect(
    given: Given,
    model: Model,
    measure: Annotated[
        bool,
        typer.Option("--measure/--no-measure", help="Measure the peak throughput of this machine once (the default)."),
    ] = True,
    *,
    answer: Answer,
) -> None:
    """Describe a model: ortfuse inspect bert.onnx --size sequence=128

    Report opsets, inputs and outputs, weights, operators, missing kernels and blocks (transformer, bottleneck, recurrent, ...).
    Report costs: operations, bytes, and whether compute or memory is the bottleneck on this machine. Blocks and costs are those
    of the canonical form.
    """
    from ortfuse.report.documents.inspection import inspection_document

    options = options_of(given, measure=True)
    with progress_line() as progress:
        found = ortfuse.inspect(
            model, sizes=options.sizes, measure=measure, threads=options.threads, target=options.target,
            custom_ops=options.custom_ops, progress=progress,
        )  # fmt: skip
    answer.give(inspection_document(model.name, found), {"model": str(model), **found.to_dict()})
