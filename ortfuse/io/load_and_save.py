"""Load and save model files: `model = load("bert.onnx")`, `save(model, "bert.opt.onnx")`."""

from __future__ import annotations

import gc
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx_ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from ortfuse.errors import ModelFileError, OrtfuseError, OutputError
from ortfuse.io import wire_format
from ortfuse.io.atomic_write import real, writable_target
from ortfuse.io.build_graph_from_protobuf import graph_of
from ortfuse.io.check_model import check
from ortfuse.io.data_file import DataFile
from ortfuse.io.external_data import attach, external_tensors
from ortfuse.io.stored_tensor import FileBytes, StoredTensor
from ortfuse.io.superseded_data import data_files, remove_unused
from ortfuse.io.write import Check, write

__all__ = ["check", "load", "save"]

_LEFT_IN_FILE = 1 << 16
"""Weights of at least this many bytes stay in the file until they are needed."""


def load(path: str | os.PathLike[str]) -> onnx_ir.Model:
    """Load a model file.

    Nodes are in topological order. Weights stay in the file, or in the external data files beside it, and are read on demand;
    the files are kept open, so the model remains usable even if they are deleted or replaced.

    Args:
        path: An ONNX file in binary protobuf form.

    Raises:
        ModelFileError: The file is missing, unreadable, damaged or not ONNX, or external data is missing, too short, or
            outside the folder of the model.
        InvalidModelError: The model is not a valid graph; the message names the node or value.
    """
    name = os.fspath(path)
    file = _open(path)
    with uncollected():
        outline = _outline(file, name)
        try:
            proto = onnx.ModelProto.FromString(outline.skeleton)
        except DecodeError as error:
            raise ModelFileError(f"{name}: {_what_it_is(outline.skeleton, error)}") from None
        if not proto.HasField("graph"):
            raise ModelFileError(
                f"{name}: is not an ONNX model, or has no graph; {_what_it_is(outline.skeleton, None)}"
            )

        def bind(model: onnx_ir.Model, proto: onnx.ModelProto, extents: list[wire_format.Extent | None]) -> None:
            _leave_weights_in_file(model, proto, extents, file)

        model = graph_of(proto, outline.weights, bind, name=name)
        attach(model, name=name, model_file=Path(path))
    return model


def metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a model file, without loading the model.

    Raises:
        ModelFileError: The file is missing, unreadable, damaged or not ONNX.
    """
    name = os.fspath(path)
    skeleton = _outline(_open(path), name).skeleton
    try:
        proto = onnx.ModelProto.FromString(skeleton)
    except DecodeError as error:
        raise ModelFileError(f"{name}: {_what_it_is(skeleton, error)}") from None
    return {entry.key: entry.value for entry in proto.metadata_props}


def stored_bytes(path: str | os.PathLike[str]) -> int | None:
    """The bytes of a model file and of the files of its external data; `None` if they cannot be read."""
    try:
        skeleton = _outline(_open(path), os.fspath(path)).skeleton
        tensors = external_tensors(onnx.ModelProto.FromString(skeleton))
        entries = (entry for tensor in tensors for entry in tensor.external_data)
        names = {entry.value for entry in entries if entry.key == "location"}
        sizes: list[int] = [
            file.stat().st_size for file in (Path(path), *(Path(path).parent / name for name in sorted(names)))
        ]
        return sum(sizes)
    except (OSError, DecodeError, OrtfuseError):
        return None


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector while a graph is being built: its repeated traversals take a third of the time."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _outline(file: DataFile, name: str) -> wire_format.Outline:
    try:
        with file.mapped() as data:
            try:
                return wire_format.outline(data, _LEFT_IN_FILE)
            except wire_format.WireError as error:
                raise ModelFileError(f"{name}: {_what_it_is(data[:_SNIFFED], error)}") from None
    except OSError as error:
        raise ModelFileError(f"{name}: cannot be read: {error.strerror}") from error


def _open(path: str | os.PathLike[str]) -> DataFile:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"ortfuse.load reads a file, by its path, not {type(path).__module__}.{type(path).__qualname__}"
        )
    name = os.fspath(path)
    if not name:
        raise ModelFileError("the path of the model is empty; give that of a model file")
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            raise ModelFileError(f"{name}: is a folder; give the path of a model file in it")
        if not stat.S_ISREG(mode):
            raise ModelFileError(f"{name}: is a device or a pipe; a model is read from a regular file")
        file = DataFile(name)
    except FileNotFoundError:
        raise ModelFileError(f"{name}: no such file; check the path (relative paths start from {Path.cwd()})") from None
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{name}: cannot be opened: {error}") from None
    if file.size == 0:
        raise ModelFileError(f"{name}: the file is empty; was the export or the download interrupted?")
    return file


_SNIFFED = 64
"""Number of leading bytes examined to identify a file that is not ONNX."""

_SIGNATURES = {
    (0, b"version https://git-lfs"): "a Git LFS pointer, not the file itself: fetch it with `git lfs pull`",
    (0, b"PK\x03\x04"): "a zip archive (a PyTorch .pt or .pt2 file?): export it with torch.onnx.export",
    (0, b"\x1f\x8b"): "a gzip archive: unpack it first",
    (0, b"\x89HDF"): "an HDF5 file (Keras?): convert it with tf2onnx",
    (0, b"\x80\x02"): "a Python pickle: export the model with torch.onnx.export",
    (4, b"TFL3"): "a TensorFlow Lite model: convert it with tf2onnx",
    (4, b"ORTM"): "a model in ORT format, which cannot be changed: take the .onnx file it was made from",
}


def _what_it_is(head: bytes, error: Exception | None) -> str:
    """Identify a file that cannot be parsed as ONNX from its first bytes, and say what to do about it."""
    for (offset, signature), what in _SIGNATURES.items():
        if head[offset:].startswith(signature):
            return f"is not ONNX but {what}"
    head = head[:_SNIFFED]
    if head.isascii() and all(byte >= 0x20 or byte in b"\t\r\n" for byte in head):
        return "is a text file; ortfuse reads ONNX in its binary form (convert it with onnx.load and onnx.save)"
    if error is None:
        return "the file is something else, or was written by an export that failed"
    # Every ONNX writer puts the IR version first.
    if head[:1] == b"\x08":
        return f"is cut off or damaged ({error}); copy or export it again"
    return f"is not an ONNX model ({error}); give the path of an .onnx file"


def _leave_weights_in_file(
    model: onnx_ir.Model, proto: onnx.ModelProto, extents: list[wire_format.Extent | None], file: DataFile
) -> None:
    """Give the initializers whose data were left out of `proto` tensors that read them from the file."""
    for header, extent in zip(proto.graph.initializer, extents, strict=True):
        value = model.graph.initializers[header.name]
        tensor = value.const_value
        if extent is None or not isinstance(tensor, onnx_ir.TensorProtoTensor):
            continue
        value.const_value = StoredTensor(
            FileBytes(file, *extent),
            tensor.dtype,
            tensor.shape,
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
        )


def save(
    model: onnx_ir.Model,
    path: str | os.PathLike[str],
    *,
    link: bool = False,
    external_data: bool = False,
    check: Check | None = None,
    source: str | os.PathLike[str] | None = None,
) -> None:
    """Write a model to a file.

    Everything is written to temporary files in the same folder and then moved into place: after any failure or interrupt the
    old files are unchanged and no other files are left behind. The model may be saved over the file it was loaded from.
    If the path is a symbolic link, the file that it leads to is written, and its data file beside that. Only
    a process that is killed may leave a file behind, named `.ortfuse-*.tmp`; the model in place is intact even then.

    Weights are streamed without being held in memory. A model that has external weights, or is larger than 2 GB, gets a data
    file beside it, named like the model file with `.data` appended. On file systems that can share blocks (Btrfs, XFS, ...)
    the blocks of unchanged weights are shared.

    With `link=True`, an external file of which the model still needs at least half becomes a data file unchanged, by a hard
    link where possible; other weights get a separate file (`.data.1`, ...). A hard link takes no time and no space, but
    the file then has two names: a program that writes into the original (as most exporters do when they export over an older
    model) changes the result too, and `onnx.load` and `onnx.checker` reject data files with two names, including the
    original. ONNX Runtime and onnx_ir accept them.

    Args:
        model: The model; not changed, except that `onnx_ir.ExternalTensor` objects are replaced by tensors that remain
            readable when their file is replaced.
        path: The file to create or replace.
        link: Whether external files may become data files of the result through hard links.
        external_data: Whether weights go to a data file even if the model has none and fits into one file. The runtime maps
            them into memory, instead of reading the file and copying them.
        check: Checks what is written before it is moved into place; what it raises undoes all.
        source: The file that the model was made of. If it is the one that is replaced, its data files go with it, unless
            the result or another model has them (`ortfuse.io.superseded_data`).

    Raises:
        OutputError: The file cannot be written (no such folder, no permission, no space); any existing file is unchanged.
        InvalidModelError: Something in the model cannot be written, such as an initializer without data.
        ModelFileError: Weights can no longer be read from the file the model was loaded from.
        TypeError: It is no `onnx_ir.Model`.
    """
    if not isinstance(model, onnx_ir.Model):
        raise TypeError(
            f"ortfuse.save writes an onnx_ir.Model, not {type(model).__module__}.{type(model).__qualname__}; "
            "write an onnx.ModelProto with onnx.save, or let ortfuse.optimize write it: output=PATH"
        )
    target = writable_target(path)
    attach(model, name=os.fspath(path), model_file=None)
    replaced = data_files(target) if source is not None and real(source) == real(target) else []
    try:
        write(model, target, link=link, external_data=external_data, check=check)
    except OrtfuseError:
        raise
    except OSError as error:
        raise OutputError(
            f"{os.fspath(path)}: cannot be written: {error.strerror or error}; nothing was changed"
        ) from error
    remove_unused(replaced, target)
