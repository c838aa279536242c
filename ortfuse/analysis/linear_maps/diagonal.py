"""Diagonal maps: nodes that compute `factor * x + offset` with constants that broadcast to x.

x * a, x / a, -x          factor a, 1 / a, -1
x + a, x - a, a - x       offset a, -a, a
x + x * a                 factor 1 + a                                               DoRA: arXiv:2402.09353
bn(x)                     factor scale / sqrt(variance + epsilon), offset shift - mean * factor       arXiv:1502.03167
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.operator_registry import Facet

Array: TypeAlias = "np.ndarray[Any, Any]"

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


@dataclass(frozen=True)
class Statistics:
    """The constants of a BatchNormalization in float64, a number for each channel."""

    scale: Array
    shift: Array
    mean: Array
    deviation: Array
    """sqrt(variance + epsilon)"""


@dataclass(frozen=True)
class Diagonal:
    """Nodes that compute `factor * data + offset`.

    Attributes:
        nodes: The nodes, of which the last one computes the result.
        data: The operand.
        factor: The factors in float64, which broadcast to the data.
        offset: The offsets in float64, which broadcast to the data.
        constants: The constant operands.
        statistics: The constants of BatchNormalization, if it is one.
        broadcasts_data: Whether the data may be what is broadcast to a constant, so that the result is larger.
    """

    nodes: tuple[ir.Node, ...]
    data: ir.Value
    factor: Array
    offset: Array
    constants: tuple[ir.Value, ...]
    statistics: Statistics | None = None
    broadcasts_data: bool = False

    @property
    def output(self) -> ir.Value:
        """The result."""
        return self.nodes[-1].outputs[0]

    @property
    def is_shift(self) -> bool:
        """Whether nothing is multiplied."""
        return bool(np.all(self.factor == 1))

    @property
    def is_scale(self) -> bool:
        """Whether nothing is added."""
        return not np.any(self.offset)

    @property
    def is_finite(self) -> bool:
        """Whether all numbers are finite."""
        return bool(np.all(np.isfinite(self.factor)) and np.all(np.isfinite(self.offset)))


Reader: TypeAlias = Callable[[ir.Node, Facts], "Diagonal | None"]

DIAGONALS: Facet[Reader] = Facet(
    "diagonal_map", "factors and offsets by which a node of floating-point numbers scales and shifts"
)

Numbers: TypeAlias = tuple[Array, Array]
"""Factors and offsets."""


def diagonal_of(node: ir.Node, facts: Facts, may_broadcast_data: bool = False) -> Diagonal | None:
    """Return the diagonal map of a node of floating-point numbers; `None` if it is none or may change the shape.

    Args:
        node: The node.
        facts: The facts.
        may_broadcast_data: Whether it may change the shape: the table of frequencies in an outer product does.
    """
    reader = DIAGONALS.of(node)
    if reader is None or facts.dtype(node.outputs[0]) not in FLOATS:
        return None
    found = reader(node, facts)
    return None if found is None or (found.broadcasts_data and not may_broadcast_data) else found


@DIAGONALS.register("Neg")
def negation(node: ir.Node, facts: Facts) -> Diagonal | None:
    """Factor -1."""
    data = node.inputs[0]
    return None if data is None else Diagonal((node,), data, np.full((), -1.0), np.zeros(()), ())


@DIAGONALS.register("Mul")
def product(node: ir.Node, facts: Facts) -> Diagonal | None:
    """Factors of a constant."""
    return _by_constant(node, facts, lambda wide, is_first: (wide, np.zeros(())))


@DIAGONALS.register("Div")
def quotient(node: ir.Node, facts: Facts) -> Diagonal | None:
    """Inverse factors of a constant divisor."""
    return _by_constant(node, facts, lambda wide, is_first: None if is_first else (1 / wide, np.zeros(())))


@DIAGONALS.register("Sub")
def difference(node: ir.Node, facts: Facts) -> Diagonal | None:
    """Offsets of a constant, of which the data may be taken away."""
    return _by_constant(node, facts, lambda wide, is_first: (-np.ones(()), wide) if is_first else (np.ones(()), -wide))


@DIAGONALS.register("Add", "Sum")
def total(node: ir.Node, facts: Facts) -> Diagonal | None:
    """Offsets of a constant, or the data and a multiple of it."""
    return _by_constant(node, facts, lambda wide, is_first: (np.ones(()), wide)) or _of_multiple(node, facts)


def _by_constant(node: ir.Node, facts: Facts, numbers: Callable[[Array, bool], Numbers | None]) -> Diagonal | None:
    """The map of two operands of which one is constant, by that in float64 and whether it is the first."""
    if len(node.inputs) != 2 or node.inputs[0] is None or node.inputs[1] is None:
        return None  # a Sum of one value or several
    first, second = node.inputs
    assert first is not None
    assert second is not None
    if facts.is_const(first) == facts.is_const(second):
        return None
    constant, data = (second, first) if facts.is_const(second) else (first, second)
    array = facts.const(constant)
    if array is None:
        return None
    with np.errstate(all="ignore"):
        found = numbers(array.astype(np.float64), constant is first)
    if found is None:
        return None
    broadcasts = not _keeps_shape(data, constant, node.outputs[0], facts)
    return Diagonal((node,), data, *found, (constant,), broadcasts_data=broadcasts)


def _of_multiple(node: ir.Node, facts: Facts) -> Diagonal | None:
    """A value plus a constant times itself."""
    for data, other in (node.inputs, node.inputs[::-1]) if node.op_type == "Add" else ():
        inner = None if other is None else other.producer()
        if inner is None or inner.domain or inner.op_type != "Mul" or len(inner.outputs[0].uses()) != 1:
            continue
        found = None if inner.outputs[0].is_graph_output() else diagonal_of(inner, facts)
        if found is not None and found.data is data:
            return Diagonal((inner, node), data, 1 + found.factor, found.offset, found.constants)
    return None


@DIAGONALS.register("BatchNormalization")
def batch_normalization(node: ir.Node, facts: Facts) -> Diagonal | None:
    """BatchNormalization by constant statistics of known channels."""
    data, rank = node.inputs[0], facts.rank(node.inputs[0])
    arrays = [facts.const(value) for value in node.inputs[1:5]]
    if data is None or rank is None or rank < 2 or any(array is None for array in arrays):
        return None
    # Before opset 14, a BatchNormalization with more outputs is in training mode.
    if any(output.name for output in node.outputs[1:]) or node.attributes.get_int("training_mode"):
        return None
    if any(one.is_ref() for one in node.attributes.values()):
        return None
    scale, shift, mean, variance = (array.astype(np.float64) for array in arrays if array is not None)
    if scale.ndim != 1 or any(one.shape != scale.shape for one in (shift, mean, variance)):
        return None
    with np.errstate(all="ignore"):
        deviation = np.sqrt(variance + float(np.float32(node.attributes.get_float("epsilon", 1e-5))))
        factor = scale / deviation
        offset = shift - mean * factor
    shape = (-1,) + (1,) * (rank - 2)
    constants = tuple(value for value in node.inputs[1:5] if value is not None)
    found = Statistics(scale, shift, mean, deviation)
    return Diagonal((node,), data, factor.reshape(shape), offset.reshape(shape), constants, found)


def _keeps_shape(data: ir.Value, constant: ir.Value, output: ir.Value, facts: Facts) -> bool:
    """Whether the constant provably broadcasts to the data."""
    shape, numbers = facts.shape(data), facts.shape(constant)
    if shape is None or numbers is None or len(numbers) > len(shape):
        return numbers == ()
    return shape == facts.shape(output) or all(
        size in (1, dim) for size, dim in zip(numbers[::-1], shape[::-1], strict=False)
    )
