"""Present model files that are written but not yet moved into place, in the form that the runtime loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import onnx

from ortfuse.io import wire_format
from ortfuse.io.data_file import DataFile
from ortfuse.io.external_data import external_tensors
from ortfuse.runtime.session import STAND_IN, refer_to_zeros


class Written(NamedTuple):
    """The written files.

    Attributes:
        source: The serialised model, which has no data files any more.
        weight_bytes: The bytes of the weights that may be large.
        nodes: The number of nodes of the main graph.
    """

    source: bytes
    weight_bytes: int
    nodes: int


def as_written(path: Path, data: Mapping[str, Path]) -> Written:
    """The content of a model file with zeros for the weights of `STAND_IN` bytes and more, which are not read.

    Args:
        path: The model file.
        data: Its data files, by the names that it has for them.

    Raises:
        OSError, ModelFileError: A file cannot be read.
    """
    with DataFile(str(path)).mapped() as content:
        outline = wire_format.outline(content, STAND_IN)
    model = onnx.ModelProto.FromString(outline.skeleton)
    total = 0
    for tensor, extent in zip(model.graph.initializer, outline.weights, strict=True):
        if extent is not None:
            refer_to_zeros(tensor, extent[1])
            total += extent[1]
    files = {name: DataFile(str(file)) for name, file in data.items()}
    for tensor in external_tensors(model):
        place = {entry.key: entry.value for entry in tensor.external_data}
        if place["location"] not in files:
            continue  # zeros already
        offset, length = int(place["offset"]), int(place["length"])
        tensor.ClearField("external_data")
        if length >= STAND_IN:
            refer_to_zeros(tensor, length)
        else:
            tensor.ClearField("data_location")
            tensor.raw_data = files[place["location"]].read(offset, length)
        total += length
    return Written(bytes(model.SerializeToString()), total, len(model.graph.node))
