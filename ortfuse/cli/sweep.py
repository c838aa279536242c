"""The command `sweep`: optimise, verify and measure many models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import ortfuse
from ortfuse.cli.command_output import Answer
from ortfuse.cli.json_output import check_json
from ortfuse.cli.options_as_flags import Given, options_of, with_options
from ortfuse.cli.parsing import NO
from ortfuse.cli.regression_check import demand_no_regression, stored
from ortfuse.cli.shared_arguments import Check, Config
from ortfuse.cli.terminal import err, out, shown
from ortfuse.io.atomic_write import check_folder
from ortfuse.options.parse_text import seconds, whole_number

if TYPE_CHECKING:
    from ortfuse.sweeping import Sweep


@with_options
def sweep(
    given: Given,
    places: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PLACE...",
            help=(
                "Models, folders of models, or text files with one path per line. By default the models that --models "
                "names."
            ),
        ),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(
            "--models",
            metavar="FILE.toml",
            help=(
                "TOML file with an entry per model: its inputs, sizes, passes, tolerance and known failures. Its "
                "options take precedence over the command line, which applies to all models."
            ),
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FOLDER", help="Folder for the results; by default none is kept."),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs", "-j", parser=whole_number(1), metavar="NUMBER", help="Number of models to process at a time."
        ),
    ] = 1,
    bench: Annotated[
        bool, typer.Option("--bench/--no-bench", help="Measure each result beside its original (the default).")
    ] = True,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store",
            metavar="FILE",
            help="File that keeps the rows, so that a stopped sweep resumes; by default FOLDER/sweep.jsonl.",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray", metavar="ADDRESS", help="Address of a Ray cluster to run on, such as auto or ray://host:10001."
        ),
    ] = None,
    limit: Annotated[
        float,
        typer.Option(
            "--limit", parser=seconds, metavar="TIME", help="Time limit per model, such as 90s; by default 30min."
        ),
    ] = 1800.0,
    config: Config = None,
    check: Check = None,
    junit: Annotated[
        Path | None,
        typer.Option("--junit", metavar="FILE.xml", help="Write JUnit XML to this file, one test case per model."),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE.md", help="Write a summary in Markdown to this file.")
    ] = None,
    *,
    answer: Answer,
) -> None:
    """Optimise, verify and measure many models: ortfuse sweep models/ -o optimised/ --jobs 4 --report sweep.html

    Each model has a process of its own; a failure, timeout or crash is one row of the report. Measurements never overlap on one
    machine.

    The exit code is 1 if a model fails, or passes although --models expects a failure. It is 3 on a regression against --check.
    """
    from ortfuse.report.documents.sweep import sweep_document

    options = options_of(given, config, bench=bench, verify="whole")
    if output is not None:
        check_folder(output)
    for path in (junit, markdown):
        check_json(path)
    known = stored(check, "sweep")
    with err.status("starting") as status:
        found = ortfuse.sweep(
            places or (), options, models=models, jobs=jobs, output=output, store=store, measured=bench,
            ray=ray, limit=limit,
            progress=lambda row, done, total: status.update(shown(f"{done} of {total}: {row.model} {row.status}")),
        )  # fmt: skip
    answer.give(sweep_document(found), found.to_dict())
    _write(junit, markdown, found)
    demand_no_regression(out, "sweep", known, found.to_dict())
    if not found.ok:
        raise typer.Exit(NO)


def _write(junit: Path | None, markdown: Path | None, found: Sweep) -> None:
    """Write what services of continuous integration read."""
    from ortfuse.io.atomic_write import write_text

    if junit is not None:
        from ortfuse.report.sweep_junit import junit as in_xml

        write_text(junit, in_xml(found))
    if markdown is not None:
        from ortfuse.report.sweep_markdown import markdown as as_text

        write_text(markdown, as_text(found))
