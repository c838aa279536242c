"""Measure everything again:

    python -m benchmarks                                   # all, for hours; a stopped run goes on where it was
    python -m benchmarks --list                            # all questions, how long each took last, its summary
    python -m benchmarks --only latency --only trust.order # a question with all its parts, or one part
    python -m benchmarks --minutes 40                      # begin nothing after that, and stop what still runs
    python -m benchmarks --quick                           # a small part of each in a minute or two; stores nothing

Each benchmark is a process of its own; its output is kept in `.run/NAME.log`. A result takes the place of the stored one when it
is whole. A benchmark that lacks a package or the full-size models (`--only exports`) is left out with a note. At the end the
figures in the README and the documents, and the picture, are made anew from the summaries. The exit code is 1 if a benchmark
failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.jobs import ROOT, STANDALONE, Job, chosen
from benchmarks.running import Ended, Run, took

FOLDER = ROOT / "benchmarks" / ".run"
AT_ONCE = 2
"""Small parts that run at the same time; a benchmark whose result is stored runs alone."""


def main(
    only: Annotated[list[str] | None, typer.Option(help="A question, or a part of one; see --list.")] = None,
    quick: Annotated[bool, typer.Option(help="A small part of each, on golden models, storing nothing.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the questions.")] = False,
    minutes: Annotated[float, typer.Option(help="The time for all; 0 is without end.")] = 0.0,
    again: Annotated[bool, typer.Option(help="Do not go on where the last run was stopped.")] = False,
) -> None:
    """Run benchmarks, and make the figures of the documents anew."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    try:
        jobs = chosen(only or ())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if listed:
        console.print(_overview(jobs))
        return
    until = time.monotonic() + 60 * minutes if minutes else float("inf")
    ended = _small(jobs, until, console) if quick else _all(jobs, until, console, again=again)
    figures = _figures(quick)
    console.print(_table(ended))
    if figures:
        console.print(figures, style="red", markup=False)
    if figures or any(one.status == "failed" for one in ended):
        raise typer.Exit(1)


def _all(jobs: Sequence[Job], until: float, console: Console, *, again: bool) -> list[Ended]:
    """Whole benchmarks, one after the other."""
    run = Run(FOLDER)
    if again:
        run.forget()
    known, found = run.known(), []
    for number, job in enumerate(jobs, 1):
        if job.name in known:
            found.append(known[job.name])
            console.print(f"{number}/{len(jobs)} {job.name}: done before")
            continue
        if time.monotonic() > until:
            found.append(Ended(job.name, "left out", reason="the time is up"))
            continue
        with console.status(f"{number}/{len(jobs)} {job.name}") as status:
            said = f"{number}/{len(jobs)} {job.name}: "
            ended = run.do(job, until, lambda line, status=status, said=said: status.update(said + line))
        found.append(ended)
        console.print(f"{said}{ended.status}, {ended.seconds:.0f} s {ended.reason}", markup=False, highlight=False)
    if all(one.status in ("ok", "no") or one.reason.startswith("needs") for one in found):
        run.forget()  # the run is over; the next one measures everything again
    return found


def _small(jobs: Sequence[Job], until: float, console: Console) -> list[Ended]:
    """Small parts, two at a time."""
    parts = [job for job in jobs if job.quick is not None]
    with tempfile.TemporaryDirectory(prefix="benchmarks") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        run = Run(Path(folder), quick=True)
        running = {pool.submit(run.do, job, until): job for job in parts}
        found = {}
        for number, future in enumerate(as_completed(running), 1):
            ended = found[running[future].name] = future.result()
            text = f"{number}/{len(parts)} {ended.name}: {ended.status}, {ended.seconds:.1f} s {ended.reason}"
            console.print(text, markup=False, highlight=False)
    return [found[job.name] for job in parts]


def _figures(quick: bool) -> str:
    """Make the figures of the documents and the picture anew, or only compare them; return the differences in words."""
    for script in ("figures.py", "picture.py"):
        arguments = ["--check"] if quick else []
        command = [sys.executable, str(ROOT / "docs" / script), *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            return (done.stdout + done.stderr).strip()
    return ""


def _table(ended: Sequence[Ended]) -> Table:
    made = Table(title="What ran", title_justify="left")
    for heading in ("benchmark", "status", "seconds", "why"):
        made.add_column(heading, justify="right" if heading == "seconds" else "left", overflow="fold")
    for one in ended:
        made.add_row(one.name, one.status, f"{one.seconds:.1f}", one.reason)
    made.add_row("all", "", f"{sum(one.seconds for one in ended):.1f}", "")
    return made


def _overview(jobs: Sequence[Job]) -> Table:
    made = Table(title="python -m benchmarks --only NAME", title_justify="left")
    for heading in ("name", "question", "took", "result in benchmarks/", "quick", "now"):
        made.add_column(heading, overflow="fold")
    for job in jobs:
        made.add_row(
            job.name, job.question, took(job), job.stored, "yes" if job.quick is not None else "", job.missing()
        )
    for module, reason in STANDALONE.items():
        made.add_row(f"python -m {module}", reason)
    return made


if __name__ == "__main__":
    typer.run(main)
