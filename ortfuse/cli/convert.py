"""The command `convert`: a model in half precision, or with caches of integers."""

from __future__ import annotations

from typing import Annotated

import typer

import ortfuse
from ortfuse.cli.arguments import Debug, Exclude, Json, Model, Models, Only
from ortfuse.cli.given_options import Given, settings_of, with_options
from ortfuse.cli.given_options import options as options_of
from ortfuse.cli.json_output import check_json, refused, write_json
from ortfuse.cli.parsing import NO
from ortfuse.cli.terminal import err, guarded, out, progress_line
from ortfuse.errors import BoundError
from ortfuse.options.parse_text import positive_number


@with_options
def convert(
    given: Given,
    model: Model,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TYPE",
            help=(
                "Type to convert to: float16 (the default), bfloat16, or int8-caches for the key and value caches of "
                "a decoder."
            ),
            show_default=False,
        ),
    ] = "float16",
    models: Models = None,
    keep_io: Annotated[
        bool, typer.Option("--keep-io", help="Keep the inputs and outputs of the model in float32.")
    ] = False,
    only: Only = None,
    exclude: Exclude = None,
    max_error: Annotated[
        float | None,
        typer.Option(
            "--max-error",
            parser=positive_number,
            metavar="NUMBER",
            help="Largest error of an output: the norm of the difference relative to the norm of the output.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="PROVIDER",
            help=(
                "Target that must have kernels in half precision: a short name, an execution provider, the folder of a target, "
                "or a kernel table (.json). "
                "By default the operator definitions decide."
            ),
            show_default=False,
        ),
    ] = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Convert a model to half precision: ortfuse convert bert.onnx -o bert.fp16.onnx --to float16 --keep-io

    Operators that would overflow, lose precision or lack a kernel stay in float32. Others stay there only to save Casts. Ranges
    are measured on your inputs, or on generated ones. If the bound cannot be met, nothing is written.

    With --to int8-caches, the key and value caches of a decoder become 8-bit integers: a quarter of the memory.
    """
    with guarded(debug):
        check_json(json_file)
        settings = settings_of(models, model)
        if settings is not None and max_error is None:
            max_error = settings.max_error
        asked = options_of(given, None, settings, **({} if target is None else {"target": target}))
        try:
            with progress_line() as progress:
                done = ortfuse.convert(
                    model, to, keep_io=keep_io, only=only or (), exclude=exclude or (), inputs=asked.inputs,
                    preprocess=asked.preprocess, max_error=max_error, target=asked.target, seed=asked.seed, output=asked.output,
                    progress=progress,
                )  # fmt: skip
        except BoundError as error:
            err.print(f"{error}; nothing was written", style="red", markup=False, highlight=False, soft_wrap=True)
            write_json(json_file, "convert", refused(model, error))
            raise typer.Exit(NO) from None
        from ortfuse.report.terminal.conversion import show_conversion

        show_conversion(out, done)
        write_json(json_file, "convert", {"model": str(model), **done.to_dict()})
