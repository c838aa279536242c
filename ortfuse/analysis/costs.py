"""Count the cost of operators: multiply-accumulates, floating-point operations and bytes moved, as polynomials of dimensions.

Conventions, which are those of the literature:

- A multiply-accumulate of a product (MatMul, Conv, attention, recurrent layers) is two operations. Biases are not counted.
- Everything else counts operations per element, where a function such as Exp is one: elementwise operators 1, normalisations and
  softmax as many as their formulas have.
- Bytes are those of each operand and each result once. Reshapes move nothing; what only picks elements (Gather, Slice) reads
  what it writes.
- If, Loop, Scan and calls of functions cost nothing themselves; the nodes in their bodies do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import onnx_ir as ir

from ortfuse.analysis.transfer.value_fact import Shape
from ortfuse.ir import walk
from ortfuse.ir.dims import DimLike, floor_div, product
from ortfuse.ir.operator_registry import Facet
from ortfuse.ir.traits import (
    BLOCKED,
    BROADCASTS,
    CONTROL_FLOW,
    DEQUANTISES,
    ELEMENTWISE,
    FILLS,
    JOINS,
    MOVES,
    QUANTISES,
    RANDOM,
    REDUCES,
    RESHAPES,
    SIZES,
    has,
)


@dataclass(frozen=True)
class Cost:
    """The cost of one execution.

    Attributes:
        macs: Multiply-accumulates of products.
        flops: All operations, two for each multiply-accumulate.
        bytes: Bytes read and written.
    """

    macs: DimLike = 0
    flops: DimLike = 0
    bytes: DimLike = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.macs + other.macs, self.flops + other.flops, self.bytes + other.bytes)


class Known(Protocol):
    """The source of knowledge about the values of a graph: facts, or the observations of a run."""

    def shape(self, value: ir.Value | None) -> Shape | None:
        """The shape; `None` if it is not known."""

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type; `None` if it is not known."""


def cost_of(node: ir.Node, facts: Known) -> Cost | None:
    """The cost of a node; `None` if the operator, or a shape or element type that matters, is not known."""
    if has(node, CONTROL_FLOW) or node.op_type == "Constant" or _is_free(node):
        return Cost()
    function = COSTS.get(("" if node.domain == BLOCKED else node.domain, node.op_type)) or _by_traits(node)
    if function is None:
        return None
    at = NodeSizes(node, facts)
    try:
        work = function(at)
        return Cost(work.macs, work.flops, at.bytes())
    except UnknownCostError:
        return None


class UnknownCostError(Exception):
    """Raised inside a cost function if a shape or attribute that it needs is unknown."""


T = TypeVar("T")


def _known(thing: T | None) -> T:
    if thing is None:
        raise UnknownCostError
    return thing


class NodeSizes:
    """A node with what is known about its operands and results; whatever is not known raises `UnknownCostError`."""

    def __init__(self, node: ir.Node, facts: Known) -> None:
        self.node, self._facts = node, facts

    def has(self, index: int) -> bool:
        """Return whether the node has the operand."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def shape(self, index: int) -> Shape:
        """Return the shape of an operand."""
        return _known(self._facts.shape(self.node.inputs[index]) if self.has(index) else None)

    def size(self, index: int) -> DimLike:
        """Return the number of elements of an operand."""
        return product(self.shape(index))

    def result(self, index: int = 0) -> Shape:
        """Return the shape of a result."""
        return _known(self._facts.shape(self.node.outputs[index]))

    def results(self) -> DimLike:
        """Return the number of elements of the first result."""
        return product(self.result())

    def integer(self, name: str, default: int = 0) -> int:
        """Return an integer attribute; `default` if the node does not have it."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None or attribute.is_ref() else int(attribute.value)

    def integers(self, name: str) -> tuple[int, ...]:
        """Return an attribute that is a list of integers; an empty one if the node does not have it."""
        attribute = self.node.attributes.get(name)
        return () if attribute is None or attribute.is_ref() else tuple(attribute.value)

    def text(self, name: str) -> str:
        """Return a string attribute; an empty one if the node does not have it."""
        attribute = self.node.attributes.get(name)
        return "" if attribute is None or attribute.is_ref() else str(attribute.value)

    def bytes(self) -> DimLike:
        """The bytes of the operands and results, as far as the node moves them."""
        results = [value for value in self.node.outputs if value.name != "" and _is_used(value)]
        written = sum((self._bytes_of(value) for value in results), start=0)
        if has(self.node, _PICKS_ELEMENTS):
            further = [value for value in self.node.inputs[1:] if value is not None]
            return 2 * written + sum((self._bytes_of(value) for value in further), start=0)
        operands = dict.fromkeys(value for value in self.node.inputs if value is not None)
        return written + sum((self._bytes_of(value) for value in operands), start=0)

    def _bytes_of(self, value: ir.Value) -> DimLike:
        elements, dtype = product(_known(self._facts.shape(value))), _known(self._facts.dtype(value))
        if dtype == ir.DataType.STRING:
            raise UnknownCostError
        bits = int(dtype.bitwidth)
        return elements * (bits // 8) if bits >= 8 else floor_div(elements * bits, 8)


_PICKS_ELEMENTS = MOVES - JOINS - FILLS
"""Operators that read only what they write."""


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _is_free(node: ir.Node) -> bool:
    """Whether a node only looks at shapes, or gives its input another one."""
    return has(node, RESHAPES) or has(node, SIZES)


class Work(NamedTuple):
    """The operations of one execution of a node; `macs` are those among them that are multiply-accumulates, two each."""

    macs: DimLike
    flops: DimLike


CostOf: TypeAlias = Callable[["NodeSizes"], Work]


COSTS: Facet[CostOf] = Facet("cost", "multiply-accumulates and operations of one execution")


cost = COSTS.register
"""Register the decorated function as the cost of the given operators."""


def macs(count: Callable[[NodeSizes], DimLike]) -> CostOf:
    """Return the cost of a product, from a function that counts its multiply-accumulates."""

    def work(at: NodeSizes) -> Work:
        found = count(at)
        return Work(found, 2 * found)

    return work


def per_result(operations: int) -> CostOf:
    """Return the cost of an operator that takes so many operations for each element of its first result."""
    return lambda at: Work(0, operations * at.results())


def per_operand(operations: int) -> CostOf:
    """Return the cost of an operator that takes so many operations for each element of its first operand."""
    return lambda at: Work(0, operations * at.size(0))


def nothing(at: NodeSizes) -> Work:
    """Return the cost of an operator that computes nothing, beyond moving elements."""
    return Work(0, 0)


def _by_traits(node: ir.Node) -> CostOf | None:
    """The cost of an operator that has no function of its own; `None` if its traits do not tell either."""
    return next((function for trait, function in _BY_TRAIT if has(node, trait)), None)


_BY_TRAIT: Sequence[tuple[AbstractSet[str], CostOf]] = (
    (REDUCES, per_operand(1)),
    (MOVES | RANDOM, nothing),
    (ELEMENTWISE | BROADCASTS | QUANTISES | DEQUANTISES, per_result(1)),
)


def total(model: ir.Model, facts: Known) -> tuple[Cost, list[ir.Node]]:
    """The cost of all nodes of a model, bodies counted once, and the nodes whose cost is not known."""
    found, unknown = Cost(), []
    for node in walk.nodes(model):
        one = cost_of(node, facts)
        if one is not None:
            found = found + one
        elif node.op_identifier() not in model.functions:
            unknown.append(node)
    return found, unknown
