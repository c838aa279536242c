"""The commands about this machine: `profile`, where the time of a model goes, and `calibrate`, what rules buy here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ortfuse
from ortfuse.cli import arguments
from ortfuse.cli.arguments import (
    CustomOps,
    Debug,
    InputFiles,
    Json,
    Model,
    Models,
    Patterns,
    Report,
    Rounds,
    Seed,
    Sizes,
    Threads,
)
from ortfuse.cli.json_output import check_json, write_json
from ortfuse.cli.parsing import seconds
from ortfuse.cli.report_option import check_report, write_report
from ortfuse.cli.terminal import guarded, out, progress_bar, progress_line
from ortfuse.errors import OptionError


def profile(
    model: Model,
    models: Models = None,
    inputs: InputFiles = None,
    size: Sizes = None,
    seed: Seed = None,
    threads: Threads = None,
    rounds: Rounds = None,
    remedies: Annotated[
        bool,
        typer.Option(
            "--remedies/--no-remedies",
            help="Find out what `ortfuse optimize` would fuse or nearly would, where lower precision is legal, and what "
            "denormal numbers cost (the default).",
        ),
    ] = True,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write a row for each executed node to this file.", show_default=False)
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option("--png", help=r"Draw the times and the roofline (needs ortfuse\[plot]).", show_default=False),
    ] = None,
    report: Report = None,
    custom_ops: CustomOps = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Tell where the time of a model goes: ortfuse profile bert.onnx --size sequence=128

    Time by operator, fused block, module of the original network and rule; what the runtime did at session creation; the
    fraction of what this machine can do; latency, throughput and memory; and the bottlenecks, each with what can be done.
    """
    with guarded(debug):
        from ortfuse.report.terminal.profile import check_plot, show_profile, write_csv, write_png

        for path in (json_file, csv, png):
            check_json(path)
        check_plot(png)
        check_report(report)
        options = arguments.options(
            None, arguments.settings_of(models, model), inputs=inputs, sizes=size, seed=seed, threads=threads, rounds=rounds,
            bench=True, custom_ops=custom_ops,
        )  # fmt: skip
        with progress_line() as progress:
            found = ortfuse.profile(model, options, remedies=remedies, progress=progress)
        show_profile(out, found)
        write_csv(csv, found)
        write_png(png, found, model.name)
        write_json(json_file, "profile", {"model": str(model), **found.to_dict()})
        if report is not None:
            from ortfuse.report.html.pages import profile_page

            write_report(report, profile_page(model.name, found))


def calibrate(
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            parser=seconds,
            metavar="TIME",
            help="Begin nothing more after this time, such as 120s; the next run goes on. The closest decisions come first.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="RULE",
            help="A family (attention) or a rule (attention.unmasked_to_multi_head_attention) to measure; may be given "
            "several times; by default all.",
            show_default=False,
        ),
    ] = None,
    threads: Threads = None,
    patterns: Patterns = None,
    again: Annotated[bool, typer.Option("--again", help="Measure what is known too.")] = False,
    session: Annotated[
        Path | None,
        typer.Option(
            "--session",
            metavar="MODEL",
            help="Measure what settings of a session buy for this model instead, such as a result of `optimize`.",
            show_default=False,
        ),
    ] = None,
    size: Sizes = None,
    rounds: Rounds = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Measure on this machine what rules buy that are chosen by cost: ortfuse calibrate --budget 120

    Takes some minutes, with nothing else running. Each measurement is kept in your cache folder as soon as it is made, for
    this build of the runtime, this processor and this number of threads, and `optimize` chooses by them from then on.
    With --session, what pays is written beside the model, and recommended for models of the same structure.
    """
    with guarded(debug):
        from ortfuse.report.terminal.rule_costs import show_calibration, show_settings

        check_json(json_file)
        if session is None:
            _refuse("is for a model; give it with `--session`, or leave this out", sizes=size, rounds=rounds)
        else:
            rules = {"budget": budget, "only": only, "patterns": patterns, "again": again}
            _refuse("is for rules, and `--session` measures a model; leave out one of the two", **rules)
        if session is not None:
            measured = arguments.options(sizes=size, rounds=rounds, threads=threads, bench=True)
            with progress_bar("measuring") as step:
                settings = ortfuse.calibrate_session(
                    session, sizes=measured.sizes, rounds=measured.rounds, threads=measured.threads, step=step
                )
            show_settings(out, settings)
            write_json(json_file, "calibrate", settings.to_dict())
            return
        with progress_bar("measuring") as step:
            found = ortfuse.calibrate(
                budget=budget, only=only or (), threads=threads or 0, patterns=patterns or (), again=again, step=step
            )
        show_calibration(out, found)
        write_json(json_file, "calibrate", found.to_dict())


def _refuse(why: str, **given: object) -> None:
    """Refuse what is for the other of the two things that `calibrate` measures, rather than take minutes without it."""
    for name, value in given.items():
        if value:
            raise OptionError(name, why)
