"""Decide whether the loop-carried values of a Loop or Scan are updated by a product."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.inspection.paths_between_values import path


def hands_on_a_product(node: ir.Node, facts: Facts) -> bool:
    """Whether the next state of a Loop or Scan is computed from the last by a product, as in linear recurrences.

    Counters and sums, which are only added to, and lists, which only grow, are handed on too, but are no recurrence.
    """
    return any(
        one.op_type in ("Mul", "Div", "Einsum")
        for before, after in _states(node)
        if (dtype := facts.dtype(before)) is not None and dtype.is_floating_point()
        for one in path(before, after)
    )


def _states(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Each state as the body gets it and as it hands it on."""
    body = node.attributes.get("body")
    if body is None or body.is_ref():
        return
    graph = body.as_graph()
    if node.op_type == "Loop":
        yield from zip(graph.inputs[2:], graph.outputs[1:], strict=False)
    else:
        scanned = node.attributes.get("num_scan_inputs")
        count = len(graph.inputs) - (0 if scanned is None else int(scanned.value))
        yield from zip(graph.inputs[:count], graph.outputs, strict=False)
