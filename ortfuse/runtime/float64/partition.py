"""Partition a graph into segments that are executed in sequence, each by the runtime or by ONNX's reference.

ONNX Runtime has no float64 kernel for some operators (Erf, Conv, ...), and the reference implementation is slow; so each
segment groups as many nodes of one kind as can be executed together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.ir.walk import used_values
from ortfuse.runtime.submodel import model_of, taken


@dataclass(frozen=True)
class Segment:
    """Nodes in topological order, with the values they take from the rest of the graph and those they pass on to it."""

    nodes: tuple[ir.Node, ...]
    by_runtime: bool
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]


def cut(graph: ir.Graph, by_runtime: Callable[[ir.Node], bool]) -> list[Segment]:
    """Partition the nodes of a sorted graph into segments, in an order in which they can be executed.

    The number of segments is the minimum: the number of alternations between the two kinds on the longest path.
    """
    stages: dict[ir.Value, int] = {}
    members: dict[int, list[ir.Node]] = defaultdict(list)
    for node in graph:
        stage = max((stages.get(value, 0) for value in used_values(node)), default=0)
        stage += (stage % 2 == 0) != by_runtime(node)  # even stages belong to the runtime
        members[stage].append(node)
        stages.update(dict.fromkeys(node.outputs, stage))
    last_use: dict[ir.Value, int] = {}
    for stage, nodes in members.items():
        for value in (value for node in nodes for value in used_values(node)):
            last_use[value] = max(last_use.get(value, 0), stage)
    last_use.update({value: max(members, default=0) + 1 for value in graph.outputs})
    return [_segment(members[stage], stage, last_use) for stage in sorted(members)]


def _segment(nodes: list[ir.Node], stage: int, last_use: dict[ir.Value, int]) -> Segment:
    given = tuple(value for node in nodes for value in node.outputs if last_use.get(value, stage) > stage)
    return Segment(tuple(nodes), stage % 2 == 0, tuple(taken(nodes)), given)


def to_model(segment: Segment, types: Mapping[ir.Value, ir.TypeProtocol], imports: Mapping[str, int]) -> ir.Model:
    """A segment as a standalone model that contains its weights and whose inputs have the given `types`."""
    constants = {value: value.const_value for value in segment.inputs if value not in types and value.const_value}
    model = model_of(
        segment.nodes,
        {value: value.name or "" for value in types},
        [(value.name or "", value) for value in segment.outputs],
        constants,
        imports,
    )
    for value, kind in zip(model.graph.inputs, types.values(), strict=True):
        value.type, value.shape = kind, None
    return model
