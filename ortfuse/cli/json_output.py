"""Write the JSON of commands: each with the name and version of its schema, and the versions that made it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ortfuse
from ortfuse.io.installed_runtime import installed_version
from ortfuse.serialization import to_data

VERSION = 2
"""The version of the forms: a new one when a name goes or changes its meaning. Names that are added change nothing."""


def name_of(command: str) -> str:
    """The name of the form of a command's data, with its version."""
    return f"ortfuse.{command}/{VERSION}"


def check_json(path: Path | None) -> None:
    """Check that a report can be written, before minutes of work are spent on its contents.

    Arguments that name one file are refused while they are parsed (`ortfuse.cli.check_output_paths`).

    Raises:
        OutputError: It cannot be written.
    """
    from ortfuse.io.atomic_write import writable_target

    if path is not None:
        writable_target(path)


def as_data(command: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """The written data: the content with the name of its schema and the versions that it depends on.

    JSON has no NaN and no infinity: they are null.

    Raises:
        TypeError: JSON has no form for a part of the content.
    """
    versions = {"ortfuse": ortfuse.__version__, **{name: installed_version(name) for name in ("onnx", "onnxruntime")}}
    head = {"schema": name_of(command), "versions": versions}
    data: dict[str, Any] = json.loads(json.dumps(to_data({**head, **content, **head})))
    return data


def refused(model: Path, why: Exception) -> dict[str, Any]:
    """The written data of a command for which no result keeps the constraints."""
    return {"model": str(model), "ok": False, "reason": str(why)}


def write_json(path: Path | None, command: str, content: Mapping[str, Any]) -> None:
    """Write a report to a temporary file and move it into place."""
    if path is None:
        return
    from ortfuse.io.atomic_write import write_text

    write_text(path, json.dumps(as_data(command, content), indent=1) + "\n")
