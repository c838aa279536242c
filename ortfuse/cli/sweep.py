"""The command `sweep`: many models in one go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import ortfuse
from ortfuse.cli import arguments
from ortfuse.cli.arguments import (
    BenchBudget,
    Check,
    CheckUser,
    Config,
    CustomOps,
    Debug,
    Json,
    LeastRounds,
    Lists,
    MaxOpset,
    Passes,
    Patterns,
    Report,
    Seed,
    Sizes,
    Threads,
    Tolerance,
    check_folder,
)
from ortfuse.cli.check import demand_no_regression, stored
from ortfuse.cli.json_output import check_json, write_json
from ortfuse.cli.parsing import NO, seconds, whole_number
from ortfuse.cli.report_option import check_report, write_report
from ortfuse.cli.terminal import err, guarded, out, shown

if TYPE_CHECKING:
    from ortfuse.sweeping import Sweep


def sweep(
    places: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PLACE...",
            help="Models, folders of models, or text files with a path a line; by default what --models names.",
            show_default=False,
        ),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(
            "--models",
            metavar="FILE.toml",
            help="A TOML file with an entry for each model: its inputs, sizes, passes, tolerance and known failures. Its options "
            "go before those of the command line, which are for all models.",
            show_default=False,
        ),
    ] = None,
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
    rounds: LeastRounds = None,
    bench_budget: BenchBudget = None,
    custom_ops: CustomOps = None,
    json_file: Json = None,
    check: Check = None,
    report: Report = None,
    junit: Annotated[
        Path | None,
        typer.Option(
            "--junit",
            metavar="FILE.xml",
            help="Write JUnit XML, a test case a model, to this file.",
            show_default=False,
        ),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(
            "--markdown", metavar="FILE.md", help="Write a summary in Markdown to this file.", show_default=False
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Optimise, verify and measure many models: ortfuse sweep models/ -o optimised/ --jobs 4 --report sweep.html

    Each model has a process of its own: one that fails, hangs or crashes is a row, and not the end. Measurements are never made
    two at a time on one machine. The exit code is 1 if a model is not ok (or is, although --models expects a failure), 3 if one
    is worse than what --check names.
    """
    with guarded(debug):
        from ortfuse.report.terminal.sweep import show_sweep

        options = arguments.options(
            config, passes=passes, patterns=patterns, check_user=check_user, lists=lists, max_opset=max_opset,
            sizes=size, seed=seed, tolerance=tolerance, threads=threads, rounds=rounds, bench_budget=bench_budget,
            custom_ops=custom_ops, bench=bench,
            verify="whole",
        )  # fmt: skip
        if output is not None:
            check_folder(output)
        for path in (json_file, junit, markdown):
            check_json(path)
        known = stored(check, "sweep")
        check_report(report)
        with err.status("starting") as status:
            found = ortfuse.sweep(
                places or (), options, models=models, jobs=jobs, output=output, store=store, measured=bench,
                ray=ray, limit=limit,
                progress=lambda row, done, total: status.update(shown(f"{done} of {total}: {row.model} {row.status}")),
            )  # fmt: skip
        show_sweep(out, found)
        write_json(json_file, "sweep", found.to_dict())
        _write(junit, markdown, found)
        if report is not None:
            from ortfuse.report.html.pages import fleet_page

            write_report(report, fleet_page(found))
        demand_no_regression(out, "sweep", known, found.to_dict())
    if not found.ok:
        raise typer.Exit(NO)


def _write(junit: Path | None, markdown: Path | None, found: Sweep) -> None:
    """Write what services of continuous integration read."""
    from ortfuse.io.atomic_write import write_text

    if junit is not None:
        from ortfuse.report.junit import junit as in_xml

        write_text(junit, in_xml(found))
    if markdown is not None:
        from ortfuse.report.markdown import markdown as as_text

        write_text(markdown, as_text(found))
