"""Copy a model file unchanged, with its external data."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx

from ortfuse.errors import OutputError
from ortfuse.io.atomic_write import Staging, real, writable_target
from ortfuse.io.external_data import external_tensors, resolved


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
        ModelFileError: Its external data are outside its folder.
    """
    target = writable_target(path)
    try:
        content = model.SerializeToString() if isinstance(model, onnx.ModelProto) else Path(model).read_bytes()
        file = Path("model.onnx") if isinstance(model, onnx.ModelProto) else Path(model)
        proto = onnx.ModelProto.FromString(content)
        metadata = {entry.key: entry.value for entry in proto.metadata_props}
        revise(metadata, proto.graph.name if isinstance(model, onnx.ModelProto) else os.fspath(model))
        if any(metadata.get(entry.key) != entry.value for entry in proto.metadata_props):
            onnx.helper.set_model_props(proto, metadata)
            content = proto.SerializeToString()
        with Staging(target) as staging:
            staging.open("model").write(content)
            for name in dict.fromkeys(_locations(proto)):
                source = Path(resolved(name, file, f"{target}: cannot be written: a tensor"))
                if ".." in Path(name).parts:
                    raise OutputError(f"{target}: cannot be written: the model names its data through '..': {name!r}")
                if real(target) == source:
                    raise OutputError(f"{target}: holds weights of the model; give the result another name")
                if not real(target.parent / name).is_relative_to(real(target.parent)):
                    raise OutputError(
                        f"{target}: cannot be written: {name!r} leads out of its folder through a symbolic link"
                    )
                _copy_beside(source, target.parent / name)
            staging.commit()
    except (OSError, ValueError) as error:
        raise OutputError(f"{target}: cannot be written: {error}; the model that was there is unchanged") from error


def _copy_beside(source: Path, target: Path) -> None:
    if target.exists() and (target.samefile(source) or filecmp.cmp(source, target, shallow=False)):
        return
    if os.path.lexists(target):
        raise OutputError(f"{target}: external data of the model would replace this file; write to another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _locations(model: onnx.ModelProto) -> Iterator[str]:
    """The names of the files with external data."""
    for tensor in external_tensors(model):
        yield from (entry.value for entry in tensor.external_data if entry.key == "location")
