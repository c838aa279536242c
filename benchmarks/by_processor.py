"""Results kept apart by kind of processor: what gains time on one may lose it on another."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers import versions


def of_processors(output: Path) -> dict[str, dict[str, Any]]:
    """What is stored, by kind of processor; nothing if the file is missing."""
    return json.loads(output.read_text())["processors"] if output.is_file() else {}


def rows_of(output: Path, processor: str) -> dict[str, Any]:
    """The models that were measured on a kind of processor."""
    return dict(of_processors(output).get(processor, {}).get("models", {}))


def store(output: Path, command: str, processor: str, found: Mapping[str, Any]) -> None:
    """Write the file anew, aside and then in its place; what other kinds of processors gave stays."""
    of_this = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "versions": versions(),
        **found,
    }
    every = of_processors(output) | {processor: of_this}
    output.parent.mkdir(parents=True, exist_ok=True)
    aside = output.with_suffix(".tmp")
    aside.write_text(json.dumps({"command": command, "processors": dict(sorted(every.items()))}, indent=1) + "\n")
    aside.replace(output)
