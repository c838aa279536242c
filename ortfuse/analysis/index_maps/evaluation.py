"""Index maps evaluated with NumPy, for sizes that are given as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.index_maps.box import axis_number
from ortfuse.analysis.index_maps.element_expressions import Element, Fill, IndexMap, Number, Read
from ortfuse.ir.dims import Dim, DimLike, evaluate
from ortfuse.ir.dims.polynomial import Atom

Array = np.ndarray[Any, Any]


def evaluated(found: IndexMap, sizes: Mapping[str, int], arrays: Mapping[ir.Value, Array], dtype: Any) -> Array:
    """Return the tensor that a map describes.

    Args:
        found: The map.
        sizes: The sizes of all symbols.
        arrays: The elements of all sources.
        dtype: The element type of the result, of NumPy.

    Raises:
        IndexError: The map reads an element that its source does not have.
    """
    shape = tuple([evaluate(size, sizes) for size in found.shape])
    result: Array = np.empty(int(np.prod(shape)), dtype)
    places = np.indices(shape).reshape(len(shape), result.size)
    _fill(result, np.arange(result.size), found.element, places, sizes, arrays)
    return result.reshape(shape)


def _fill(
    result: Array,
    chosen: Array,
    element: Element,
    places: Array,
    sizes: Mapping[str, int],
    arrays: Mapping[ir.Value, Array],
) -> None:
    """Set the elements of a result that are chosen, by their number in row-major order."""
    here = places[:, chosen]
    if not chosen.size:
        return
    if isinstance(element, Read):
        source = arrays[element.value]
        index = [formula_values(formula, here, sizes) for formula in element.index]
        for along, size in zip(index, source.shape, strict=True):
            if along.size and (along.min() < 0 or along.max() >= size):
                raise IndexError(f"{element} reads beyond {source.shape}")
        result[chosen] = source[tuple(index)]
    elif isinstance(element, Number):
        result[chosen] = formula_values(element.formula, here, sizes)
    elif isinstance(element, Fill):
        result[chosen] = np.frombuffer(element.content, result.dtype)[0]
    else:
        holds = formula_values(element.condition, here, sizes) >= 0
        _fill(result, chosen[holds], element.then, places, sizes, arrays)
        _fill(result, chosen[~holds], element.otherwise, places, sizes, arrays)


def formula_values(formula: DimLike, places: Array, sizes: Mapping[str, int]) -> Array:
    """Return the values of a formula at positions, a row for each axis."""
    count = places.shape[1]
    if not isinstance(formula, Dim):
        return np.full(count, formula, np.int64)
    result = np.zeros(count, np.int64)
    for monomial, coefficient in formula.terms:
        product = np.full(count, coefficient, np.int64)
        for atom in monomial:
            product = product * _atom_values(atom, places, sizes)
        result = result + product
    return result


def _atom_values(atom: Atom, places: Array, sizes: Mapping[str, int]) -> Array | int:
    number = axis_number(atom)
    if number is not None:
        along: Array = places[number]
        return along
    if atom.kind == "floordiv":
        numerator, divisor = [formula_values(argument, places, sizes) for argument in atom.args]
        return numerator // divisor
    return evaluate(atom.dim, sizes)
