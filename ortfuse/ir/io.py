"""Load and save model files.

    model = load("bert.onnx")
    save(model, "bert.opt.onnx")
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import onnx
import onnx_ir
from google.protobuf.message import DecodeError

from ortfuse.errors import ModelFileError, OrtfuseError, OutputError
from ortfuse.ir import external, wire
from ortfuse.ir.admit import admit
from ortfuse.ir.check import check
from ortfuse.ir.convert import from_proto
from ortfuse.ir.staging import writable_target
from ortfuse.ir.storage import DataFile, FileBytes, StoredTensor
from ortfuse.ir.writing import write

__all__ = ["check", "load", "save"]

_LEFT_IN_FILE = 1 << 16
"""Weights of at least this many bytes are left in the file until they are asked for."""


def load(path: str | os.PathLike[str]) -> onnx_ir.Model:
    """Load a model file.

    The nodes come in topological order. Weights stay in the file, or in the external data files beside it, and are read
    when they are asked for; the files are held open, so the model survives their being deleted or replaced.

    Args:
        path: An ONNX file in binary protobuf form.

    Raises:
        ModelFileError: The file is missing, unreadable, damaged or not ONNX, or external data is missing, too short, or
            outside the folder of the model.
        InvalidModelError: The model is not a valid graph; the message names the node or value.
    """
    name = os.fspath(path)
    file = _open(path)
    try:
        with file.mapped() as data:
            head = data[: len(_SNIFFED)]
            outline = wire.outline(data, _LEFT_IN_FILE)
        proto = onnx.ModelProto.FromString(outline.skeleton)
    except (wire.WireError, DecodeError) as error:
        raise ModelFileError(f"{name}: {_what_it_is(head, error)}") from None
    if not proto.HasField("graph"):
        raise ModelFileError(f"{name}: is not an ONNX model, or has no graph; {_what_it_is(head, None)}")
    model = from_proto(proto, name=name)
    _leave_weights_in_file(model, proto, outline, file)
    admit(model, name=name)
    external.attach(model, name=name, model_file=Path(path))
    return model
