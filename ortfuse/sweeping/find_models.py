"""Find the models of a sweep."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ortfuse.api.models_file import ENDING
from ortfuse.errors import ModelFileError
from ortfuse.io.bounded_text_files import read_text

TABLE = ".toml"


def find_models(places: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The model files of folders (with what is in them), of lists (text files with a path a line) and those named themselves.

    Paths in a list start from its folder; empty lines and those that begin with # are left out.

    Raises:
        ModelFileError: A place does not exist, or holds no model.
    """
    found: dict[Path, None] = {}
    for place in map(Path, places):
        models = list(_models(place))
        if not models:
            raise ModelFileError(f"{place}: there is no model (*{ENDING}) in it")
        found |= dict.fromkeys(models)
    return list(found)


def _models(place: Path) -> list[Path]:
    if place.is_dir():
        return sorted(path for path in place.rglob(f"*{ENDING}") if path.is_file())
    if not place.is_file():
        raise ModelFileError(f"{place}: no such file or folder; check the path")
    if place.suffix == ENDING:
        return [place]
    if place.suffix == TABLE:
        raise ModelFileError(f"{place}: a file of models is given with --models, in Python with `models`")
    try:
        lines = read_text(place).splitlines()
    except OSError as error:
        raise ModelFileError(f"{place}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise ModelFileError(f"{place}: is neither a model (*{ENDING}), nor a folder, nor a list of paths") from None
    return [place.parent / line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
