"""The command `quantize`: find the fastest model under an error bound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import ortfuse
from ortfuse.cli.command_output import Answer, print_refusal, profiled
from ortfuse.cli.json_output import check_json
from ortfuse.cli.options_as_flags import Given, options_of, settings_of, with_options
from ortfuse.cli.parsing import NO
from ortfuse.cli.shared_arguments import Config, Exclude, Model, Models, Only
from ortfuse.cli.terminal import progress_line
from ortfuse.errors import BoundError, NoSiteError, OptionError
from ortfuse.options import Options
from ortfuse.options.parse_text import positive_number, seconds

if TYPE_CHECKING:
    from ortfuse.report.document import Document

NOTHING = "nothing is lowered: "
"""The words before the reason why no site is in lower precision."""


@with_options
def quantize(
    given: Given,
    model: Model,
    max_error: Annotated[
        float | None,
        typer.Option(
            "--max-error",
            parser=positive_number,
            metavar="NUMBER",
            help="Largest error of the outputs, such as 0.01, measured by --metric.",
        ),
    ] = None,
    scheme: Annotated[
        list[str] | None,
        typer.Option(
            "--scheme",
            metavar="NAME",
            help=(
                "Quantization scheme or family of schemes to choose from, such as weight_int4 or "
                "dynamic_int8.channel. Without --max-error, each site gets the first legal one, without a search; "
                "this suits models larger than memory. Repeatable."
            ),
        ),
    ] = None,
    only: Only = None,
    exclude: Exclude = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help=(
                "Form of the result: onnxruntime (the default) or qdq. onnxruntime uses operators of the runtime. qdq "
                "uses QuantizeLinear and DequantizeLinear, for TensorRT, OpenVINO and others; weights are made small, "
                "and nothing is timed."
            ),
        ),
    ] = "onnxruntime",
    metric: Annotated[
        str,
        typer.Option(
            "--metric",
            metavar="METRIC",
            help=(
                "Error metric: l2 (relative Euclidean error, the default), max (relative to the largest magnitude), "
                "cosine, top1 or tokens (share of decisions that differ), or file.py:function. A function takes the "
                "outputs of the original, those of the result, and the inputs; each is a list of arrays by name."
            ),
        ),
    ] = "l2",
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            metavar="FILE",
            help=(
                "Labels for the function of --metric, one per set of inputs: a .npy or .csv file, or "
                "file.py:function. The metric finds them as 'labels' among the inputs; a function takes all sets of "
                "inputs."
            ),
        ),
    ] = None,
    goal: Annotated[
        str | None,
        typer.Option("--goal", metavar="GOAL", help="Quantity to minimize: latency (the default), size or memory."),
    ] = None,
    judged: Annotated[
        list[str] | None,
        typer.Option(
            "--judge", metavar="OUTPUT", help="Output that the bound applies to; by default all outputs. Repeatable."
        ),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(
            "--curve",
            metavar="FILE",
            help=(
                "Run the choices under other bounds too, and write their errors and times to this file (.json, .csv "
                "or .png)."
            ),
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            parser=seconds,
            metavar="TIME",
            help=(
                "Time limit of the search, such as 60s or 10min; by default none. The best choice by then is the "
                "result, and the same command resumes the search."
            ),
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store",
            metavar="FILE",
            help="File that keeps measurements, so that a stopped search resumes; by default in the cache folder.",
        ),
    ] = None,
    config: Config = None,
    models: Models = None,
    *,
    answer: Answer,
) -> None:
    """Find the fastest model under an error bound: ortfuse quantize bert.onnx -o bert.q.onnx --inputs DIR --max-error 0.01

    Optimise the model first. Measure each quantization scheme at each site on this machine: its speedup, and its error at the
    outputs. Choose the best combination, and check the bound on inputs that the search has not seen.

    The exit code is 1 if no site is quantized; then nothing is written.
    """
    from ortfuse.report.curve_files import check_curve, write_curve
    from ortfuse.report.documents.quantization import quantization_document

    settings = settings_of(models, model)
    if settings is not None and max_error is None and not scheme:
        max_error = settings.max_error
    options = options_of(given, config, settings, bench=True)
    if max_error is None:
        _refuse_a_search(curve=curve, budget=budget, store=store, judge=judged, labels=labels)
        _lower(model, scheme or (), options, answer, only or (), exclude or (), form)
        return
    if curve is not None:
        check_curve(curve)
        check_json(curve)
    try:
        with progress_line(printed=True) as progress:
            found = ortfuse.quantize(
                model, options, max_error=max_error, metric=metric, labels=labels,
                goal=goal, outputs=judged or (), schemes=scheme or (), only=only or (), exclude=exclude or (),  # type: ignore[arg-type]
                form=form,  # type: ignore[arg-type]
                curve=curve is not None, budget=budget, store="" if store is None else store, progress=progress,
            )  # fmt: skip
    except BoundError as error:
        answer.refuse(model, error, prefix=NOTHING)

    def page() -> Document:
        profiles = None if found.outcome.reason else profiled(model, found.written or found.model, options)
        return quantization_document(str(model), found, profiles)

    if curve is not None:
        write_curve(curve, found.outcome)
    answer.give(quantization_document(str(model), found), {"model": str(model), **found.to_dict()}, page)
    if found.outcome.reason:
        print_refusal(f"{NOTHING}{found.outcome.reason}")
        raise typer.Exit(NO)


def _refuse_a_search(**given: object) -> None:
    """Refuse options of a search where there is none.

    Raises:
        OptionError: One is given.
    """
    for name, value in given.items():
        if value is not None and value != []:
            raise OptionError(name, "is about the search under a bound; add `max_error`, or leave it out")


def _lower(
    model: Path,
    schemes: Sequence[str],
    options: Options,
    answer: Answer,
    only: Sequence[str],
    exclude: Sequence[str],
    form: str,
) -> None:
    """Lower a model without a search."""
    from ortfuse.report.documents.quantization import lowering_document

    if not schemes:
        raise OptionError("max_error", "say how large the error may be, such as 0.01, or name schemes with --scheme")
    try:
        with progress_line() as progress:
            found = ortfuse.lower(model, schemes, options, only=only, exclude=exclude, form=form, progress=progress)  # type: ignore[arg-type]
    except NoSiteError as error:
        answer.refuse(model, error, prefix=NOTHING)
    answer.give(lowering_document(str(model), found), {"model": str(model), **found.to_dict()})
