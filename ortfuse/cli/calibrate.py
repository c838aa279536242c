"""The command `calibrate`: measure rule costs and session settings on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ortfuse
from ortfuse.cli.command_output import Answer
from ortfuse.cli.options_as_flags import Given, options_of, with_options
from ortfuse.cli.terminal import progress_bar
from ortfuse.errors import OptionError
from ortfuse.options.parse_text import seconds


@with_options
def calibrate(
    given: Given,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            parser=seconds,
            metavar="TIME",
            help=(
                "Time limit after which no measurement begins, such as 120s. The closest decisions come first, and "
                "the next run resumes."
            ),
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="RULE", help="Family (attention) or rule to measure; by default all. Repeatable."
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Repeat measurements that are already cached.")] = False,
    environment: Annotated[
        Path | None,
        typer.Option(
            "--environment",
            metavar="FOLDER",
            help=(
                "Virtual environment of this Python whose ONNX Runtime is measured, such as an older release. "
                "`optimize --runtime` chooses by it."
            ),
        ),
    ] = None,
    session: Annotated[
        Path | None,
        typer.Option(
            "--session",
            metavar="MODEL",
            help="Measure session settings for this model instead of rule costs. A result of `optimize` is typical.",
        ),
    ] = None,
    *,
    answer: Answer,
) -> None:
    """Measure rule costs or session settings on this machine: ortfuse calibrate --budget 120

    Run it with nothing else running; it takes some minutes. `optimize` then chooses rules by these costs. They are cached for
    this build of the runtime, this processor and this number of threads.

    With --session, the settings that pay off are written beside the model, and recommended for models of the same structure.
    """
    from ortfuse.report.documents.calibration import calibration_document, settings_document

    if session is None:
        _refuse(
            "is for a model; give it with `--session`, or leave this out",
            sizes=given.get("sizes"),
            rounds=given.get("rounds"),
        )
        with progress_bar("measuring") as step:
            found = ortfuse.calibrate(
                budget=budget, only=only or (), threads=given.get("threads", 0), patterns=given.get("patterns", ()),
                target=given.get("target"), again=again, environment=environment, step=step,
            )  # fmt: skip
        answer.give(calibration_document(found), found.to_dict())
        return
    rules = {
        "budget": budget,
        "only": only,
        "patterns": given.get("patterns"),
        "again": again,
        "environment": environment,
    }
    _refuse("is for rules, and `--session` measures a model; leave out one of the two", **rules)
    measured = options_of(given, bench=True)
    with progress_bar("measuring") as step:
        settings = ortfuse.calibrate_session(
            session,
            sizes=measured.sizes,
            rounds=measured.rounds,
            threads=measured.threads,
            target=measured.target,
            step=step,
        )
    answer.give(settings_document(settings), settings.to_dict())


def _refuse(why: str, **given: object) -> None:
    """Refuse what is for the other of the two things that `calibrate` measures, rather than take minutes without it."""
    for name, value in given.items():
        if value:
            raise OptionError(name, why)
