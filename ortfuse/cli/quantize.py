"""The command `quantize`: the fastest model under a bound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import ortfuse
from ortfuse.cli.arguments import Config, Debug, Exclude, Json, Model, Models, Only, Report
from ortfuse.cli.given_options import Given, settings_of, with_options
from ortfuse.cli.given_options import options as options_of
from ortfuse.cli.json_output import check_json, refused, write_json
from ortfuse.cli.parsing import NO
from ortfuse.cli.report_option import check_report, profiled, write_report
from ortfuse.cli.terminal import err, guarded, out, progress_line
from ortfuse.errors import BoundError, NoSiteError, OptionError
from ortfuse.options import Options
from ortfuse.options.parse_text import positive_number, seconds


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
            show_default=False,
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
            show_default=False,
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
            show_default=False,
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
            show_default=False,
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
            show_default=False,
        ),
    ] = None,
    goal: Annotated[
        str | None,
        typer.Option(
            "--goal",
            metavar="GOAL",
            help="Quantity to minimize: latency (the default), size or memory.",
            show_default=False,
        ),
    ] = None,
    judged: Annotated[
        list[str] | None,
        typer.Option(
            "--judge",
            metavar="OUTPUT",
            help="Output that the bound applies to; by default all outputs. Repeatable.",
            show_default=False,
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
            show_default=False,
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
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store",
            metavar="FILE",
            help="File that keeps measurements, so that a stopped search resumes; by default in the cache folder.",
            show_default=False,
        ),
    ] = None,
    config: Config = None,
    models: Models = None,
    json_file: Json = None,
    report: Report = None,
    debug: Debug = False,
) -> None:
    """Find the fastest model under an error bound: ortfuse quantize bert.onnx -o bert.q.onnx --inputs DIR --max-error 0.01

    Optimise the model first. Measure each quantization scheme at each site on this machine: its speedup, and its error at the
    outputs. Choose the best combination, and check the bound on inputs that the search has not seen.

    The exit code is 1 if no site is quantized; then nothing is written.
    """
    with guarded(debug):
        from ortfuse.report.terminal.quantization import check_curve, show_quantized, write_curve

        settings = settings_of(models, model)
        if settings is not None and max_error is None and not scheme:
            max_error = settings.max_error
        options = options_of(given, config, settings, bench=True)
        check_json(json_file)
        check_report(report)
        if max_error is None:
            _refuse_a_search(curve=curve, budget=budget, store=store, report=report, judge=judged, labels=labels)
            _lower(model, scheme or (), options, json_file, only or (), exclude or (), form)
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
            _say_no(str(error))
            write_json(json_file, "quantize", refused(model, error))
            if report is not None:
                from ortfuse.report.documents.tuning import unmet_document

                write_report(report, unmet_document(str(model), str(error), ()))
            raise typer.Exit(NO) from None
        show_quantized(out, found)
        if found.outcome.reason:
            _say_no(found.outcome.reason)
        if curve is not None:
            write_curve(curve, found.outcome)
        write_json(json_file, "quantize", {"model": str(model), **found.to_dict()})
        if report is not None:
            from ortfuse.report.html.pages import quantisation_page

            profiles = None if found.outcome.reason else profiled(model, found.written or found.model, options)
            write_report(report, quantisation_page(str(model), found, profiles))
        if found.outcome.reason:
            raise typer.Exit(NO)


def _say_no(reason: str) -> None:
    """Say why nothing is in lower precision: no scheme is legal, none keeps the bound, or none pays."""
    text = f"nothing is lowered: {reason}; nothing was written"
    err.print(text, style="red", markup=False, highlight=False, soft_wrap=True)


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
    json_file: Path | None,
    only: Sequence[str],
    exclude: Sequence[str],
    form: str,
) -> None:
    """Lower a model without a search."""
    from ortfuse.report.terminal.quantization import show_lowered

    if not schemes:
        raise OptionError("max_error", "say how large the error may be, such as 0.01, or name schemes with --scheme")
    try:
        with progress_line() as progress:
            found = ortfuse.lower(model, schemes, options, only=only, exclude=exclude, form=form, progress=progress)  # type: ignore[arg-type]
    except NoSiteError as error:
        _say_no(str(error))
        write_json(json_file, "quantize", refused(model, error))
        raise typer.Exit(NO) from None
    show_lowered(out, found)
    write_json(json_file, "quantize", {"model": str(model), **found.to_dict()})
