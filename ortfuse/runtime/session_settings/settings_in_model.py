"""Store the settings of a session: in the model's metadata, and in a file beside it that people can read and change."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

import onnx_ir as ir

from ortfuse.errors import OptionError
from ortfuse.io.atomic_write import write_text
from ortfuse.io.bounded_text_files import read_text
from ortfuse.runtime.session_settings.config import SessionConfig

KEY = "ortfuse.session"
"""The entry of the model's metadata."""

ENDING = ".session.json"
"""The ending of settings files, appended to the name of a model file."""


def store(model: ir.Model, config: SessionConfig) -> None:
    """Put settings into the metadata of a model in place of those that it has; none are taken out."""
    if len(config):
        model.metadata_props[KEY] = config.to_json()
    else:
        model.metadata_props.pop(KEY, None)


def hand_on(metadata: MutableMapping[str, str], where: str) -> None:
    """Leave in the metadata of a model no settings but those that a file may hold.

    For a model that is made of another: what is refused is not passed on to those who read the result.
    """
    if KEY not in metadata:
        return
    try:
        known = config_of(metadata, where)
    except OptionError:
        known = SessionConfig()
    del metadata[KEY]
    if len(known):
        metadata[KEY] = known.to_json()


def config_of(metadata: Mapping[str, str], where: str) -> SessionConfig:
    """The settings in a model's metadata; none if there are none.

    Raises:
        OptionError: They are damaged.
    """
    text = metadata.get(KEY)
    return SessionConfig() if text is None else SessionConfig.from_json(text, f"the metadata of {where}")


def beside(path: str | os.PathLike[str]) -> Path:
    """The file of settings that belongs to a model file."""
    path = Path(path)
    return path.with_name(path.name + ENDING)


def config_beside(path: str | os.PathLike[str]) -> SessionConfig | None:
    """The settings in the file beside a model file; `None` if there is no such file.

    Raises:
        OptionError: The file cannot be read, or is damaged.
    """
    file = beside(path)
    try:
        text = read_text(file)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        if getattr(error, "errno", None) == errno.ENAMETOOLONG:
            return None
        raise OptionError("session", f"{file} cannot be read: {error}; delete it to use the model's own") from None
    return SessionConfig.from_json(text, str(file))


def write_beside(path: str | os.PathLike[str], config: SessionConfig) -> Path | None:
    """Write settings beside a model file; where there are none, only a file that stands there already is replaced.

    If the model's name leaves no room for the ending, only the metadata have the settings.

    Raises:
        OutputError: The file cannot be written.
    """
    file = beside(path)
    try:
        file.lstat()
    except FileNotFoundError:
        if not len(config):
            return None
    except OSError:
        return None
    write_text(file, config.to_json() + "\n", follow=False)
    return file
