"""Leave out keys that no query sees behind the tokens of a step.

    Attention(q, keys, values, mask)  =  Attention(q, keys[:total], values[:total], mask[..., :total])

holds where the mask hides all columns from the number of past and new tokens on, in each step. Buffers of a fixed length have
such keys.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.generation.decoder_interface import DecoderInterface
from ortfuse.generation.plan_nodes import PlanNodes
from ortfuse.generation.positional_values import PositionalValues, Step
from ortfuse.ir.hidden_tokens import HIDING_BIAS


def shorten_attention(model: ir.Model, facts: Facts, interface: DecoderInterface, length: int) -> bool:
    """Let attention read the keys of past and new tokens alone, in place; whether there was such attention.

    Args:
        model: A decoder whose attention is fused, in topological order.
        facts: Its facts. They do not hold afterwards if there was such attention.
        interface: The roles of its inputs and outputs.
        length: The number of keys of attention that reads buffers.
    """
    values = PositionalValues(model, facts, interface)
    sites = [node for node in model.graph if _reads_buffers(node, facts, length) and node.inputs[3] in values]
    masks = list(dict.fromkeys(mask for node in sites if (mask := node.inputs[3]) is not None))
    hiding = _hiding_ends(values, masks, length)
    nodes = PlanNodes(model.graph, "shorten")
    present, axis = interface.caches[0].present, interface.caches[0].axis
    rows: ir.Value | None = None
    for node in sites:
        if node.inputs[3] not in hiding:
            continue
        if rows is None:
            rows = _rows(nodes, present, axis, node)
        for number, value in enumerate(node.inputs[1:4], 1):
            rank = facts.rank(value)
            assert value is not None
            assert rank is not None
            along = {"axis": rank - 1 if number == 3 else rank - 2}
            cut = nodes.add("Gather", [value, rows], along, before=node)  # a Slice might end before the last of them
            cut.type = value.type
            node.replace_input_with(number, cut)
    return rows is not None


def _rows(nodes: PlanNodes, present: ir.Value, axis: int, before: ir.Node) -> ir.Value:
    """0, 1, ... up to the number of past and new tokens."""
    number = nodes.add("Gather", [nodes.add("Shape", [present], before=before), nodes.ints(axis)], before=before)
    return nodes.add("Range", [nodes.ints(0), number, nodes.ints(1)], before=before)


def _reads_buffers(node: ir.Node, facts: Facts, length: int) -> bool:
    """Whether a node is attention over as many keys, without a past of its own and with a mask for each key."""
    if (node.domain, node.op_type) != ("", "Attention") or len(node.inputs) < 4:
        return False
    if any(value is not None for value in node.inputs[4:]) or node.attributes.get_int("is_causal", False):
        return False
    _, keys, values, mask = (facts.shape(value) for value in node.inputs[:4])
    if keys is None or values is None or mask is None:
        return False
    return keys[-2] == length and values[-2] == length and mask[-1] == length


def _hiding_ends(values: PositionalValues, masks: list[ir.Value], length: int) -> set[ir.Value]:
    """The masks that hide all keys from the number of past and new tokens on, in each step."""
    if not masks:
        return set()
    found = set(masks)
    steps = [Step(past, 1) for past in range(length)]
    if not values.takes_one_token:
        steps += [Step(0, number) for number in range(2, length + 1)] + [Step(5, 3), Step(length // 2, 2)]
    for step, arrays in zip(steps, values.evaluator(masks).at(steps), strict=True):
        for mask, array in zip(masks, arrays, strict=True):
            end = array[..., step.total :]
            if not (~end if array.dtype == np.bool_ else end <= HIDING_BIAS).all():
                found.discard(mask)
    return found
