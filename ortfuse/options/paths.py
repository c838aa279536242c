"""Find and resolve the paths in options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ortfuse.options.files import resolved
from ortfuse.options.options import DECLARATIONS


def from_folder(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Options of a file in `folder`, with their relative paths resolved against it; other keys stay as they are."""
    return resolved(data, folder, DECLARATIONS)


def named_paths(options: Mapping[str, Any]) -> Iterator[str]:
    """The files and folders that are read and that options in a file name."""
    for name, declared in DECLARATIONS.items():
        if declared.kind.path_endings and name != "output":
            yield from declared.kind.paths_in(options.get(name))
