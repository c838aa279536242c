"""Handle standard streams that are closed, and pipes whose reader has gone."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def secure() -> None:
    """Have all three streams open, and able to take any text.

    The first file that is opened takes the number of a closed stream: what a library prints would then go into a model.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it takes the lowest number that is free
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def discard(stream: Any) -> None:
    """Have nothing of what is written to a stream from now on, or waits to be written, go anywhere."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
