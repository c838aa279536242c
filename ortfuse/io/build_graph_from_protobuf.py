"""Build a valid graph from a protobuf, repaired first where no graph can represent it (`ortfuse.io.repair_protobuf`)."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir

from ortfuse.errors import InvalidModelError
from ortfuse.io.convert_modelproto import from_proto, keep_types
from ortfuse.io.repair_graph import admit
from ortfuse.io.repair_protobuf import tidy
from ortfuse.io.wire_format import Extent

Bind = Callable[[onnx_ir.Model, onnx.ModelProto, list[Extent | None]], None]
"""Gives a graph just made its own tensors, from the protobuf and the places of its weights in the file."""

NOTES = "ortfuse.notes"
"""Key under which the main graph has remarks on what was left out of the model when it was read."""


def graph_of(proto: onnx.ModelProto, extents: list[Extent | None], bind: Bind, *, name: str) -> onnx_ir.Model:
    """A valid, sorted graph of a ModelProto.

    Args:
        proto: The model; not changed.
        extents: For each initializer of the main graph, the place of its data in the file if they are not in `proto`.
        bind: Gives the graph its tensors.
        name: The model's name in error messages, such as its path.

    Raises:
        InvalidModelError: The model is not a valid graph; the message names the node or value.
    """
    try:
        return _made(proto, extents, bind, name)
    except InvalidModelError:
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        places = list(extents)
        changed, types, notes = tidy(copy, places)
        if not changed:
            raise

    def bind_all(model: onnx_ir.Model, proto: onnx.ModelProto, extents: list[Extent | None]) -> None:
        keep_types(model, types)
        model.graph.meta[NOTES] = notes
        bind(model, proto, extents)

    return _made(copy, places, bind_all, name)


def _made(proto: onnx.ModelProto, extents: list[Extent | None], bind: Bind, name: str) -> onnx_ir.Model:
    model = from_proto(proto, name=name)
    bind(model, proto, extents)
    admit(model, name=name)
    return model
