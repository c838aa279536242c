"""Leave out keys that no query sees behind the tokens of a step.

    Attention(q, keys, values, mask)  =  Attention(q, keys[:total], values[:total], mask[..., :total])

holds where the mask hides all columns from the number of past and new tokens on, in each step. Buffers of a fixed length have
such keys. Of prompts of many tokens a choice of lengths is evaluated.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.generation.decoder_interface import DecoderInterface
from ortfuse.generation.length_functions import every_step
from ortfuse.generation.plan_nodes import PlanNodes
from ortfuse.generation.positional_values import PositionalValues
from ortfuse.ir.hidden_tokens import HIDING_BIAS


def shorten_attention(model: ir.Model, facts: Facts, interface: DecoderInterface, length: int, max_length: int) -> bool:
    """Let attention read the keys of past and new tokens alone, in place; whether there was such attention.

    Args:
        model: A decoder whose attention is fused, in topological order.
        facts: Its facts. They do not hold afterwards if there was such attention.
        interface: The roles of its inputs and outputs.
        length: The number of keys of attention that reads buffers.
        max_length: The greatest number of tokens, up to `length`.
    """
    values = PositionalValues(model, facts, interface)
    sites = [node for node in model.graph if _reads_buffers(node, facts, length) and node.inputs[3] in values]
    masks = list(dict.fromkeys(mask for node in sites if (mask := node.inputs[3]) is not None))
    hiding = _hiding_ends(values, masks, max_length)
    nodes = PlanNodes(model.graph, "shorten")
    rows: ir.Value | None = None
    for node in sites:
        if node.inputs[3] not in hiding:
            continue
        if rows is None:
            rows = _rows(nodes, interface)
        for number, value in enumerate(node.inputs[1:4], 1):
            rank = facts.rank(value)
            assert value is not None
            assert rank is not None
            along = {"axis": rank - 1 if number == 3 else rank - 2}
            cut = nodes.add("Gather", [value, rows], along, before=node)  # a Slice might end before the last of them
            cut.type = value.type
            node.replace_input_with(number, cut)
    return rows is not None


def _rows(nodes: PlanNodes, interface: DecoderInterface) -> ir.Value:
    """0, 1, ... up to the number of past and new tokens."""
    cache = next(cache for cache in interface.caches if cache.kept is None)
    sizes = [
        nodes.add("Gather", [nodes.add("Shape", [value]), nodes.ints(axis)])
        for value, axis in ((cache.past, cache.axis), (interface.tokens, 1))
    ]
    return nodes.add("Range", [nodes.ints(0), nodes.add("Add", sizes), nodes.ints(1)])


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


def _hiding_ends(values: PositionalValues, masks: list[ir.Value], max_length: int) -> set[ir.Value]:
    """The masks that hide all keys from the number of past and new tokens on, in each step."""
    if not masks:
        return set()
    found, evaluator = set(masks), values.evaluator(masks)
    steps = every_step(values, evaluator, max_length)
    for step, arrays in zip(steps, evaluator.at(steps), strict=True):
        for mask, array in zip(masks, arrays, strict=True):
            end = array[..., step.total :]
            if not (~end if array.dtype == np.bool_ else end <= HIDING_BIAS).all():
                found.discard(mask)
    return found
