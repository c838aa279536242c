"""Operators that repeat elements: Expand, Tile."""

from __future__ import annotations

import numpy as np

from ortfuse.analysis.operators.reshape_and_transpose import rank_of_target
from ortfuse.analysis.ranges.last_axis_repeats_halves_or_pairs import in_pairs, keeps_size, operand_repeats, periods
from ortfuse.analysis.ranges.queries import Asking, columns
from ortfuse.analysis.ranges.range import Range
from ortfuse.analysis.ranges.vector_norms import (
    broadcast_norm,
    norms,
    result_size_along,
    size_along,
)
from ortfuse.analysis.transfer.broadcasting import broadcast_shapes, map_elements
from ortfuse.analysis.transfer.evaluate_small_tensors import Arrays, moves_elements
from ortfuse.analysis.transfer.transfer_function_registry import Op, transfer
from ortfuse.analysis.transfer.value_fact import UNKNOWN, Fact, Shape, static_shape
from ortfuse.ir.dims import (
    DimLike,
    is_nonzero,
)
from ortfuse.ir.operator_registry import describe


@transfer("Expand")
def expand(op: Op) -> Fact:
    """Broadcast the input with a shape."""
    data = op.fact(0)
    target = op.integers(1)
    if target is None:
        shape = rank_of_target(op.shape(1))
        known = shape is not None and data.shape is not None and len(data.shape) <= len(shape)
        return Fact(data.dtype, shape if known else None)
    shape = broadcast_shapes(data.shape, tuple([UNKNOWN if element is None else element for element in target]))
    if shape is not None and None in target:
        shape = _with_unknown_targets(data.shape, target, shape)
    return Fact(data.dtype, shape, map_elements(lambda element: element, [data], shape))


def _with_unknown_targets(data: Shape | None, target: tuple[DimLike | None, ...], shape: Shape) -> Shape:
    """With an unknown target element, a dimension of the input is kept only if it can never be 1."""
    dims = list(shape)
    for back in range(1, len(target) + 1):
        if target[-back] is None:
            kept = data[-back] if data is not None and back <= len(data) else 1
            dims[-back] = kept if is_nonzero(kept - 1) else UNKNOWN
    return tuple(dims)


@columns("Expand", "Tile")
def repeated_column(op: Asking) -> Range | None:
    """The answer for the operand."""
    return op.range(0)


@periods("Expand")
def expand_period(op: Asking) -> bool:
    """A single number for the whole axis, or a repeating operand."""
    before = op.known_shape(0)
    return not before or before[-1] == 1 or (keeps_size(op) and operand_repeats(op))


@norms("Expand", "Tile")
def repeated_norm(op: Asking) -> float | None:
    """The answer for the operand, if it is not repeated along the axis itself."""
    return broadcast_norm(op, 0) if op.node.op_type == "Expand" or size_along(op, 0) == result_size_along(op) else None


@moves_elements("Expand")
def expand_arrays(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    """The elements, repeated along axes of size 1."""
    return [np.broadcast_to(arrays[0], static_shape(results[0].shape) or ())]


@transfer("Tile")
def tile(op: Op) -> Fact:
    """Repeat along each axis."""
    data = op.fact(0)
    shape = op.known_shape()
    repeats = op.integers(1)
    if repeats is None or len(repeats) != len(shape):
        return Fact(data.dtype, (UNKNOWN,) * len(shape))
    dims = [UNKNOWN if n is None else dim * n for dim, n in zip(shape, repeats, strict=True)]
    return Fact(data.dtype, tuple(dims))


@periods("Tile")
def tile_period(op: Asking) -> bool:
    """A single number for the whole axis, an even number of copies, or a repeating operand."""
    copies = op.constants(1)[-1]
    if op.known_shape(0)[-1] == 1 or (copies % 2 == 0 and not in_pairs(op)):
        return True
    return (copies == 1 or in_pairs(op)) and _is_even(op) and operand_repeats(op)


def _is_even(op: Asking) -> bool:
    size = op.known_shape(0)[-1]
    return isinstance(size, int) and size % 2 == 0


@moves_elements("Tile")
def tile_arrays(op: Op, arrays: Arrays, results: tuple[Fact, ...]) -> Arrays:
    """The elements, repeated."""
    return [np.tile(arrays[0], arrays[1])]


describe("Expand", "Tile", size_operands=(1,))
