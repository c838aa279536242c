"""The border of the compiler: every kind of model comes in as `onnx_ir.Model` and goes out as the kind that came in."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, overload

import onnx
import onnx_ir

from ortfuse.ir.io import check, load

if TYPE_CHECKING:
    import onnx_graphsurgeon

AnyModel: TypeAlias = "str | os.PathLike[str] | onnx.ModelProto | onnx_ir.Model | onnx_graphsurgeon.Graph"
"""What a user may hand over: a path, or a model object of any of the three common kinds."""

K = TypeVar("K")


@dataclass(frozen=True)
class Source(Generic[K]):
    """Where a model came from: `kind`, a `name` for messages, `path` if it was a file."""

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
def enter(
    model: onnx_graphsurgeon.Graph, *, copy: bool = True
) -> tuple[onnx_ir.Model, Source[onnx_graphsurgeon.Graph]]: ...
def enter(model: AnyModel, *, copy: bool = True) -> tuple[onnx_ir.Model, Source[Any]]:
    """Convert any kind of model to the IR. The caller's object is not mutated.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`.
        copy: False hands an `onnx_ir.Model` through as it is, for callers who own it.

    Returns:
        The model and the source, which `leave` needs to give the result back as the same kind.
    """
    if isinstance(model, onnx_ir.Model):
        result = model.clone() if copy else model
        check(result, name=result.graph.name or "model")
        return result, Source("ir", result.graph.name or "model", None, lambda m: m)
    if isinstance(model, onnx.ModelProto):
        result = onnx_ir.from_proto(model)
        check(result, name=result.graph.name or "model")
        return result, Source("proto", result.graph.name or "model", None, onnx_ir.to_proto)
    if isinstance(model, str | os.PathLike):
        return load(model), Source("path", os.fspath(model), Path(model), lambda m: m)
    gs = sys.modules.get("onnx_graphsurgeon")
    if gs is not None and isinstance(model, gs.Graph):
        result = onnx_ir.from_proto(gs.export_onnx(model))
        check(result, name=result.graph.name or "model")
        return result, Source("graphsurgeon", result.graph.name or "model", None, lambda m: gs.import_onnx(onnx_ir.to_proto(m)))
    raise TypeError(f"expected a path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph, not {type(model)}")


def leave(model: onnx_ir.Model, source: Source[K]) -> K:
    """Give a model back as the kind that `enter` received (a path comes back as `onnx_ir.Model`)."""
    return source.restore(model)
