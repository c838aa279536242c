"""Let caches be float16 where a decoder computes in float16, and takes and hands out the same numbers in float32.

    past16 = Cast(past)     present = Cast(whole16)

Converters of precision do so that keep the types of inputs and outputs. A past is what earlier steps handed out, numbers of
float16, or has no tokens: so the casts change no number, and neither does their removal.

Requires: nothing but casts to float16 and sizes of the input to be used; the output to have elements of it.
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Box, Read, axes, leaves
from ortfuse.generation.cache_elements import Elements
from ortfuse.generation.cache_operands import narrow
from ortfuse.generation.cache_pairs import may_be_cache
from ortfuse.ir.value_names import unused_name, value_names

_FLOAT16 = ir.TensorType(ir.DataType.FLOAT16)


def narrow_caches(model: ir.Model) -> None:
    """Give caches the type float16, in place.

    Args:
        model: A decoder, in topological order.
    """
    facts, graph, names = Facts(model), model.graph, value_names(model.graph)
    casts: dict[ir.Value, ir.Value] = {}
    for value in graph.inputs:
        if value.name not in graph.initializers and may_be_cache(value, facts):
            casts |= dict.fromkeys(_narrowed(value, facts) or (), value)
    elements, narrowed = Elements(facts, casts.keys()), set[ir.Value]()
    for number, output in enumerate(list(graph.outputs)):
        source = narrow(output, facts) if casts and may_be_cache(output, facts) else None
        shape = None if source is None else facts.shape(source)
        if source is None or shape is None or source.is_graph_input():
            continue
        whole = elements.at(source, axes(len(shape)), Box.of_shape(shape))
        read = {casts[one.value] for one in leaves(whole) if isinstance(one, Read) and one.value in casts}
        if read:
            narrowed |= read
            _hand_out(graph, number, output, source, names)
    for cast, value in casts.items():
        if value in narrowed:
            node = cast.producer()
            assert node is not None and node.graph is not None
            for use in tuple(cast.uses()):
                use.node.replace_input_with(use.idx, value)
            node.graph.remove(node, safe=True)
            value.type = _FLOAT16


def _narrowed(value: ir.Value, facts: Facts) -> list[ir.Value] | None:
    """The casts of an input to float16; `None` if something else than these and its sizes is used."""
    found = []
    for use in value.uses():
        node = use.node
        if (node.domain, node.op_type) == ("", "Cast") and not node.outputs[0].is_graph_output():
            found.append(node.outputs[0])
        elif (node.domain, node.op_type) != ("", "Shape"):
            return None
    kinds = {facts.dtype(one) for one in found}
    return found if facts.dtype(value) == ir.DataType.FLOAT and kinds == {ir.DataType.FLOAT16} else None


def _hand_out(graph: ir.Graph, number: int, output: ir.Value, source: ir.Value, names: set[str]) -> None:
    """Hand out float16 numbers in place of the same in float32."""
    made = source
    if source.is_graph_output():
        identity = ir.node("Identity", [source])
        graph.append(identity)
        (made,) = identity.outputs
    made.type, made.shape = _FLOAT16, output.shape
    graph.outputs[number] = made
    made.name, output.name = output.name, unused_name(f"{output.name}_wide", names)
