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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from ortfuse.cli.closed_streams import discard
from ortfuse.cli.options_as_flags import in_flags
from ortfuse.cli.parsing import INTERRUPTED, UNUSABLE
from ortfuse.errors import OptionError, OrtfuseError, OrtfuseWarning, OutputError
from ortfuse.errors.escape_control_characters import visible, visible_lines

if TYPE_CHECKING:
    from ortfuse.api.models_file import Settings

PIPED = 140
"""The width where the output is no terminal and `COLUMNS` does not say another."""


class Terminal(Console):
    """A console that shows what names of models and files hold as text, and that outlives who reads it."""

    def __init__(self, **how: Any) -> None:
        super().__init__(emoji=False, **how)

    def print(self, *objects: Any, markup: bool | None = None, **how: Any) -> None:
        """Print texts and tables, in which nothing is markup unless it is said to be."""
        super().print(*objects, markup=bool(markup), **how)

    def render_str(self, text: str, **how: Any) -> Text:
        """Text as it is printed: in one line, whatever is in it. Text of several lines is given as `rich.text.Text`."""
        return super().render_str(visible(text), **how)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """The console for results; texts that were made elsewhere are made fit to be shown."""
        shown = (one if one.control else Segment(visible_lines(one.text), one.style) for one in buffer)
        return super()._render_buffer(shown)

    def _write_buffer(self) -> None:
        """Write what waits to be written.

        Nobody may read any more, as with `| head`: then the rest goes nowhere, and the command goes on to its own end.

        Raises:
            OutputError: Standard output cannot be written.
        """
        try:
            super()._write_buffer()
        except BrokenPipeError:
            discard(self.file)
        except OSError as error:
            discard(self.file)
            if not self.stderr:
                raise OutputError(f"standard output cannot be written: {error.strerror or error}") from error


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


out = Terminal(width=None if _is_terminal() or os.environ.get("COLUMNS", "").isdigit() else PIPED)
err = Terminal(stderr=True)

EACH = 5.0
"""The seconds between lines of progress that is printed to no terminal."""


def shown(text: str) -> Text:
    """A text for what takes markup: none of it is."""
    return Text(visible(text))


@contextlib.contextmanager
def progress_line(*, printed: bool = False) -> Iterator[Callable[[str], None]]:
    """A status line on the terminal; nothing if the output is no terminal, or if it is to be `printed`, a line now and then."""
    if err.is_terminal:
        with err.status("starting") as status:
            yield lambda text: status.update(shown(text))
        return
    if not printed:
        yield lambda text: None
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
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=visible(text))


def print_unexpected(settings: Settings | None, equal: bool) -> None:
    """Print that a comparison ended as the file of models says, if that is not as usual."""
    if settings is not None and (remark := settings.remark(equal)):
        out.print(remark, highlight=False)


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
