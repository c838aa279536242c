"""The command `substitute`: one subgraph for another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ortfuse
from ortfuse.cli import arguments
from ortfuse.cli.arguments import (
    Bench,
    BenchBudget,
    CheckUser,
    Config,
    CustomOps,
    Debug,
    InputFiles,
    Json,
    LeastRounds,
    Link,
    Load,
    MaxOpset,
    Model,
    Output,
    Passes,
    Seed,
    Sizes,
    Target,
    Threads,
    Tolerance,
    Verify,
)
from ortfuse.cli.json_output import check_json, write_json
from ortfuse.cli.parsing import NO
from ortfuse.cli.terminal import guarded, out, progress_line


def substitute(
    model: Model,
    find: Annotated[Path, typer.Option("--find", help="The subgraph to look for, an ONNX file.", show_default=False)],
    replace: Annotated[
        Path, typer.Option("--replace", help="What is to be there instead, an ONNX file.", show_default=False)
    ],
    output: Output = None,
    free: Annotated[
        list[str] | None,
        typer.Option(
            "--free",
            metavar="NAME",
            help="An initializer of the two files that may hold anything, or an attribute, NODE.ATTRIBUTE or "
            "NODE.ATTRIBUTE=NAME; may be given several times.",
            show_default=False,
        ),
    ] = None,
    unproved: Annotated[
        bool, typer.Option("--unproved", help="Apply the pair without a proof; goes with --verify or --verify=sites.")
    ] = False,
    config: Config = None,
    passes: Passes = None,
    target: Target = None,
    max_opset: MaxOpset = None,
    verify: Verify = None,
    check_user: CheckUser = None,
    bench: Bench = None,
    inputs: InputFiles = None,
    size: Sizes = None,
    seed: Seed = None,
    tolerance: Tolerance = None,
    threads: Threads = None,
    rounds: LeastRounds = None,
    bench_budget: BenchBudget = None,
    link: Link = None,
    load: Load = None,
    custom_ops: CustomOps = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Replace one subgraph by another: ortfuse substitute MODEL -o RESULT --find a.onnx --replace b.onnx

    Inputs of the two files are any values of their types and shapes, initializers exactly those numbers unless they are free.
    The pair is proved first. Nothing else is rewritten unless --passes says so. The exit code is 1, and nothing is written, if
    the pair is not proved, the model has no such subgraph, or the result is wrong.
    """
    from ortfuse.interop import UnprovedError

    with guarded(debug):
        options = arguments.options(
            config, output=output, passes=passes, target=target, max_opset=max_opset, verify=verify, check_user=check_user,
            bench=bench, inputs=inputs, sizes=size, seed=seed, tolerance=tolerance, threads=threads, rounds=rounds,
            bench_budget=bench_budget, link=link,
            loaded=load, custom_ops=custom_ops,
        )  # fmt: skip
        check_json(json_file)
        from ortfuse.report.terminal.console import show_proof, show_result, show_substitution

        try:
            with progress_line() as progress:
                done = ortfuse.substitute(
                    model, find, replace, options, free=free or (), unproved=unproved, progress=progress
                )
        except UnprovedError as error:
            show_proof(out, error.report)
            out.print("nothing was replaced; --unproved with --verify=sites or --verify does without the proof")
            write_json(json_file, "substitute", {"model": str(model), "ok": False, "proof": error.report.to_dict()})
            raise typer.Exit(NO) from None
        except ortfuse.WrongResultError as error:
            show_result(out, error.result)
            write_json(json_file, "substitute", {"model": str(model), **error.result.to_dict()})
            raise typer.Exit(NO) from None
        show_substitution(out, done)
        write_json(json_file, "substitute", {"model": str(model), **done.to_dict()})
    if not done.ok:
        raise typer.Exit(NO)
