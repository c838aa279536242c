"""The command `verify`: compare two models numerically."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ortfuse
from ortfuse.cli.command_output import Answer
from ortfuse.cli.options_as_flags import Given, options_of, settings_of, with_options
from ortfuse.cli.parsing import NO, UNUSABLE
from ortfuse.cli.shared_arguments import Models
from ortfuse.cli.terminal import print_unexpected, progress_line
from ortfuse.options.parse_text import positive_number


@with_options
def verify(
    given: Given,
    original: Annotated[Path, typer.Argument(metavar="A", help="ONNX file of the original model.")],
    optimised: Annotated[Path, typer.Argument(metavar="B", help="ONNX file to compare with it.")],
    models: Models = None,
    max_error: Annotated[
        float | None,
        typer.Option(
            "--max-error",
            parser=positive_number,
            metavar="NUMBER",
            help=(
                "Bound on the error by --metric, in place of --tolerance. By default the bound that `ortfuse "
                "quantize` wrote into B, if any."
            ),
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="METRIC",
            help=(
                "Error metric, as for `ortfuse quantize`: l2, max, cosine, top1, tokens, file.py:function or "
                "module:function. By default the metric that B states, or l2. A function that B states is called only "
                "if it is named here, too."
            ),
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels", metavar="FILE", help="Labels for the function of --metric, as for `ortfuse quantize`."
        ),
    ] = None,
    *,
    answer: Answer,
) -> None:
    """Compare two models on generated inputs of several sizes: ortfuse verify a.onnx b.onnx

    The exit code is 0 if they are equal within tolerance, or B keeps the bound that it states or that is given. It is 1 if not,
    and 2 if they could not be compared.
    """
    from ortfuse.report.documents.verification import verification_document

    settings = settings_of(models, original)
    options = options_of(given, None, settings, verify="whole")
    with progress_line() as progress:
        progress("comparing")
        verdict = ortfuse.verify(original, optimised, options, max_error=max_error, metric=metric, labels=labels)
    answer.give(verification_document(str(original), str(optimised), verdict), verdict.to_dict())
    print_unexpected(settings, verdict.ok)
    if not verdict.ok:
        raise typer.Exit(UNUSABLE if verdict.state == "not compared" else NO)
