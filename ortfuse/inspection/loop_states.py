"""Decide whether the loop-carried values of a Loop or Scan are updated by a product."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.loop_structure import loop_of
from ortfuse.inspection.paths_between_values import path


def hands_on_a_product(node: ir.Node, facts: Facts) -> bool:
    """Whether the next state of a Loop or Scan is computed from the last by a product, as in linear recurrences.

    Counters and sums, which are only added to, and lists, which only grow, are handed on too, but are no recurrence.
    """
    loop = loop_of(node, facts)
    return loop is not None and any(
        one.op_type in ("Mul", "Div", "Einsum")
        for state in loop.states
        if (dtype := facts.dtype(state.before)) is not None and dtype.is_floating_point()
        for one in path(state.before, state.after)
    )
