"""Read the declared shapes of a model's inputs: the only declared shapes whose sizes the runtime enforces.

Numbers are what they are. A name is the same size wherever it occurs, as the standard says, although the runtime does not check
that. A formula (exporters write ``past + 1``) is believed if each of its names is also the whole size of an input's axis;
otherwise it is a name like any other. Bounds that the user has declared are those of the size of that name. Exporters'
words for "unknown", and texts that are no names, say nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from ortfuse.analysis.equal_sizes import with_sizes
from ortfuse.analysis.transfer.value_fact import UNKNOWN, Shape
from ortfuse.ir.declared_sizes import declared_sizes
from ortfuse.ir.dims import DimLike, parse, symbol, symbols

_SAYS_NOTHING = frozenset({"", "None"})


def names_of_sizes(inputs: Iterable[ir.Value]) -> frozenset[str]:
    """The names that are, on their own, the size of an axis of one of these values."""
    shapes = [value.shape.dims for value in inputs if value.shape is not None]
    return frozenset(dim.value for dims in shapes for dim in dims if isinstance(dim, ir.SymbolicDim) and dim.value)


def declared_shape(value: ir.Value, names: Collection[str], bounded: Mapping[str, DimLike]) -> Shape | None:
    """The declared shape of an input, `UNKNOWN` where it says nothing; None without one.

    Args:
        value: The input.
        names: The names of sizes of all inputs.
        bounded: The sizes that have declared bounds, by name.
    """
    if value.shape is None or not isinstance(value.type, ir.TensorType | None):
        return None
    return tuple([with_sizes(_dim(dim, names), bounded) if bounded else _dim(dim, names) for dim in value.shape.dims])


def bounded_sizes(model: ir.Model) -> dict[str, DimLike]:
    """The sizes of inputs whose bounds the user has declared, by name."""
    return {name: symbol(name, low, high) for name, (low, high) in declared_sizes(model).size_range.items()}


def _dim(dim: int | ir.SymbolicDim, names: Collection[str]) -> DimLike:
    if isinstance(dim, int):
        return dim if dim >= 0 else UNKNOWN
    text = dim.value
    if text is None or text in _SAYS_NOTHING or text.startswith("?") or text.strip() != text:
        return UNKNOWN
    found = parse(text)
    if isinstance(found, int):
        return UNKNOWN
    return found if symbols(found) <= set(names) else symbol(text)
