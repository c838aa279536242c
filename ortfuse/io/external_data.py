"""External data: weights in files beside the model file, which the model names by a relative path.

A model is untrusted input, and a path in it must not make ortfuse read (and copy into its output) an unrelated file. So the
file must lie in the model's folder or below it after symbolic links are resolved. As in ONNX Runtime, if the model file is
itself a symbolic link, the data may also lie beside the link's target: that is how the Hugging Face cache stores models.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath, PureWindowsPath

import onnx
import onnx_ir
from google.protobuf.message import Message  # type: ignore[import-untyped]

from ortfuse.errors import ModelFileError
from ortfuse.io.check_tensor_bytes import byte_size
from ortfuse.io.data_file import DataFile
from ortfuse.io.stored_tensor import ExternalStoredTensor, FileBytes
from ortfuse.ir.enumerate_tensors import tensors

HELD_OPEN = 64
"""External files kept open per model; a process may have about 1,000 open."""


BESIDE_THE_MODEL = "it must lie beside the model file (was that moved without it?)"


def attach(model: onnx_ir.Model, *, name: str, model_file: Path | None, missing: str = BESIDE_THE_MODEL) -> None:
    """Bind every external tensor of a model to the file that holds it; from then on it is read on demand.

    Args:
        model: The model; its external tensors are replaced in place.
        name: The model's name in error messages.
        model_file: The model file whose folder holds the data. None if the tensors say themselves which folder that is, as those
            of onnx_ir do; whoever loaded them may not have looked at what the model names.
        missing: What to advise the user if a data file is missing.

    Raises:
        ModelFileError: A data file is missing, unreadable or outside the folder of the model file, or holds fewer bytes than
            a tensor needs.
    """
    files: dict[str, DataFile] = {}
    for slot in tensors(model):
        tensor = slot.tensor
        if not isinstance(tensor, onnx_ir.ExternalTensor) or isinstance(tensor, ExternalStoredTensor):
            continue
        where = f"{name}: {slot.owner}"
        if model_file is None:
            path = _below(tensor.location, tensor.base_dir, where)
        else:
            tensor.base_dir = model_file.parent
            path = resolved(tensor.location, model_file, where)
        if path not in files:
            files[path] = _open(path, where, missing, model_file, keep_open=len(files) < HELD_OPEN)
        offset, length = _extent(tensor, files[path], where)
        slot.replace(ExternalStoredTensor(FileBytes(files[path], offset, length), tensor))


def external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The tensors of a ModelProto whose data are in a file, in all of its graphs and attributes."""
    waiting: list[Message] = [model]
    while waiting:
        message = waiting.pop()
        if isinstance(message, onnx.TensorProto):
            if message.external_data:
                yield message
            continue
        for _, value in message.ListFields():
            if isinstance(value, Message):
                waiting.append(value)
            elif not isinstance(value, str | bytes | int | float) and value and isinstance(value[0], Message):
                waiting += value


def resolved(location: str | os.PathLike[str], model_file: Path, where: str) -> str:
    """The resolved path of an external data file, after checking that it may be read.

    Raises:
        ModelFileError: It is outside the folder of the model.
    """
    location = _relative(location, where)
    folder = model_file.parent
    path = os.path.realpath(folder / location)
    allowed = {os.path.realpath(folder), str(Path(os.path.realpath(model_file)).parent)}
    if any(os.path.commonpath((path, root)) == root for root in allowed):
        return path
    how = "through '..'" if ".." in Path(location).parts else "through a symbolic link"
    raise ModelFileError(
        f"{where}: its external data {location!r} leads {how} to {path}, outside the model's folder "
        f"{os.path.realpath(folder)}; copy the file into that folder"
    )


def _below(location: str | os.PathLike[str], folder: str | os.PathLike[str], where: str) -> str:
    """The path of an external data file in the folder of a tensor of onnx_ir; symbolic links in there may lead anywhere.

    Raises:
        ModelFileError: The name leads out of the folder.
    """
    name = os.path.normpath(_relative(location, where))
    if PurePath(name).parts[:1] == ("..",):
        raise ModelFileError(
            f"{where}: its external data {os.fspath(location)!r} leads through '..' outside the folder "
            f"{os.path.realpath(folder)}; copy the file into that folder"
        )
    return str(Path(folder) / name)


def _relative(location: str | os.PathLike[str], where: str) -> str:
    """The name of an external data file.

    Raises:
        ModelFileError: It is none, or is absolute.
    """
    location = os.fspath(location) if isinstance(location, os.PathLike) else location
    if not isinstance(location, str) or not location or "\0" in location:
        raise ModelFileError(
            f"{where}: its external data has no usable file name ({location!r}); export the model again"
        )
    if Path(location).is_absolute() or PureWindowsPath(location).drive:
        raise ModelFileError(
            f"{where}: its external data is at the absolute path {location!r}; only files in the model's folder are "
            "read: move the file there and name it by a relative path"
        )
    return location


def _open(path: str, where: str, missing: str, model_file: Path | None, *, keep_open: bool) -> DataFile:
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise ModelFileError(f"{where}: its external data {path} is not a regular file")
        return DataFile(path, keep_open=keep_open, model=model_file)
    except FileNotFoundError:
        raise ModelFileError(f"{where}: its external data file {path} is missing; {missing}") from None
    except OSError as error:
        raise ModelFileError(f"{where}: its external data file {path} cannot be opened: {error.strerror}") from error


def _extent(tensor: onnx_ir.ExternalTensor, file: DataFile, where: str) -> tuple[int, int]:
    """Offset and length of a tensor's data, checked against its type and against the size of the file."""
    offset = tensor.offset or 0
    needed = byte_size(tensor.dtype, tensor.shape.numpy())
    length = needed if tensor.length is None else tensor.length
    if length != needed:
        raise ModelFileError(
            f"{where}: type {tensor.dtype} and shape {tensor.shape} take {needed:,} bytes, "
            f"but its external data is {length:,} bytes long; export the model again"
        )
    if offset < 0 or offset + length > file.size:
        raise ModelFileError(
            f"{where}: its external data is bytes {offset:,} to {offset + length:,} of {file.path}, which has only "
            f"{file.size:,}; the file is truncated or belongs to another model"
        )
    return offset, length
