"""Copies a model as it is, with its external data."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]

from ortfuse.errors import OutputError
from ortfuse.model.atomic_write import Staging, writable_target


def copy_model(model: str | os.PathLike[str] | onnx.ModelProto, path: str | os.PathLike[str]) -> None:
    """Write a model to a file unchanged, and its external data beside it under the names that the model has for them.

    Raises:
        OutputError: It cannot be written, or other files with the names of its external data are there.
    """
    target = writable_target(path)
    try:
        content = model.SerializeToString() if isinstance(model, onnx.ModelProto) else Path(model).read_bytes()
        folder = Path() if isinstance(model, onnx.ModelProto) else Path(model).parent
        with Staging(target) as staging:
            staging.open("model").write(content)
            for name in dict.fromkeys(_external(onnx.ModelProto.FromString(content))):
                _copy_beside(folder / name, target.parent / name)
            staging.commit()
    except (OSError, ValueError) as error:
        raise OutputError(f"{target}: cannot be written: {error}; the model that was there is unchanged") from error


def _copy_beside(source: Path, target: Path) -> None:
    if target.exists() and (target.samefile(source) or filecmp.cmp(source, target, shallow=False)):
        return
    if target.exists():
        raise OutputError(f"{target}: external data of the model would replace this file; write to another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _external(model: onnx.ModelProto) -> Iterator[str]:
    """The names of the files with external data."""
    waiting: list[Message] = [model]
    while waiting:
        message = waiting.pop()
        if isinstance(message, onnx.TensorProto):
            yield from (entry.value for entry in message.external_data if entry.key == "location")
            continue
        for _, value in message.ListFields():
            if isinstance(value, Message):
                waiting.append(value)
            elif not isinstance(value, str | bytes | int | float) and value and isinstance(value[0], Message):
                waiting += value
