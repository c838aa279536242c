"""Cutting a graph into segments that are executed one after the other, each by the runtime or by ONNX's reference.

ONNX Runtime has no float64 kernel for some operators (Erf, Conv, ...), and the reference implementation is slow; so each
segment has the nodes of one kind that can be executed together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from ortfuse.graph.walk import used_values


@dataclass(frozen=True)
class Segment:
    """Nodes in topological order, and what they take from and give to the rest of the graph."""

    nodes: tuple[ir.Node, ...]
    by_runtime: bool
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]


def cut(graph: ir.Graph, by_runtime: Callable[[ir.Node], bool]) -> list[Segment]:
    """The nodes of a sorted graph as segments, in an order in which they can be executed.

    The number of segments is the least that alternating between the two ways on the longest path takes.
    """
    stages: dict[ir.Value, int] = {}
    members: dict[int, list[ir.Node]] = defaultdict(list)
    for node in graph:
        stage = max((stages.get(value, 0) for value in used_values(node)), default=0)
        stage += (stage % 2 == 0) != by_runtime(node)  # the runtime has the even stages
        members[stage].append(node)
        stages.update(dict.fromkeys(node.outputs, stage))
    last_use: dict[ir.Value, int] = {}
    for stage, nodes in members.items():
        for value in (value for node in nodes for value in used_values(node)):
            last_use[value] = max(last_use.get(value, 0), stage)
    last_use.update({value: max(members, default=0) + 1 for value in graph.outputs})
    return [_segment(members[stage], stage, last_use) for stage in sorted(members)]


def _segment(nodes: list[ir.Node], stage: int, last_use: dict[ir.Value, int]) -> Segment:
    made = [value for node in nodes for value in node.outputs]
    inside = set(made)
    taken = dict.fromkeys(value for node in nodes for value in used_values(node) if value not in inside)
    given = tuple(value for value in made if last_use.get(value, stage) > stage)
    return Segment(tuple(nodes), stage % 2 == 0, tuple(taken), given)


def to_model(segment: Segment, types: dict[str, onnx.TypeProto], opsets: dict[str, int]) -> onnx.ModelProto:
    """A segment as a model of its own whose inputs have `types` (by name); weights are inputs too."""
    inputs = [onnx.helper.make_value_info(name, types[name]) for name in (value.name or "" for value in segment.inputs)]
    outputs = [onnx.ValueInfoProto(name=value.name) for value in segment.outputs]
    nodes = [ir.to_proto(node) for node in segment.nodes]
    graph = onnx.helper.make_graph(nodes, "segment", inputs, outputs)
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
