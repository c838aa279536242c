"""Names of files that have a place for the name of a target: `bert.{target}.onnx`."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

TARGET = "{target}"
"""The place."""

_ALIKE = 0.7
"""How much a misspelled place resembles the right one, as `difflib` measures it."""


def has_target(path: str | os.PathLike[str] | None) -> bool:
    """Whether a path has the place."""
    return path is not None and TARGET in os.fspath(path)


def with_target(path: str | os.PathLike[str], label: str) -> str:
    """Return a path with the name of a target in the place."""
    return os.fspath(path).replace(TARGET, label)


def misspelled_target(path: str | os.PathLike[str]) -> str:
    """Return a place in the name of a file that is nearly that of the target, such as `{targets}`; empty if there is none."""
    found = re.findall(r"\{[^{}]*\}", Path(path).name)
    alike = difflib.get_close_matches(TARGET, [one.lower() for one in found if one != TARGET], 1, _ALIKE)
    return next((one for one in found if one.lower() in alike), "")
