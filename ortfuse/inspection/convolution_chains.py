"""Detect chains of convolutions outside of other blocks, as in VGG (arXiv:1409.1556) and the levels of a U-Net.

Activations, normalisations and padding may stand between; what makes an image smaller or larger, and what is used elsewhere, ends
a chain.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.inspection.paths_between_values import ATTENTION, CONVOLUTIONS, Block
from ortfuse.ir import walk
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE, FILLS, LAYER, has

_FEWEST = 2
"""The fewest convolutions in a row that are a block."""


def chains(model: ir.Model, taken: Container[ir.Node], facts: Facts) -> list[Block]:
    """The chains of convolutions among the nodes of no other block, in order."""
    found: list[Block] = []
    seen: set[ir.Node] = set()
    for node in walk.nodes(model):
        if has(node, CONVOLUTIONS) and node not in taken and node not in seen:
            chain = _from(node, taken, facts)
            seen.update(chain)
            if sum(has(one, CONVOLUTIONS) for one in chain) >= _FEWEST:
                found.append(Block("convolutions", node.inputs[0], chain[-1].outputs[0], chain[::-1]))
    return found


def _from(node: ir.Node, taken: Container[ir.Node], facts: Facts) -> list[ir.Node]:
    """The nodes of the chain that begins with a convolution, in order."""
    chain = [node]
    while True:
        value = chain[-1].outputs[0]
        users = {use.node for use in value.uses()}
        following = users.pop() if len(users) == 1 and not value.is_graph_output() else None
        if following is None or following in taken or following in chain or not _goes_on(following, value, facts):
            return chain
        chain.append(following)


def _goes_on(node: ir.Node, value: ir.Value, facts: Facts) -> bool:
    """Whether a node makes images of the same size of a value alone."""
    others = [one for one in node.inputs if one is not None and one is not value]
    alone = all(facts.is_const(one) for one in others) and node.graph is value.graph
    return alone and has(node, CONVOLUTIONS | ELEMENTWISE | BROADCASTS | FILLS | LAYER - ATTENTION - {"ConvTranspose"})
