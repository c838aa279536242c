"""Start Python child processes with the import paths of this process: the only module that starts any.

Python looks for modules in the current folder, or beside a program, before it looks where packages are installed: a file
`onnxruntime.py` that came with a model would be run. Processes are started so that it does not (`-P`). They are told where this
process looks, without the current folder if it stands there by no wish of the user.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any


def start(
    arguments: Sequence[str],
    *,
    stdin: int | IO[Any] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    first: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start a process of this Python, in the current folder.

    Args:
        arguments: The program, as Python takes it: the path of a file, or `-m` and a module.
        stdin: As for `subprocess.Popen`, like the next two.
        stdout: Where its output goes.
        stderr: Where its errors go.
        first: Folders where it looks for modules before it looks where this process does.

    Raises:
        OSError: It cannot be started.
    """
    command = [sys.executable, "-P", *arguments]
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=environment(first))


def environment(first: Sequence[str] = ()) -> dict[str, str]:
    """The variables of this process, with the places where it looks for modules, behind others if some are given."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*first, *places()])}


def places() -> list[str]:
    """The folders where this process looks for modules, as absolute paths, without the current folder."""
    return [place for place in sys.path if Path(place).is_absolute() and os.pathsep not in place]
