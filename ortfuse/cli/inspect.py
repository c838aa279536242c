"""The command `inspect`: what is in a model."""

from __future__ import annotations

from typing import Annotated

import typer

import ortfuse
from ortfuse.cli import arguments
from ortfuse.cli.arguments import CustomOps, Debug, Json, Model, Sizes, Target, Threads
from ortfuse.cli.json_output import check_json, write_json
from ortfuse.cli.terminal import guarded, out, progress_line


def inspect(
    model: Model,
    size: Sizes = None,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Measure the peaks of this machine, once (the default).")
    ] = True,
    threads: Threads = None,
    target: Target = None,
    custom_ops: CustomOps = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Tell what is in a model: ortfuse inspect bert.onnx --size sequence=128

    Opsets, inputs and outputs, weights, operators and those without kernels, blocks (transformer, bottleneck, recurrent, ...),
    and what they cost: operations, bytes, and whether compute or memory binds them on this machine. Blocks and costs are those
    of the canonical form.
    """
    with guarded(debug):
        check_json(json_file)
        options = arguments.options(sizes=size, threads=threads, target=target, custom_ops=custom_ops, measure=True)
        with progress_line() as progress:
            found = ortfuse.inspect(
                model, sizes=options.sizes, measure=measure, threads=options.threads, target=options.target,
                custom_ops=options.custom_ops, progress=progress,
            )  # fmt: skip
        from ortfuse.report.terminal.inspection import show_inspection

        show_inspection(out, found)
        write_json(json_file, "inspect", {"model": str(model), **found.to_dict()})
