"""The consoles that commands print to: one for results, the other for progress and errors."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import typer
from rich.console import Console

from ortfuse.cli.arguments import in_flags
from ortfuse.cli.usage import INTERRUPTED, UNUSABLE
from ortfuse.errors import OptionError, OrtfuseError, OrtfuseWarning

PIPED = 140
"""The width where the output is no terminal and `COLUMNS` does not say another."""

out = Console(width=None if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else PIPED)
err = Console(stderr=True)

EACH = 5.0
"""Where progress is printed instead of shown on a terminal, so many seconds go by between its lines."""


@contextlib.contextmanager
def progress_line(*, printed: bool = False) -> Iterator[Callable[[str], None]]:
    """A status line on the terminal; nothing if the output is no terminal, or if it is to be `printed`, a line now and then."""
    if not printed or err.is_terminal:
        with err.status("starting") as status:
            yield lambda text: status.update(text)
        return
    latest, done = [""], threading.Event()
    printing = threading.Thread(target=_now_and_then, args=(latest, done), daemon=True)
    printing.start()
    try:
        yield functools.partial(operator.setitem, latest, 0)
    finally:
        done.set()
        printing.join()


def _now_and_then(latest: Sequence[str], done: threading.Event) -> None:
    """Print the latest text if it is another one, until all is done."""
    started, said = time.monotonic(), ""
    while not done.wait(EACH):
        if latest[0] != said:
            said = latest[0]
            err.print(f"{time.monotonic() - started:.0f} s: {said}", markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on the terminal, with what is done, how much there is, and a text; nothing if it is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=text)


def _warn(usual: Callable[..., object], message: Warning | str, category: type[Warning], *where: Any) -> None:
    if issubclass(category, OrtfuseWarning):
        err.print(f"warning: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    else:
        usual(message, category, *where)


@contextlib.contextmanager
def guarded(debug: bool) -> Iterator[None]:
    """Print errors that ortfuse raises on purpose without a traceback and exit with code 2; print its warnings in a line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", OrtfuseWarning)
            warnings.showwarning = functools.partial(_warn, warnings.showwarning)
            yield
    except OrtfuseError as error:
        if debug:
            raise
        text = in_flags(error) if isinstance(error, OptionError) else str(error)
        err.print(f"error: {text}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(UNUSABLE) from None
    except KeyboardInterrupt:
        err.print("interrupted; no file is left half written")
        raise typer.Exit(INTERRUPTED) from None
