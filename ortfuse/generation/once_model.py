"""Take out of a generator what depends on the inputs alone that stay the same in all steps, such as an encoder's states.

The keys and values of cross-attention are the same for each token. They become outputs of a model of their own, which runs once
for each prompt, and inputs of the generator.
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from ortfuse.generation.generator_interface import GeneratorInterface, write_interface
from ortfuse.ir.purity import draws_random
from ortfuse.ir.walk import used_values
from ortfuse.runtime.submodel import model_of, taken

_HEAVY = frozenset(
    {"MatMul", "Gemm", "Conv", "MatMulNBits", "Attention", "MultiHeadAttention", "FusedMatMul", "Einsum"}
)


def split_off_once(model: ir.Model, interface: GeneratorInterface) -> tuple[ir.Model | None, GeneratorInterface]:
    """Take the nodes that depend on fixed inputs alone out of a generator, in place.

    Returns:
        The model that runs once, from the fixed inputs to what the generator takes in their stead, and the interface
        afterwards; no model, and the same interface, where no matrix product would be saved.
    """
    graph = model.graph
    fixed = [value for value in graph.inputs if value.name in interface.fixed]
    once, outputs = set(fixed), set(graph.outputs)
    nodes = []
    for node in graph:
        used = [value for value in used_values(node) if not _is_constant(value)]
        is_fixed = used and all(value in once for value in used) and not draws_random(node)
        if is_fixed and outputs.isdisjoint(node.outputs):  # outputs keep their nodes and names
            once.update(node.outputs)
            nodes.append(node)
    if not any(node.op_type in _HEAVY for node in nodes):
        return None, interface
    inside = set(nodes)
    cut = [value for node in nodes for value in node.outputs if any(use.node not in inside for use in value.uses())]
    made = _model_of(model, nodes, fixed, cut)
    for value in cut:
        given = ir.Value(name=f"{value.name}.once", type=value.type, shape=value.shape)
        for use in tuple(value.uses()):
            if use.node not in inside:
                use.node.replace_input_with(use.idx, given)
        graph.inputs.append(given)
    graph.remove(nodes, safe=False)
    for node in nodes:
        node.resize_inputs(0)  # no longer counts as a user of the weights
    for name, weight in list(graph.initializers.items()):
        if not weight.uses() and not weight.is_graph_output() and weight not in graph.inputs:
            del graph.initializers[name]
    still = [value for value in fixed if value in outputs or value.uses()]
    for value in fixed:
        if value not in still:
            graph.inputs.remove(value)
    names = (*(value.name or "" for value in still), *(f"{value.name}.once" for value in cut))
    found = replace(interface, fixed=names, once=tuple(value.name or "" for value in fixed))
    write_interface(model, found)
    return made, found


def _model_of(model: ir.Model, nodes: list[ir.Node], fixed: list[ir.Value], cut: list[ir.Value]) -> ir.Model:
    constants = {
        value: value.const_value for value in taken(nodes) if value.const_value is not None and value not in fixed
    }
    inputs = {value: value.name or "" for value in fixed}
    outputs = [(f"{value.name}.once", value) for value in cut]
    made = model_of(nodes, inputs, outputs, constants, model.graph.opset_imports, functions=model.functions.values())
    made.ir_version = model.ir_version
    return made


def _is_constant(value: ir.Value) -> bool:
    return value.is_initializer() and not value.is_graph_input()
