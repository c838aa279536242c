"""Run the command `ortfuse`, also as `python -m ortfuse`; handle interruptions during imports like later ones."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ortfuse.cli.closed_streams import discard, secure
from ortfuse.errors.escape_control_characters import visible, visible_lines

_INTERRUPTED = 130

_TERMINATED = 143

_UNUSABLE = 2

_SAID = "interrupted; no file is left half written\n"

_USUAL: Mapping[signal.Signals, Callable[[int, FrameType | None], Any] | signal.Handlers] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
"""The signals that interrupt, and what takes care of them where nobody has changed that."""

_AGAIN = 0.05
"""Seconds until an interruption that was lost comes again."""


class Interruptions:
    """Have an interruption (Ctrl-C, or the signal to terminate) end the program wherever it comes, and tidily.

    It may come where Python cannot pass it on: while a compiled library is loaded, which then fails with an error of its own, or
    while an object is disposed of, where exceptions are printed and forgotten.

    Attributes:
        came: Whether there was one.
        code: The exit code that tells which it was.
    """

    def __init__(self) -> None:
        self.came = False
        self.code = _INTERRUPTED

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Take note of interruptions, unless they are ignored or somebody else takes care of them.

        A job in the background ignores Ctrl-C, and is terminated all the same.
        """
        known = {number: signal.getsignal(number) for number in _USUAL}
        watched = [number for number, usual in _USUAL.items() if known[number] is usual]
        elsewhere = known[signal.SIGINT] not in (signal.default_int_handler, signal.SIG_IGN)
        if not watched or elsewhere or threading.current_thread() is not threading.main_thread():
            yield
            return
        hook = sys.unraisablehook
        for number in watched:
            signal.signal(number, self._noted)
        sys.unraisablehook = functools.partial(_not_passed_on, hook, watched[0])
        try:
            yield
        finally:
            for number in watched:
                signal.signal(number, _USUAL[number])
            sys.unraisablehook = hook

    def _noted(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        if number == signal.SIGTERM:
            self.code = _TERMINATED
        signal.default_int_handler(number, frame)


def _not_passed_on(usual: Callable[[Any], object], number: signal.Signals, what: Any) -> None:
    if not issubclass(what.exc_type, KeyboardInterrupt):
        usual(what)
        return
    again = threading.Timer(_AGAIN, _interrupt, [number])
    again.daemon = True
    again.start()


def _interrupt(number: signal.Signals) -> None:
    """Interrupt the main thread, also where it waits for something, if the system can."""
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, number)
    else:
        signal.raise_signal(number)


def main() -> None:
    """Load the command line, which takes a second, and run it."""
    began = time.monotonic()
    secure()
    interruptions = Interruptions()
    try:
        with interruptions.watched():
            gc.disable()  # nearly all that is made while modules are loaded stays
            command_line = importlib.import_module("ortfuse.cli.app")
            gc.freeze()
            gc.enable()
            command_line.main(began=began)
    except (KeyboardInterrupt, Exception) as error:
        if not (interruptions.came or isinstance(error, KeyboardInterrupt)):
            sys.exit(_unexpected(error))
        _say(_SAID)
        sys.exit(interruptions.code)
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            sys.exit(interruptions.code)
        if isinstance(end.__context__, BrokenPipeError):  # of who prints the help
            sys.exit(0)
        raise


def _unexpected(error: BaseException) -> int:
    """Tell an error that nobody foresaw in one line, or with `--debug` all that led to it; returns the exit code.

    Python's own exit code after an error is 1, by which commands say that outputs differ.
    """
    if isinstance(error, BrokenPipeError):
        discard(sys.stdout)
        return 0
    if isinstance(error, OSError) and error.filename is None:  # of who prints the help
        discard(sys.stdout)
        text = f"error: standard output cannot be written: {visible(error.strerror or str(error))}\n"
    elif isinstance(error, ModuleNotFoundError) and error.name == "onnxruntime":
        text = f"error: {importlib.import_module('ortfuse.io.installed_runtime').MISSING}\n"
    else:
        said = f"{type(error).__name__}: {visible(str(error))}"
        text = f"error: {said}; --debug shows where it comes from: please report it\n"
    if "--debug" in sys.argv:
        text = visible_lines("".join(traceback.format_exception(error)))
    _say(text)
    return _UNUSABLE


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _look_elsewhere_first() -> None:
    """Look for modules in the current folder last: with `python -m`, a file of a model's folder would be taken for a package."""
    if not sys.flags.safe_path and sys.path and sys.path[0] == os.getcwd():  # noqa: PTH109 - as Python has it
        sys.path.append(sys.path.pop(0))


if __name__ == "__main__":
    _look_elsewhere_first()
    main()
