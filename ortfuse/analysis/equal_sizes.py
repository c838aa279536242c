"""Prove that input dimensions with different names are equal, because MatMul or another operator fails otherwise.

    x @ y        needs as many columns of x as y has rows

Exporters name each axis that they know nothing of on its own: the keys and the values of a cache then have two names for one
length. The runtime checks the operands of a product, empty ones too, and runs every node that an output of the main graph
needs, so a run in which such sizes differ fails. Nothing is concluded from nodes that it may leave out: in bodies of control
flow, or needed only there, or for whole numbers, which may be a shape that it works out without them (its optimiser writes
``reshape(x, [2, f(y)])`` as ``reshape(x, [2, -1])``); nor from operators that stretch an axis of size 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir

from ortfuse.analysis.transfer.value_fact import INTEGERS, Fact
from ortfuse.ir.dims import Dim, DimLike, substituted, symbols
from ortfuse.ir.walk import needed_nodes

_WHOLE = (INTEGERS - {ir.DataType.BOOL}) | {None}
"""The types of what may be a shape."""
OPERANDS = 2
"""The operands of a product."""

FactOf = Callable[[ir.Value], Fact]


def agreeing_sizes(graph: ir.Graph, fact_of: FactOf) -> dict[str, DimLike]:
    """The symbols of the inputs of a main graph that equal another one, or a number, in every run that succeeds: that by name."""
    shapes = [fact_of(value).shape or () for value in graph.inputs]
    names = dict.fromkeys(str(dim) for shape in shapes for dim in shape if {str(dim)} == symbols(dim))
    # Names before unknown sizes, and then by place.
    order = {name: place for place, name in enumerate(sorted(names, key=lambda name: name.startswith("?")))}
    found: dict[str, DimLike] = {}
    if order:
        for node in _certainly_run(graph, fact_of):
            for one, other in _contracted(node, fact_of):
                new = _solved(with_sizes(one, found) - with_sizes(other, found), order)
                found = {name: substituted(size, new) for name, size in found.items()} | new
    return found


def with_sizes(dim: DimLike, sizes: Mapping[str, DimLike]) -> DimLike:
    """The dimension with the given sizes in place of the symbols of these names; as it is if it has a divisor that is 0 then."""
    try:
        return substituted(dim, sizes)
    except ZeroDivisionError:
        return dim


def _certainly_run(graph: ir.Graph, fact_of: FactOf) -> Iterator[ir.Node]:
    """The nodes that the outputs of the graph need, but for those that only a body needs, and those needed for whole numbers."""

    def needs(node: ir.Node) -> list[ir.Value]:
        values = [value for value in node.inputs if value is not None]
        known_by_shape = not node.domain and node.op_type in {"Shape", "Size"}
        return [] if known_by_shape else [value for value in values if fact_of(value).dtype not in _WHOLE]

    return needed_nodes(graph, needs)


def _contracted(node: ir.Node, fact_of: FactOf) -> Iterator[tuple[DimLike, DimLike]]:
    """The sizes that a product sums over: of its first operand, and of its second."""
    if node.domain or node.op_type not in {"MatMul", "Gemm"} or len(node.inputs) < OPERANDS:
        return
    one, other = [None if value is None else fact_of(value).shape for value in node.inputs[:OPERANDS]]
    if not one or not other:
        return
    last, first = one[-1], other[-2:][0]
    if node.op_type == "Gemm":
        last = one[0] if node.attributes.get_int("transA", 0) else last
        first = other[-1] if node.attributes.get_int("transB", 0) else first
    if last != first:
        yield last, first


def _solved(gap: DimLike, order: Mapping[str, int]) -> dict[str, DimLike]:
    """The size of one of these symbols for which ``gap == 0``: a number or another symbol; none if that does not tell it."""
    terms = gap.terms if isinstance(gap, Dim) else ()
    constant = sum(factor for monomial, factor in terms if not monomial)
    atoms = {monomial[0].name: monomial[0].dim for monomial, _ in terms if len(monomial) == 1}
    factors = {
        monomial[0].name: factor for monomial, factor in terms if len(monomial) == 1 and monomial[0].name in order
    }
    if len(factors) != sum(1 for monomial, _ in terms if monomial):
        return {}
    match sorted(factors, key=lambda name: order[name]):
        case [name] if constant % factors[name] == 0 and -constant // factors[name] >= 0:
            return {name: -constant // factors[name]}
        case [kept, replaced] if not constant and factors[kept] == -factors[replaced]:
            return {replaced: atoms[kept]}
    return {}
