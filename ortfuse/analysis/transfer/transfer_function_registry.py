"""Registry of transfer functions, and class `Op`, the view of a node that they get.

A transfer function takes an `Op` and returns the `Fact` of the first output, or a tuple with one per output. It leaves
unknown what it cannot determine (`UNKNOWN` for a dimension, None for a shape or dtype); it must never guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import onnx_ir as ir

from ortfuse.analysis.transfer.value_fact import NOTHING, Elements, Fact, Shape
from ortfuse.ir.dims import DimLike
from ortfuse.ir.operator_registry import Facet


class UnknownError(Exception):
    """Raised inside a transfer function if something it needs is unknown; the node's outputs are then unknown."""


class Scopes(Protocol):
    """The running analysis, as transfer functions of control flow and calls use it: bodies, and what is known inside them."""

    facts: dict[ir.Value, Fact]

    def fact(self, value: ir.Value) -> Fact:
        """Return the fact of a value."""

    def owner(self, graph: ir.Graph | None) -> ir.Node | None:
        """Return the node that has this graph as a body."""

    def enter(self, graph: ir.Graph, node: ir.Node) -> bool:
        """Register the graph as a body of the node; returns whether it has to be run."""

    def run(self, nodes: Iterable[ir.Node]) -> None:
        """Compute the facts of all outputs of the nodes, which must be in topological order."""

    def assume(self, value: ir.Value, fact: Fact) -> Fact:
        """Set the fact of a body's input, which is known only from the enclosing node."""

    def outward(self, fact: Fact, graph: ir.Graph | None) -> Fact:
        """Return the fact as it may be used in `graph`: without the unknown dimensions of the bodies it comes from."""

    def call(self, op: Op, function: ir.Function) -> tuple[Fact, ...]:
        """Return the outputs of an operator that is defined by a function that is not part of the model."""

    def imports_of(self, node: ir.Node) -> Mapping[str, int]:
        """Return the opset imports in force for a node."""


class Op:
    """A node with the facts of its inputs.

    Attributes:
        node: the node.
        version: the opset version in force for it.
        inputs: the facts of the inputs; None for an optional input that is absent.
        analysis: the running analysis (needed only for control flow).
    """

    __slots__ = ("_attributes", "analysis", "inputs", "node", "version")

    def __init__(self, node: ir.Node, version: int, inputs: list[Fact | None], analysis: Scopes) -> None:
        self.node = node
        self.version = version
        self.inputs = inputs
        self.analysis = analysis
        self._attributes: dict[str, ir.Attr] = node.attributes.data

    def has(self, index: int) -> bool:
        """Whether input `index` is present."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def fact(self, index: int) -> Fact:
        """The fact of an input; an empty fact if the input is absent."""
        if index < len(self.inputs):
            return self.inputs[index] or NOTHING
        return NOTHING

    def dtype(self, index: int = 0) -> ir.DataType | None:
        """The element type of an input."""
        return self.fact(index).dtype

    def shape(self, index: int = 0) -> Shape | None:
        """The shape of an input, None if its rank is unknown."""
        return self.fact(index).shape

    def known_shape(self, index: int = 0) -> Shape:
        """The shape of an input.

        Raises:
            UnknownError: its rank is unknown.
        """
        shape = self.fact(index).shape
        if shape is None:
            raise UnknownError
        return shape

    def elements(self, index: int) -> Elements | None:
        """The symbolic elements of an input."""
        return self.fact(index).elements()

    def integers(self, index: int) -> tuple[DimLike | None, ...] | None:
        """The symbolic integers of an input."""
        return self.fact(index).integers()

    def constants(self, index: int) -> tuple[int, ...]:
        """The integers of an input, all of which must be constant.

        Raises:
            UnknownError: not every one of them is known.
        """
        numbers = self.fact(index).constants()
        if numbers is None:
            raise UnknownError
        return numbers

    def given(self, name: str) -> bool:
        """Whether the node has the attribute (as a value or as a reference)."""
        return name in self._attributes

    def attribute(self, name: str) -> Any:
        """The value of an attribute, None if the node does not have it.

        Raises:
            UnknownError: it refers to an attribute of the enclosing model function, so it differs between calls.
        """
        attribute = self._attributes.get(name)
        if attribute is None:
            return None
        if attribute.is_ref():
            raise UnknownError
        return attribute.value

    def graph(self, name: str) -> ir.Graph:
        """A graph that is an attribute.

        Raises:
            UnknownError: the node does not have it, or it differs between calls.
        """
        found: ir.Graph | None = self.attribute(name)
        if found is None:
            raise UnknownError
        return found

    def attr_int(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.attribute(name)
        return default if value is None else value

    def attr_ints(self, name: str) -> tuple[int, ...] | None:
        """An attribute that is a list of integers, None if the node does not have it."""
        value = self.attribute(name)
        return None if value is None else tuple(value)

    def attr_str(self, name: str, default: str) -> str:
        """A string attribute."""
        value = self.attribute(name)
        return default if value is None else value

    def attr_dtype(self, name: str, default: ir.DataType | None = None) -> ir.DataType | None:
        """An attribute that holds an element type."""
        value = self.attribute(name)
        return default if value is None else ir.DataType(value)

    def axis(self, name: str, default: int, rank: int) -> int:
        """An attribute that is an axis of a tensor of rank `rank`, counted from the front.

        Raises:
            UnknownError: there is no such axis.
        """
        return normalize_axis(self.attr_int(name, default), rank)

    def int_list(self, name: str, position: int) -> tuple[int, ...] | None:
        """Integers given by an attribute in old opsets and by input `position` in new ones; None if neither is given.

        Raises:
            UnknownError: the input is not constant.
        """
        if self.has(position):
            return self.constants(position)
        return self.attr_ints(name)

    @property
    def output_count(self) -> int:
        """The number of outputs."""
        return len(self.node.outputs)


def normalize_axis(axis: int, rank: int) -> int:
    """The axis counted from the front.

    Raises:
        UnknownError: a tensor of rank `rank` has no such axis.
    """
    if axis < 0:
        axis += rank
    if not 0 <= axis < rank:
        raise UnknownError
    return axis


def normalize_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front; see `normalize_axis`."""
    return tuple([normalize_axis(axis, rank) for axis in axes])


Transfer: TypeAlias = Callable[[Op], "Fact | tuple[Fact, ...]"]

TRANSFERS: Facet[Transfer] = Facet("shape", "the facts of the outputs: element types, shapes, symbolic elements")

transfer = TRANSFERS.register
"""Register the decorated function as the transfer function of the given operators."""
