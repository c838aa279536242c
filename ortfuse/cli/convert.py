"""The command `convert`: convert a model to half precision, or the KV caches of a decoder to int8."""

from __future__ import annotations

from typing import Annotated

import typer

import ortfuse
from ortfuse.cli.command_output import Answer
from ortfuse.cli.options_as_flags import Given, options_of, settings_of, with_options
from ortfuse.cli.shared_arguments import Exclude, Model, Models, Only
from ortfuse.cli.terminal import progress_line
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
        ),
    ] = None,
    *,
    answer: Answer,
) -> None:
    """Convert a model to half precision: ortfuse convert bert.onnx -o bert.fp16.onnx --to float16 --keep-io

    Operators that would overflow, lose precision or lack a kernel stay in float32. Others stay there only to save Casts. Ranges
    are measured on your inputs, or on generated ones. If the bound cannot be met, nothing is written.

    With --to int8-caches, the key and value caches of a decoder become 8-bit integers: a quarter of the memory.
    """
    from ortfuse.report.documents.conversion import conversion_document

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
        answer.refuse(model, error)
    answer.give(conversion_document(model.name, done), {"model": str(model), **done.to_dict()})
