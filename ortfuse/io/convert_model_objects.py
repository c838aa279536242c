"""Convert models of every supported kind to `onnx_ir.Model`, and results back to the kind that was given.

Call `model, source = enter(anything)` at the start and `result = leave(model, source)` at the end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, overload

import onnx
import onnx_ir

from ortfuse.errors import InvalidModelError
from ortfuse.io import external_data
from ortfuse.io.build_graph_from_protobuf import graph_of
from ortfuse.io.check_model import RepairableError, check
from ortfuse.io.convert_modelproto import from_proto, separate, to_proto
from ortfuse.io.detach_from_source_object import own, take
from ortfuse.io.load_and_save import load, uncollected
from ortfuse.io.repair_graph import admit
from ortfuse.io.wire_format import Extent

if TYPE_CHECKING:
    from onnx_graphsurgeon.ir.graph import Graph as SurgeonGraph


class Program(Protocol):
    """The result of `torch.onnx.export` (`torch.onnx.ONNXProgram`), as far as it matters here."""

    @property
    def model(self) -> onnx_ir.Model:
        """The exported model."""


AnyModel: TypeAlias = "str | os.PathLike[str] | onnx.ModelProto | onnx_ir.Model | SurgeonGraph | Program"
"""A model as a user may pass it: a path, a model object of one of the three common kinds, or PyTorch's `ONNXProgram`."""

K = TypeVar("K")

_NO_FOLDER = (
    "a ModelProto does not know the folder it was loaded from, so the file is looked for in the current one: "
    "give ortfuse the path of the model file, or load the weights with onnx.load(path)"
)


@dataclass(frozen=True)
class Source(Generic[K]):
    """The origin of a model, and how to convert it back.

    Attributes:
        kind: The kind of object that came in.
        name: The model's name in messages: its path, else the name of its graph.
        path: The model file, if a path came in.
        restore: Converts a graph to the kind that came in.
    """

    kind: Literal["path", "proto", "ir", "graphsurgeon"]
    name: str
    path: Path | None
    restore: Callable[[onnx_ir.Model], K] = field(repr=False)


@overload
def enter(model: str | os.PathLike[str], *, copy: bool = True) -> tuple[onnx_ir.Model, Source[onnx_ir.Model]]: ...
@overload
def enter(model: onnx.ModelProto, *, copy: bool = True) -> tuple[onnx_ir.Model, Source[onnx.ModelProto]]: ...
@overload
def enter(model: onnx_ir.Model, *, copy: bool = True) -> tuple[onnx_ir.Model, Source[onnx_ir.Model]]: ...
@overload
def enter(model: SurgeonGraph, *, copy: bool = True) -> tuple[onnx_ir.Model, Source[SurgeonGraph]]: ...
@overload
def enter(model: Program, *, copy: bool = True) -> tuple[onnx_ir.Model, Source[onnx_ir.Model]]: ...
def enter(model: AnyModel, *, copy: bool = True) -> tuple[onnx_ir.Model, Source[Any]]:
    """Turn any kind of model into a valid, topologically sorted graph.

    The caller's object is never changed. Weights are not copied: the graph reads them from the caller's object or from
    the file, so the caller must not overwrite them while the graph is in use.

    Args:
        model: The path of a model file, an `onnx.ModelProto`, an `onnx_ir.Model`, an `onnx_graphsurgeon.Graph`, or what
            `torch.onnx.export` returns.
        copy: If False, an `onnx_ir.Model` is taken over and changed in place.

    Returns:
        The graph, and the source to pass to `leave`.

    Raises:
        ModelFileError: The file, or an external data file of the model, cannot be used.
        InvalidModelError: The model is not a valid graph; the message names the node or value.
        TypeError: `model` is none of these kinds.
    """
    if isinstance(model, str | os.PathLike):
        return load(model), Source("path", os.fspath(model), Path(model), _same)
    if isinstance(model, onnx.ModelProto):
        return _enter_proto(model), Source("proto", model.graph.name or "ModelProto", None, to_proto)
    if isinstance(model, onnx_ir.Model):
        return _enter_ir(model, copy=copy), Source("ir", model.graph.name or "onnx_ir.Model", None, _same)
    if isinstance(exported := getattr(model, "model", None), onnx_ir.Model):
        return _enter_ir(exported, copy=copy), Source("ir", exported.graph.name or "ONNXProgram", None, _same)
    # A user who has such a graph has already imported its package; nobody else should have to wait for the import.
    surgeon = sys.modules.get("onnx_graphsurgeon")
    if surgeon is not None and isinstance(model, surgeon.Graph):
        return _enter_surgeon(model), Source("graphsurgeon", model.name or "onnx_graphsurgeon.Graph", None, _to_surgeon)
    raise TypeError(
        "a model is a path, an onnx.ModelProto, an onnx_ir.Model, an onnx_graphsurgeon.Graph or an ONNXProgram of PyTorch, "
        f"not {type(model).__module__}.{type(model).__qualname__}"
    )


def leave(model: onnx_ir.Model, source: Source[K]) -> K:
    """Convert a graph back to the kind of object that came in.

    A path comes back as an `onnx_ir.Model`; `ortfuse.save` writes it to a file. An `onnx.ModelProto` contains all weights that
    were not external when it came in. An `onnx_graphsurgeon.Graph` cannot hold a model's metadata or documentation strings,
    so these are lost.

    Raises:
        InvalidModelError: Something in the graph cannot be represented, such as an initializer without data.
        ModelFileError: A weight can no longer be read from the file the model was loaded from.
    """
    return source.restore(model)


def _same(model: onnx_ir.Model) -> onnx_ir.Model:
    return model


def _enter_proto(proto: onnx.ModelProto) -> onnx_ir.Model:
    name = proto.graph.name or "ModelProto"
    if not proto.HasField("graph"):
        raise InvalidModelError(f"{name}: has no graph")
    with uncollected():
        places: list[Extent | None] = [None] * len(proto.graph.initializer)
        model = graph_of(proto, places, lambda model, proto, extents: take(model, name), name=name)
        external_data.attach(model, name=name, model_file=Path("model.onnx"), missing=_NO_FOLDER)
    return model


def _enter_ir(model: onnx_ir.Model, *, copy: bool) -> onnx_ir.Model:
    name = model.graph.name or "onnx_ir.Model"
    with uncollected():
        if copy:
            model = _copied(model, name)
        else:
            admit(model, name=name)
        external_data.attach(model, name=name, model_file=None)
    return model


def _copied(model: onnx_ir.Model, name: str) -> onnx_ir.Model:
    """A valid copy of a model that shares the data of its tensors."""
    try:
        check(model, name=name)
    except RepairableError:
        # Only sorted graphs can be cloned, and the caller's must not be sorted in place; so the copy goes through protobuf.
        copy = _copied_by_proto(model, name)
        admit(copy, name=name)
    else:
        try:
            copy = model.clone()
        except RuntimeError:
            # The only reason why a valid graph cannot be cloned is that cloning recurses into subgraphs.
            raise InvalidModelError(f"{name}: its subgraphs are nested too deeply") from None
        take(copy, name)
    return copy


def _copied_by_proto(model: onnx_ir.Model, name: str) -> onnx_ir.Model:
    proto, weights = separate(model)
    proto.graph.initializer.extend(weight.header for weight in weights)
    copy = from_proto(proto, name=name)
    for weight in weights:
        if weight.tensor is not None:
            copy.graph.initializers[weight.header.name].const_value = own(weight.tensor)
    return copy


def _enter_surgeon(graph: SurgeonGraph) -> onnx_ir.Model:
    from onnx_graphsurgeon.exporters.onnx_exporter import export_onnx

    try:
        proto = export_onnx(graph)
    except Exception as error:
        # The import fails in various ways, even on graphs that graphsurgeon created (for example on an empty list attribute).
        raise InvalidModelError(
            f"{graph.name}: onnx_graphsurgeon cannot export the graph: {error}; hand over the model it was made from"
        ) from error
    return _enter_proto(proto)


def _to_surgeon(model: onnx_ir.Model) -> SurgeonGraph:
    from onnx_graphsurgeon.importers.onnx_importer import import_onnx

    return import_onnx(to_proto(model))
