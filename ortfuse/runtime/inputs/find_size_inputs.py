"""Find inputs that determine sizes or trip counts, whose numbers must stay small.

Operands that tell sizes are followed back through everything that they are computed from; only Shape and Size end a path, as
they look at no element. Too many inputs are found rather than too few: that costs only large numbers in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir import walk
from ortfuse.ir.operator_registry import SIZE_OPERANDS
from ortfuse.ir.traits import DEQUANTISES, QUANTISES, SIZES, has

_CLASSICAL = "ai.onnx.ml"
"""The domain of operators of classical machine learning, none of which makes sizes of numbers."""


_LEAST_BITS = 32
"""The width of the integers that tell sizes to operators that are not ONNX's. Narrower ones are quantised numbers."""


def size_inputs(model: ir.Model, facts: Facts | None = None) -> frozenset[str]:
    """The names of the inputs of a model from whose elements a size or a number of iterations is computed.

    Args:
        model: A model.
        facts: Its facts, which know the types of values that declare none.
    """
    facts = facts or Facts(model)
    owners = {body: node for node in walk.nodes(model) for body in walk.subgraphs(node)}
    waiting = [value for node in walk.nodes(model) for value in _sizes(node, facts)]
    seen = set(waiting)
    while waiting:
        for source in _sources(waiting.pop(), owners):
            if source not in seen:
                seen.add(source)
                waiting.append(source)
    return frozenset(value.name or "" for value in model.graph.inputs if value in seen)


def _sizes(node: ir.Node, facts: Facts) -> Iterator[ir.Value]:
    """The operands of a node that tell a size or end a loop; wide integers of operators that are not ONNX's may do so."""
    if node.domain not in ("", _CLASSICAL):
        if not has(node, QUANTISES | DEQUANTISES):
            yield from (one for one in node.inputs if one is not None and _may_tell_size(facts.dtype(one)))
    elif not node.domain:
        operands = SIZE_OPERANDS.of(node) or ()
        yield from (one for number, one in enumerate(node.inputs) if one is not None and number in operands)
        if node.op_type == "Loop":
            yield from (body.outputs[0] for body in walk.subgraphs(node))


def _may_tell_size(dtype: ir.DataType | None) -> bool:
    return dtype is None or (dtype.is_integer() and dtype.bitwidth >= _LEAST_BITS)


def _sources(value: ir.Value, owners: Mapping[ir.Graph, ir.Node]) -> Iterator[ir.Value]:
    """The values from whose elements a value may be computed."""
    node, graph = value.producer(), value.graph
    found: Iterable[ir.Value | None] = ()
    if node is not None and not has(node, SIZES):
        number = value.index() or 0
        bodies = walk.subgraphs(node)
        if node.op_type == "Loop" and bodies:
            found = [*_at(bodies[0].outputs, number + 1), *_at(node.inputs, number + 2)]
        elif node.op_type == "Scan" and bodies:
            states = len(node.inputs) - (node.attributes.get_int("num_scan_inputs", 0) or 0)
            found = [*_at(bodies[0].outputs, number), *(_at(node.inputs, number) if number < states else ())]
        else:
            found = [*node.inputs, *(result for body in bodies for result in body.outputs)]
    elif node is None and isinstance(graph, ir.Graph) and (owner := owners.get(graph)) is not None:
        found = _of_body_input(graph, list(graph.inputs).index(value), owner) if value in graph.inputs else ()
    yield from (one for one in found if one is not None)


def _of_body_input(body: ir.Graph, number: int, owner: ir.Node) -> list[ir.Value | None]:
    """The values of a body's input in the first iteration and in the others; the iteration number is computed from nothing."""
    if owner.op_type == "Loop":
        return [*_at(owner.inputs, number), *_at(body.outputs, number - 1)] if number else []
    if owner.op_type == "Scan":
        states = len(owner.inputs) - (owner.attributes.get_int("num_scan_inputs", 0) or 0)
        return [*_at(owner.inputs, number), *(_at(body.outputs, number) if number < states else ())]
    return [*owner.inputs, *body.outputs]


def _at(values: Sequence[ir.Value | None], number: int) -> Sequence[ir.Value | None]:
    return values[number : number + 1]
