"""The command `sweep`: many models in one go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ortfuse
from ortfuse.cli import arguments
from ortfuse.cli.arguments import (
    Check,
    CheckUser,
    Config,
    CustomOps,
    Debug,
    Json,
    Lists,
    MaxOpset,
    Passes,
    Patterns,
    Report,
    Rounds,
    Seed,
    Sizes,
    Threads,
    Tolerance,
    check_folder,
)
from ortfuse.cli.output import check_json, write_json
from ortfuse.cli.pages import check_report, write_report
from ortfuse.cli.regression import demand_no_regression, stored
from ortfuse.cli.terminal import err, guarded, out, shown
from ortfuse.cli.usage import NO, seconds, whole_number


def sweep(
    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="PLACE...", help="Models, folders of models, or text files with a path a line.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FOLDER",
            help="Where the results go; by default none is kept.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs",
            "-j",
            parser=whole_number(1),
            metavar="NUMBER",
            help="How many models are worked on at a time.",
            show_default=False,
        ),
    ] = 1,
    bench: Annotated[bool, typer.Option("--bench/--no-bench", help="Measure each result beside its original.")] = True,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store",
            metavar="FILE",
            help="The file that keeps rows, so that a sweep that was stopped goes on; by default FOLDER/sweep.jsonl.",
            show_default=False,
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Work on a cluster of Ray, such as auto or ray://host:10001, instead of here.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        float,
        typer.Option(
            "--limit",
            parser=seconds,
            metavar="TIME",
            help="What one model may take, such as 90s; by default 30min.",
            show_default=False,
        ),
    ] = 1800.0,
    config: Config = None,
    passes: Passes = None,
    patterns: Patterns = None,
    check_user: CheckUser = None,
    lists: Lists = None,
    max_opset: MaxOpset = None,
    size: Sizes = None,
    seed: Seed = None,
    tolerance: Tolerance = None,
    threads: Threads = None,
    rounds: Rounds = None,
    custom_ops: CustomOps = None,
    json_file: Json = None,
    check: Check = None,
    report: Report = None,
    debug: Debug = False,
) -> None:
    """Optimise, verify and measure many models: ortfuse sweep models/ -o optimised/ --jobs 4 --report sweep.html

    Each model has a process of its own: one that fails, hangs or crashes is a row, and not the end. Measurements are never made
    two at a time on one machine. The exit code is 1 if a model is not ok, 3 if one is worse than what --check names.
    """
    with guarded(debug):
        from ortfuse.report.fleet import show_sweep

        options = arguments.options(
            config, passes=passes, patterns=patterns, check_user=check_user, lists=lists, max_opset=max_opset,
            sizes=size, seed=seed, tolerance=tolerance, threads=threads, rounds=rounds, custom_ops=custom_ops, bench=bench,
        )  # fmt: skip
        if output is not None:
            check_folder(output)
        check_json(json_file)
        known = stored(check, "sweep")
        check_report(report)
        with err.status("starting") as status:
            found = ortfuse.sweep(
                places, options, jobs=jobs, output=output, store=store, measured=bench,
                ray=ray, limit=limit,
                progress=lambda row, done, total: status.update(shown(f"{done} of {total}: {row.model} {row.status}")),
            )  # fmt: skip
        show_sweep(out, found)
        write_json(json_file, "sweep", found.to_dict())
        if report is not None:
            from ortfuse.report.pages import fleet_page

            write_report(report, fleet_page(found))
        demand_no_regression(out, "sweep", known, found.to_dict())
    if not found.ok:
        raise typer.Exit(NO)
