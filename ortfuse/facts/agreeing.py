"""Sizes of a model's inputs that agree in every run that succeeds, although they are declared as different ones.

    x @ y        needs as many columns of x as y has rows

Exporters name each axis that they know nothing of on its own: the keys and the values of a cache then have two names for one
length. The runtime checks the operands of a product, empty ones too, and runs every node that an output of the main graph
needs, so a run in which such sizes differ fails. Nothing is concluded from nodes that it may leave out (in bodies of control
flow, or needed only there or for the shape of what they make), nor from operators that stretch an axis of size 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir

from ortfuse.dims import Dim, DimLike, substituted, symbol, symbols
from ortfuse.facts.transfer.fact import Shape

OPERANDS = 2
"""The operands of a product."""

ShapeOf = Callable[[ir.Value], Shape | None]


def agreeing_sizes(graph: ir.Graph, shape_of: ShapeOf) -> dict[str, DimLike]:
    """The symbols of the inputs of a main graph that equal another one, or a number, in every run that succeeds: that by name."""
    shapes = [shape_of(value) or () for value in graph.inputs]
    names = dict.fromkeys(str(dim) for shape in shapes for dim in shape if {str(dim)} == symbols(dim))
    # Names before unknown sizes, and then by place.
    order = {name: place for place, name in enumerate(sorted(names, key=lambda name: name.startswith("?")))}
    found: dict[str, DimLike] = {}
    if order:
        for node in _certainly_run(graph):
            for one, other in _contracted(node, shape_of):
                new = _solved(substituted(one, found) - substituted(other, found), order)
                found = {name: substituted(size, new) for name, size in found.items()} | new
    return found


def _certainly_run(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes that the outputs of the graph need, but for those that only a body needs, and those needed for shapes alone."""
    pending = [value.producer() for value in graph.outputs]
    seen: set[ir.Node] = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        if node.domain or node.op_type not in {"Shape", "Size"}:
            pending += [value.producer() for value in node.inputs if value is not None]


def _contracted(node: ir.Node, shape_of: ShapeOf) -> Iterator[tuple[DimLike, DimLike]]:
    """The sizes that a product sums over: of its first operand, and of its second."""
    if node.domain or node.op_type not in {"MatMul", "Gemm"} or len(node.inputs) < OPERANDS:
        return
    one, other = [None if value is None else shape_of(value) for value in node.inputs[:OPERANDS]]
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
    factors = {
        monomial[0].name: factor for monomial, factor in terms if len(monomial) == 1 and monomial[0].name in order
    }
    if len(factors) != sum(1 for monomial, _ in terms if monomial):
        return {}
    match sorted(factors, key=lambda name: order[name]):
        case [name] if constant % factors[name] == 0 and -constant // factors[name] >= 0:
            return {name: -constant // factors[name]}
        case [kept, replaced] if not constant and factors[kept] == -factors[replaced]:
            return {replaced: symbol(kept)}
    return {}
