"""Names of sizes that a model computes, which `finalize` declares.

The runtime computes an elementwise node in the buffer of its operand if it sees that both have the same sizes. Those of inputs
have names, and its shape inference hands these on. Sizes that are computed have none, unless they are declared.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import onnx_ir as ir

from ortfuse.ir.walk import graphs, own_values

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


def unused_stem(model: ir.Model, wanted: str) -> str:
    """Return a text that no name of a size in a model holds, nor a formula of a declared one: it, or it with a number behind.

    Names that start with it are unused, whether the others were named by `name_sizes` or are declared, in bodies too.
    """
    taken: set[str] = set()
    for graph in graphs(model):
        for value in own_values(graph):
            taken.update(str(dim.value) for dim in value.shape or () if isinstance(dim, ir.SymbolicDim))
            taken.update(value.meta.get(_KEY, ()))
    stems = itertools.chain([wanted], (f"{wanted}{number}" for number in itertools.count(2)))
    return next(stem for stem in stems if not any(stem in text for text in taken))
