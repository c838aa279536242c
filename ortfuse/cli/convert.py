"""The command `convert`: a model in half precision, or with caches of integers."""

from __future__ import annotations

from typing import Annotated

import typer

import ortfuse
from ortfuse.cli import arguments
from ortfuse.cli.arguments import Debug, Exclude, InputFiles, Json, Model, Models, Only, Output, Preprocess, Seed
from ortfuse.cli.json_output import check_json, refused, write_json
from ortfuse.cli.parsing import NO, positive_number
from ortfuse.cli.terminal import err, guarded, out, progress_line
from ortfuse.errors import BoundError


def convert(
    model: Model,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TYPE",
            help="float16 (the default), bfloat16, or int8-caches for a decoder's caches of keys and values.",
            show_default=False,
        ),
    ] = "float16",
    output: Output = None,
    models: Models = None,
    keep_io: Annotated[bool, typer.Option("--keep-io", help="Leave inputs and outputs of the model float32.")] = False,
    only: Only = None,
    exclude: Exclude = None,
    inputs: InputFiles = None,
    preprocess: Preprocess = None,
    max_error: Annotated[
        float | None,
        typer.Option(
            "--max-error",
            parser=positive_number,
            metavar="NUMBER",
            help="The largest allowed error of an output: the norm of the difference in relation to that of the output.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="PROVIDER",
            help="The provider, or a kernel table (.json), that has to have kernels; by default an operator may be half if its "
            "definition allows that.",
            show_default=False,
        ),
    ] = None,
    seed: Seed = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Convert a model to half precision: ortfuse convert bert.onnx -o bert.fp16.onnx --to float16 --keep-io

    What would overflow, lose its numbers, or has no kernel stays in float32, and nothing else unless that saves Casts. The
    ranges are those on your inputs, or else on generated ones. Nothing is written if the bound cannot be met.

    With --to int8-caches, the caches that a decoder takes and gives become 8-bit integers, a quarter of the memory.
    """
    with guarded(debug):
        check_json(json_file)
        settings = arguments.settings_of(models, model)
        if settings is not None and max_error is None:
            max_error = settings.max_error
        asked = arguments.options(None, settings, inputs=inputs, preprocess=preprocess, target=target, seed=seed)
        try:
            with progress_line() as progress:
                done = ortfuse.convert(
                    model, to, keep_io=keep_io, only=only or (), exclude=exclude or (), inputs=asked.inputs,
                    preprocess=asked.preprocess, max_error=max_error, target=asked.target, seed=asked.seed, output=output,
                    progress=progress,
                )  # fmt: skip
        except BoundError as error:
            err.print(f"{error}; nothing was written", style="red", markup=False, highlight=False, soft_wrap=True)
            write_json(json_file, "convert", refused(model, error))
            raise typer.Exit(NO) from None
        from ortfuse.report.terminal.conversion import show_conversion

        show_conversion(out, done)
        write_json(json_file, "convert", {"model": str(model), **done.to_dict()})
