"""The command `quantize`: the fastest model under a bound."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ortfuse
from ortfuse.cli import arguments
from ortfuse.cli.arguments import (
    Config,
    CustomOps,
    Debug,
    InputFiles,
    Json,
    Link,
    Load,
    MaxOpset,
    Model,
    Output,
    Passes,
    Patterns,
    Rounds,
    Seed,
    Sizes,
    Threads,
    check_json,
    write_json,
)
from ortfuse.cli.terminal import err, guarded, out, progress_line
from ortfuse.cli.usage import NO, positive_number
from ortfuse.errors import BoundError


def quantize(
    model: Model,
    max_error: Annotated[
        float,
        typer.Option(
            "--max-error",
            parser=positive_number,
            metavar="NUMBER",
            help="The largest error of the outputs, such as 0.01; see --metric.",
            show_default=False,
        ),
    ],
    output: Output = None,
    inputs: InputFiles = None,
    metric: Annotated[
        str,
        typer.Option(
            "--metric",
            help="l2: relative Euclidean error of each output (the default); max: the largest difference relative to the largest "
            "magnitude; cosine; top1 or tokens: the share of decisions that differ; or module:function, which takes the "
            "original's outputs, the result's and the inputs, a list of arrays by name each, and returns the error.",
            show_default=False,
        ),
    ] = "l2",
    goal: Annotated[
        str,
        typer.Option("--goal", help="What is to be small: latency (the default), size or memory.", show_default=False),
    ] = "latency",
    judged: Annotated[
        list[str] | None,
        typer.Option(
            "--judge", help="An output that counts; may be given several times; by default all do.", show_default=False
        ),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(
            "--curve",
            metavar="FILE",
            help="Run the choices under other bounds too, and write their errors and times: .json, .csv or .png.",
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store",
            metavar="FILE",
            help="Where measurements are kept, so that a search that was stopped goes on; by default in the cache folder.",
            show_default=False,
        ),
    ] = None,
    config: Config = None,
    passes: Passes = None,
    patterns: Patterns = None,
    max_opset: MaxOpset = None,
    size: Sizes = None,
    seed: Seed = None,
    threads: Threads = None,
    rounds: Rounds = None,
    link: Link = None,
    load: Load = None,
    custom_ops: CustomOps = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Find the fastest model under an error bound: ortfuse quantize bert.onnx -o bert.q.onnx --inputs DIR --max-error 0.01

    The model is optimised, then every rung of lower precision at every site is measured on this machine: the time that it wins,
    and what it alone does to the outputs. The best choice is run on inputs that the search never saw until the bound holds
    there. The exit code is 1 if nothing can keep the bound, and then nothing is written.
    """
    with guarded(debug):
        from ortfuse.report.quantization import check_curve, show_quantized, write_curve

        options = arguments.options(
            config, output=output, inputs=inputs, passes=passes, patterns=patterns, max_opset=max_opset, sizes=size, seed=seed,
            threads=threads, rounds=rounds, link=link, loaded=load, custom_ops=custom_ops, bench=True,
        )  # fmt: skip
        check_json(json_file, options.output)
        if curve is not None:
            check_curve(curve)
            check_json(curve, options.output)
        try:
            with progress_line() as progress:
                found = ortfuse.quantize(
                    model, options, max_error=max_error, metric=metric, goal=goal, outputs=judged or (),  # type: ignore[arg-type]
                    curve=curve is not None, store="" if store is None else store, progress=progress,
                )  # fmt: skip
        except BoundError as error:
            err.print(f"{error}; nothing was written", style="red", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(NO) from None
        show_quantized(out, found)
        if curve is not None:
            write_curve(curve, found.outcome)
        write_json(json_file, {"model": str(model), **found.to_dict()})
