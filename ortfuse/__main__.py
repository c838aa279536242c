"""The command `ortfuse`, also as `python -m ortfuse`; an interruption while it is loaded is told as one that comes later."""

from __future__ import annotations

import functools
import importlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_INTERRUPTED = 130

_TERMINATED = 143

_SAID = "interrupted; no file is left half written\n"

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
        """Take note of interruptions, unless they are ignored or somebody else takes care of them."""
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        ):
            yield
            return
        usual, terminates = sys.unraisablehook, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        signal.signal(signal.SIGINT, self._noted)
        if terminates:
            signal.signal(signal.SIGTERM, self._noted)
        sys.unraisablehook = functools.partial(_not_passed_on, usual)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if terminates:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            sys.unraisablehook = usual

    def _noted(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        if number == signal.SIGTERM:
            self.code = _TERMINATED
        signal.default_int_handler(number, frame)


def _not_passed_on(usual: Callable[[Any], object], what: Any) -> None:
    if not issubclass(what.exc_type, KeyboardInterrupt):
        usual(what)
        return
    again = threading.Timer(_AGAIN, _interrupt)
    again.daemon = True
    again.start()


def _interrupt() -> None:
    """Interrupt the main thread, also where it waits for something, if the system can."""
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)


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


if __name__ == "__main__":
    main()
