"""Names of files that have a place for the name of a target: `bert.{target}.onnx`."""

from __future__ import annotations

import os

TARGET = "{target}"
"""The place."""


def has_target(path: str | os.PathLike[str] | None) -> bool:
    """Whether a path has the place."""
    return path is not None and TARGET in os.fspath(path)


def with_target(path: str | os.PathLike[str], label: str) -> str:
    """Return a path with the name of a target in the place."""
    return os.fspath(path).replace(TARGET, label)
