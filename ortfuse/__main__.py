"""The command `ortfuse`, also as `python -m ortfuse`; an interruption while it is loaded is told as one that comes later."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

_INTERRUPTED = 130

_TERMINATED = 143

_SAID = "interrupted; no file is left half written\n"

_USUAL: Mapping[signal.Signals, Callable[[int, FrameType | None], Any] | signal.Handlers] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
"""The signals that interrupt, and what takes care of them where nobody has changed that."""

_AGAIN = 0.05
"""Seconds until an interruption that was lost comes again."""


class Interruptions:
    """Has an interruption (Ctrl-C, or the signal to terminate) end the program wherever it comes, and tidily.

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
    interruptions = Interruptions()
    try:
        with interruptions.watched():
            importlib.import_module("ortfuse.cli.app").main(began=began)
    except (KeyboardInterrupt, Exception) as error:
        if not (interruptions.came or isinstance(error, KeyboardInterrupt)):
            raise
        sys.stderr.write(_SAID)
        sys.exit(interruptions.code)
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            sys.exit(interruptions.code)
        raise


def _look_elsewhere_first() -> None:
    """Look for modules in the current folder last: with `python -m`, a file of a model's folder would be taken for a package."""
    if not sys.flags.safe_path and sys.path and sys.path[0] == os.getcwd():  # noqa: PTH109 - as Python has it
        sys.path.append(sys.path.pop(0))


if __name__ == "__main__":
    _look_elsewhere_first()
    main()
