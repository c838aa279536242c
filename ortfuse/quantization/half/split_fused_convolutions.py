"""Split fused convolutions that a target computes in float32 alone, so that their parts can be half.

fused_conv(x, w, b, z) = activation(conv(x, w, b) + z)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from ortfuse.ir.traits import MICROSOFT
from ortfuse.targets import Target

_FUSED = "FusedConv"
_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
}
"""The activations that are split off, with the attributes that their parameters are."""


def split_fused_convolutions(model: ir.Model, half: ir.DataType, target: Target) -> int:
    """Split the fused convolutions of a model in place if the target has no kernel of theirs in `half`; returns how many."""
    kinds = [half] * 3
    if target.supports(MICROSOFT, _FUSED, 1, kinds) or not target.supports("", "Conv", None, kinds):
        return 0
    found = [node for node in model.graph if node.domain == MICROSOFT and node.op_type == _FUSED]
    return sum(_is_split(model.graph, node) for node in found)


def _is_split(graph: ir.Graph, node: ir.Node) -> bool:
    """Split a node, unless its activation is another one; returns whether it was."""
    attributes = dict(node.attributes)
    activation, parameters = attributes.pop("activation", None), attributes.pop("activation_params", None)
    kind = "" if activation is None else str(activation.value)
    names = _PARAMETERS.get(kind, () if not kind else None)
    values: Sequence[float] = () if parameters is None else parameters.value
    if names is None or len(values) < len(names):
        return False
    result = node.outputs[0]
    made = [
        ir.Node("", "Conv", node.inputs[:3], attributes.values(), name=node.name, metadata_props=node.metadata_props)
    ]
    added = node.inputs[3] if len(node.inputs) > 3 else None
    following: list[Callable[[ir.Value], ir.Node]] = []
    if added is not None:
        following.append(lambda value: ir.node("Add", [value, added]))
    if kind:
        given = dict(zip(names, map(float, values), strict=False))
        following.append(lambda value: ir.node(kind, [value], given))
    for number, make in enumerate(following):
        before = made[-1].outputs[0]
        before.name, before.type, before.shape = f"{result.name}_part_{number}", result.type, result.shape
        made.append(make(before))
        made[-1].metadata_props.update(node.metadata_props)
    graph.insert_before(node, made)
    last = made[-1].outputs[0]
    last.type, last.shape, name = result.type, result.shape, result.name
    result.replace_all_uses_with(last, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    last.name = name
    return True
