"""The layers whose results a value is made of, and whatever else reads parts of these results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.linear_maps import Diagonal, Layer, layer_of, readings_of
from ortfuse.analysis.linear_maps.trace_layer_channels import channels_read, is_moved_or_carried

MOST_NODES = 24
"""The most nodes that are looked at between a diagonal map and layers."""

TAKE_A_PART = frozenset({"Slice", "Gather", "Split"})
"""The operators by which others may read channels that are not mapped."""

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class LayersAbove:
    """The layers above a diagonal map.

    Attributes:
        layers: The layers.
        nodes: The nodes that move or combine their results, some of them for others than the map.
        others: The values that these nodes make for others.
    """

    layers: tuple[Layer, ...]
    nodes: tuple[ir.Node, ...]
    others: tuple[ir.Value, ...]

    def leaves_alone(self, changed: Mapping[ir.Value, Array], facts: Facts) -> bool:
        """Return whether the values for others have none of the channels of the layers' results that are changed."""
        return all(self._has_none(value, changed, facts) for value in self.others)

    def _has_none(self, value: ir.Value, changed: Mapping[ir.Value, Array], facts: Facts) -> bool:
        found, shape = readings_of(value, facts, sources=changed.keys()), facts.shape(value)
        if found is None or shape is None:
            return False
        axes = {layer.output: layer.out_axis for layer in self.layers}
        for one in found.read:
            channels = channels_read(shape, one, axes[one.source]) if one.source in changed else None
            if channels is None or np.any(changed[one.source][channels]):
                return False
        return True


def layers_above(diagonal: Diagonal, facts: Facts) -> LayersAbove | None:
    """Return the layers that a diagonal map reads, if all else that reads their results takes parts of them."""
    layers: dict[ir.Value, Layer] = {}
    nodes: dict[ir.Node, None] = dict.fromkeys(diagonal.nodes)
    path: dict[ir.Value, None] = {}
    pending = [diagonal.data]
    while pending:
        value = pending.pop()
        node = value.producer()
        if value in path or facts.is_const(value):
            continue
        if node is None or node.graph is not diagonal.nodes[-1].graph or len(nodes) > MOST_NODES:
            return None
        if value.is_graph_output():
            return None
        path[value] = None
        layer = layer_of(node, facts) if node.op_type != "FusedConv" else None
        if layer is not None:
            layers[value] = layer
        elif node not in nodes:
            if not is_moved_or_carried(node, facts):
                return None
            nodes[node] = None
            pending += [one for one in node.inputs[: None if node.op_type == "Concat" else 1] if one is not None]
    beside = dict.fromkeys(use.node for value in path for use in value.uses() if use.node not in nodes)
    graph = diagonal.nodes[-1].graph
    if not layers or any(node.domain or node.op_type not in TAKE_A_PART or node.graph is not graph for node in beside):
        return None
    between = [node for node in (*nodes, *beside) if node not in diagonal.nodes]
    made = [output for node in between for output in node.outputs if output not in path]
    others = [output for output in made if output.uses() or output.is_graph_output()]
    return LayersAbove(tuple(layers.values()), tuple(between), tuple(others))
