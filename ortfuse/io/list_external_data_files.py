"""List the external data files that a model file names, without loading the model."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from ortfuse.errors import OrtfuseError
from ortfuse.io import wire_format
from ortfuse.io.data_file import DataFile
from ortfuse.io.external_data import external_tensors

_LARGE = 1 << 16
"""Weights of at least this many bytes are not read."""


def locations(path: str | os.PathLike[str]) -> list[str]:
    """The names of the files with external data, as the model says them; they may lead anywhere.

    The model is not loaded, and need not be valid.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not ONNX.
    """
    with DataFile(os.fspath(path)).mapped() as content:
        skeleton = wire_format.outline(content, _LARGE).skeleton
    if b"location" not in skeleton:
        return []
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(skeleton)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    entries = (entry for tensor in external_tensors(proto) for entry in tensor.external_data)
    return list(dict.fromkeys(entry.value for entry in entries if entry.key == "location"))


def known_locations(path: str | os.PathLike[str]) -> list[str]:
    """The same; none if the file cannot be read, which is said where the model is loaded."""
    with contextlib.suppress(OrtfuseError, OSError, ValueError):
        return locations(path)
    return []


def weight_files(model: Path) -> list[Path]:
    """The files with weights of a model, beside it or beside the file that it is a link to."""
    folders = dict.fromkeys((model.parent, Path(os.path.realpath(model)).parent))
    return [folder / location for location in known_locations(model) for folder in folders]
