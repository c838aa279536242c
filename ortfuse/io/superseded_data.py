"""Remove external data files that a model no longer needs after it was overwritten.

A model that becomes smaller, or whose weights change, gets a data file of its own or none. The old data files would stay behind.
They are removed once the result is in place, except those that

- the result still has, or another model in a folder from the parent of the model's down to that of the data file;
- are outside of the folder of the model, or links;
- are so many that the model in memory does not keep them open.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from ortfuse.io.atomic_write import real
from ortfuse.io.external_data import HELD_OPEN
from ortfuse.io.list_external_data_files import locations


def data_files(model: Path) -> list[Path]:
    """The data files of a model file that lie in its folder or below, by their real paths; none if it cannot be read."""
    folder = real(model).parent
    with contextlib.suppress(OSError, ValueError):
        found = [folder / name for name in locations(model)]
        kept_open = found if len(found) <= HELD_OPEN else []
        return [file for file in kept_open if real(file).is_relative_to(folder) and _is_plain(file)]
    return []


def remove_unused(files: list[Path], model: Path) -> None:
    """Remove files that neither a model file nor another one around them refers to.

    Args:
        files: The data files that the model had before it was written.
        model: The model file, as it is now.
    """
    folders = {
        folder for file in files for folder in real(file).parents if folder.is_relative_to(real(model).parent.parent)
    }
    try:
        models = [model, *(path for folder in folders for path in folder.glob("*.onnx") if path.is_file())]
        used = {real(real(one).parent / name) for one in models for name in locations(one)}
    except (OSError, ValueError):
        return  # one that cannot be read may need them
    for file in files:
        if real(file) not in used and real(file) != real(model):
            with contextlib.suppress(OSError):
                file.unlink()


def _is_plain(file: Path) -> bool:
    return file.is_file() and not file.is_symlink()
