"""Names of sizes that a model computes, which `finalize` declares.

The runtime computes an elementwise node in the buffer of its operand if it sees that both have the same sizes. Those of inputs
have names, and its shape inference hands these on. Sizes that are computed have none, unless they are declared.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

_KEY = "ortfuse.named_sizes"


def name_sizes(value: ir.Value, names: Sequence[str]) -> None:
    """Name the first sizes of a value. Sizes of one name have to be equal in each run: the runtime plans buffers by them."""
    value.meta[_KEY] = tuple(names)


def with_named_sizes(shape: ir.Shape | None, value: ir.Value) -> ir.Shape | None:
    """Return a shape with the names of the sizes of a value that are no numbers; itself if it has none."""
    names = value.meta.get(_KEY)
    if names is None or shape is None or len(shape) < len(names):
        return shape
    first = [dim if isinstance(dim, int) else name for dim, name in zip(shape.dims[: len(names)], names, strict=True)]
    return ir.Shape([*first, *shape.dims[len(names) :]])


def unused_names(graph: ir.Graph, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return names that no size of an input or output of a graph has, like those that are wanted."""
    taken = {
        str(dim.value)
        for value in (*graph.inputs, *graph.outputs)
        for dim in (value.shape or ())
        if isinstance(dim, ir.SymbolicDim)
    }
    return tuple(_unused(name, taken) for name in wanted)


def _unused(name: str, taken: Collection[str]) -> str:
    while any(name in text for text in taken):  # they may be formulas
        name += "_"
    return name
