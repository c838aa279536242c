"""Emulate a half-precision model in float32: round every value that it computes in half precision.

The CPU provider executes float16 in float32 and drops the Casts between operators, and has few kernels for bfloat16 at all. An
accelerator rounds after every operator; so does the imitation. Sums within an operator are those of float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir import walk
from ortfuse.ir.inlinable_functions import without_functions
from ortfuse.ir.traits import EXACT, has
from ortfuse.runtime.float64.widen import Widening

HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
"""The types of half precision."""


def halves_of(model: ir.Model) -> frozenset[ir.DataType]:
    """The types of half precision that a model computes in."""
    facts = Facts(model)
    kinds = {facts.dtype(value) for graph in walk.graphs(model) for node in graph for value in node.outputs}
    return frozenset(kind for kind in kinds if kind in HALVES)


def imitation(model: ir.Model) -> ir.Model | None:
    """A copy that computes in float32 and rounds; `None` if nothing is half, or functions cannot be put in the place of calls.

    Inputs and outputs of half precision become float32, inputs are rounded.
    """
    copy = without_functions(model) if model.functions else model.clone()
    if copy is None:
        return None
    facts, graphs = Facts(copy), list(walk.nested(copy.graph))
    values = [value for graph in graphs for value in walk.own_values(graph)]
    narrow = {value: kind for value in values if (kind := facts.dtype(value)) is not None and kind in HALVES}
    if not narrow:
        return None
    rounded = [value for value in values if value in narrow and _is_rounded(value, narrow, copy.graph)]
    taken = {value.name for value in values}
    names = (name for number in itertools.count() if (name := f"rounded.{number}") not in taken)
    Widening(HALVES, ir.DataType.FLOAT).apply(copy)
    for value in rounded:
        _round(value, narrow[value], names)
    return copy


def _is_rounded(value: ir.Value, narrow: dict[ir.Value, ir.DataType], graph: ir.Graph) -> bool:
    """Whether a value may have numbers that its type does not: those of constants, and what is moved or picked, do not."""
    node = value.producer()
    if node is None:
        return any(value is given for given in graph.inputs)
    if node.op_type == "Constant" and not node.domain:
        return False
    if has(node, EXACT) and node.op_type != "CastLike":
        floats = {narrow.get(given) for given in node.inputs if given is not None}
        return not floats <= {narrow[value], None} or narrow[value] not in floats
    return True


def _round(value: ir.Value, kind: ir.DataType, names: Iterator[str]) -> None:
    """Round a value for whatever uses it. An output of a graph keeps its name."""
    graph, producer = value.graph, value.producer()
    assert isinstance(graph, ir.Graph)
    uses = list(value.uses())
    there = ir.node("Cast", [value], {"to": int(kind)})
    back = ir.node("Cast", there.outputs, {"to": int(ir.DataType.FLOAT)})
    made = back.outputs[0]
    there.outputs[0].name, made.name = next(names), next(names)
    there.outputs[0].type, made.type = ir.TensorType(kind), ir.TensorType(ir.DataType.FLOAT)
    made.shape = value.shape
    if producer is not None:
        graph.insert_after(producer, [there, back])
    elif len(graph):
        graph.insert_before(graph[0], [there, back])
    else:
        graph.extend([there, back])
    for use in uses:
        use.node.replace_input_with(use.idx, made)
    places = [number for number, output in enumerate(graph.outputs) if output is value]
    if places and producer is not None:
        value.name, made.name = made.name, value.name
        for number in places:
            graph.outputs[number] = made
