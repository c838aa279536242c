"""Insert Q/DQ pairs between quantised operators, so that the runtime computes the operators between them in integers.

Convolutions on schemes take and give integers. Between two of them, operators such as gates, sums, Concat and means would be
in float32, with a DequantizeLinear before and a QuantizeLinear behind. The runtime has integer kernels for them if each
operand comes from a DequantizeLinear and the result goes to a QuantizeLinear. So a result gets such a pair if all its users
are schemes or other such operators. Its range is the observed one.

x sigmoid(a x) has a runtime kernel in float32 only. It is written as Sigmoid and Mul, which have integer kernels:
a x has the integers of x with a scale a times as large.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.selection import EVERYTHING, Selected
from ortfuse.ir.traits import MICROSOFT
from ortfuse.ir.walk import Scope
from ortfuse.quantization.quantization_parameters import unsigned_grid
from ortfuse.rewrite.pattern.match_result import Ranges
from ortfuse.transforms import Context
from ortfuse.transforms.node_builder import Builder

COMPUTES = frozenset({"Add", "Mul", "Concat", "Sigmoid", "LeakyRelu", "AveragePool", "GlobalAveragePool", "ReduceMean"})
"""Operators whose results are on a grid of their own."""

KEEPS = frozenset({"MaxPool", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Resize", "Split"})
"""Operators whose results are numbers of their first input, on its grid."""

_OF_FIRST = KEEPS | {"ReduceMean"}
"""Operators whose other inputs are sizes and axes."""

METHOD = "least_squares"
"""How the ranges are told."""

SIGMOID = (0.0, 1.0)
"""The range of Sigmoid."""

Grid = Sequence[ir.Value | None]
"""A scale, and the number that stands for 0."""


def is_gate(node: ir.Node) -> bool:
    """Whether a node computes x sigmoid(a x), with a positive a."""
    return (node.domain, node.op_type) == (MICROSOFT, "QuickGelu") and _factor(node) > 0


def _factor(node: ir.Node) -> float:
    return node.attributes.get_float("alpha", 1.702)


def stretches(
    graph: ir.Graph, facts: Facts, given: Callable[[ir.Value], bool], taken: Callable[[ir.Value, ir.Node], bool],
    selected: Selected = EVERYTHING,
) -> list[ir.Node]:  # fmt: skip
    """The nodes that take only integers, or what other such nodes make, and whose results go to integers or such nodes alone.

    Args:
        graph: A graph.
        facts: The facts of its model.
        given: Whether a value is made of integers.
        taken: Whether a node takes a value as integers.
        selected: What may be in lower precision.
    """

    def may_be(node: ir.Node) -> bool:
        return _has_kernel(node, facts) and not selected.objection(value.name or "" for value in node.outputs)

    def stays(node: ir.Node) -> bool:
        if not all(given(one) or one.producer() in found for one in _operands(node)):
            return False
        uses = [(value, use.node) for value in node.outputs for use in value.uses()]
        used = all(user in found or taken(value, user) for value, user in uses)
        return used and bool(uses) and not any(value.is_graph_output() for value in node.outputs)

    found: dict[ir.Node, None] = {}
    for node in graph:
        if may_be(node) and all(given(one) or one.producer() in found for one in _operands(node)):
            found[node] = None
    while lost := [node for node in found if not stays(node)]:
        for node in lost:
            del found[node]
    return list(found)


def _has_kernel(node: ir.Node, facts: Facts) -> bool:
    """Whether the runtime computes it with integers of 8 bits."""
    if any(facts.dtype(value) != ir.DataType.FLOAT for value in node.outputs):
        return False
    if node.domain:
        return is_gate(node)
    if node.op_type == "Resize":
        return node.attributes.get_string("mode", "nearest") == "nearest"
    if node.op_type == "ReduceMean":
        axes = parameter(node, "axes", facts)
        return facts.rank(node.inputs[0]) == 4 and isinstance(axes, tuple | list) and {*axes} == {2, 3}
    if node.op_type == "MaxPool":
        return len(node.outputs) == 1
    return node.op_type in COMPUTES | KEEPS


def _operands(node: ir.Node) -> list[ir.Value]:
    """Return the data operands, as opposed to sizes and axes."""
    operands = node.inputs[:1] if node.op_type in _OF_FIRST else node.inputs
    return [value for value in operands if value is not None]


def names_between(model: ir.Model, names: Collection[str]) -> list[str]:
    """The values that may be rounded where those of these names are: activations of sites, and their results."""
    named = frozenset(names)
    nodes = stretches(
        model.graph, Facts(model), lambda value: value.name in named, lambda value, user: value.name in named
    )
    return [value.name or "" for node in nodes for value in node.outputs]


@dataclass(frozen=True)
class IntegersBetween:
    """Round values between quantised operators.

    Attributes:
        observed: The range of a value by its name and the method that tells it; `None` if there is none.
        selected: What may be in lower precision.
    """

    name: ClassVar[str] = "precision.between"
    observed: Ranges
    selected: Selected = EVERYTHING

    def run(self, context: Context) -> int:
        """Put pairs behind what other operators between integers take; returns how many operators there are."""
        scope = next(context.scopes())
        between = stretches(scope.graph, context.facts, _is_dequantised, _is_quantised, self.selected)
        for node in between:
            with context.editor.change(self.name):
                _Rounding(context, scope, node, between, self.observed).write()
        return len(between)


def _is_dequantised(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type == "DequantizeLinear" and _is_plain(node)


def _is_quantised(value: ir.Value, user: ir.Node) -> bool:
    return user.op_type == "QuantizeLinear" and user.inputs[0] is value and _is_plain(user)


def _is_plain(node: ir.Node) -> bool:
    """One scale for all elements, and integers from 0 to 255."""
    scale, zero = (value if value is None else value.const_value for value in (*node.inputs[1:3], None, None)[:2])
    return scale is not None and zero is not None and scale.shape.rank() == 0 and zero.dtype == ir.DataType.UINT8


class _Rounding:
    """Write one node anew, with its results rounded."""

    def __init__(
        self, context: Context, scope: Scope, node: ir.Node, between: Collection[ir.Node], observed: Ranges
    ) -> None:
        self._editor, self._node, self._between, self._observed = context.editor, node, between, observed
        self._build = Builder(scope, context.editor, node)

    def write(self) -> None:
        """Replace the node; what only a QuantizeLinear takes is rounded there."""
        for old, made in zip(self._node.outputs, self._anew(), strict=True):
            grid = self._grid(old) if any(use.node in self._between for use in old.uses()) else None
            self._editor.replace(old, made if grid is None else self._rounded(made, grid))
        self._editor.remove(self._node)

    def _anew(self) -> Sequence[ir.Value]:
        node, build = self._node, self._build
        if is_gate(node):
            sigmoid = self._rounded(build.node("Sigmoid", [self._scaled(node)])[0], self._constants(*SIGMOID))
            return build.node("Mul", [node.inputs[0], sigmoid])
        return build.node(node.op_type, node.inputs, node.attributes, len(node.outputs))

    def _scaled(self, gate: ir.Node) -> ir.Value:
        """Return the operand of a gate's Sigmoid: the same integers with another scale."""
        value = gate.inputs[0]
        assert value is not None
        made = value.producer()
        if _factor(gate) == 1 or made is None:
            return value
        whole, scale, zero = made.inputs
        assert scale is not None and scale.const_value is not None
        larger = np.float32(scale.const_value.numpy() * np.float32(_factor(gate)))
        return self._build.node("DequantizeLinear", [whole, self._build.constant(ir.tensor(larger)), zero])[0]

    def _rounded(self, value: ir.Value, grid: Grid) -> ir.Value:
        whole = self._build.node("QuantizeLinear", [value, *grid])[0]
        return self._build.node("DequantizeLinear", [whole, *grid])[0]

    def _constants(self, low: float, high: float) -> Grid:
        scale, zero = unsigned_grid(low, high)
        return [self._build.constant(ir.tensor(one)) for one in (np.float32(scale), np.uint8(zero))]

    def _grid(self, value: ir.Value) -> Grid | None:
        """The grid of an operand that the node keeps; that which the value is rounded to later; or one for its range."""
        if self._node.op_type in KEEPS:
            return _grid_of(self._node.inputs[0])
        behind = self._behind(value)
        if behind is not None or self._node.op_type == "Sigmoid":
            return behind or self._constants(*SIGMOID)
        found = self._observed(value.name or "", METHOD)
        return None if found is None else self._constants(found[0], found[-1])

    def _behind(self, value: ir.Value) -> Grid | None:
        """The grid that a value is rounded to by what takes it, or what moves it before."""
        users = [use.node for use in value.uses() if use.idx == 0]
        moved = (self._behind(one) for user in users if user.op_type in KEEPS for one in user.outputs)
        own = (user.inputs[1:3] for user in users if _is_quantised(value, user))
        return next((grid for grid in (*own, *moved) if grid is not None), None)


def _grid_of(value: ir.Value | None) -> Grid | None:
    node = None if value is None or not _is_dequantised(value) else value.producer()
    return None if node is None else node.inputs[1:3]
