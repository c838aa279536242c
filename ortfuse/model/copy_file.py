"""Copies a model as it is, with its external data."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx

from ortfuse.errors import OutputError
from ortfuse.model.atomic_write import Staging, real, writable_target
from ortfuse.model.external_data import external_tensors


def copy_model(
    model: str | os.PathLike[str] | onnx.ModelProto,
    path: str | os.PathLike[str],
    revise: Callable[[dict[str, str], str], object] = lambda metadata, name: None,
) -> None:
    """Write a model to a file unchanged, and its external data beside it under the names that the model has for them.

    Args:
        model: The model.
        path: The file.
        revise: Changes the metadata of the model, whose name it is told.

    Raises:
        OutputError: It cannot be written, or other files with the names of its external data are there.
    """
    target = writable_target(path)
    try:
        content = model.SerializeToString() if isinstance(model, onnx.ModelProto) else Path(model).read_bytes()
        folder = Path() if isinstance(model, onnx.ModelProto) else Path(model).parent
        proto = onnx.ModelProto.FromString(content)
        metadata = {entry.key: entry.value for entry in proto.metadata_props}
        revise(metadata, proto.graph.name if isinstance(model, onnx.ModelProto) else os.fspath(model))
        if any(metadata.get(entry.key) != entry.value for entry in proto.metadata_props):
            onnx.helper.set_model_props(proto, metadata)
            content = proto.SerializeToString()
        with Staging(target) as staging:
            staging.open("model").write(content)
            for name in dict.fromkeys(_locations(proto)):
                if real(target) == real(folder / name):
                    raise OutputError(f"{target}: holds weights of the model; give the result another name")
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


def _locations(model: onnx.ModelProto) -> Iterator[str]:
    """The names of the files with external data."""
    for tensor in external_tensors(model):
        yield from (entry.value for entry in tensor.external_data if entry.key == "location")
