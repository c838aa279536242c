"""Determine the precision in which a model computes an output: that of its coarsest step, whatever the output's type.

A float64 model may normalise in float32, and a model with float32 outputs may multiply in float16. Its outputs are then only
as accurate as that step, and must not be judged by their own type alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir import walk
from ortfuse.ir.traits import EXACT, has
from ortfuse.runtime.comparison import TOLERANCES

_OF_MASKS = frozenset({"Add", "Sub", "Mul"})
"""Operators that make up mask arithmetic on zeros and ones."""


def coarsest(model: ir.Model) -> dict[str, str]:
    """For each output, the name of the coarsest floating-point type in which a value that it depends on is rounded, if any.

    Constants are ignored, and so are casts of integers, which are masks and positions; results computed from these only by sums
    and products are treated as exact.
    """
    facts = Facts(model)
    functions = {
        identifier: _coarser(_rounded_in(node, facts) for node in walk.nodes_within(function.graph))
        for identifier, function in model.functions.items()
    }
    found: dict[ir.Value, str] = {}
    for node in model.graph:
        inside = list(walk.nested_nodes(node))
        kind = _coarser(
            [
                _rounded_in(node, facts),
                functions.get(node.op_identifier(), ""),
                *(_rounded_in(inner, facts) for inner in inside),
                *(functions.get(inner.op_identifier(), "") for inner in inside),
                *(found.get(value, "") for value in walk.used_values(node)),
            ]
        )
        if kind:
            found |= dict.fromkeys(node.outputs, kind)
    return {value.name or "": found[value] for value in model.graph.outputs if value in found}


def _coarser(kinds: Iterable[str]) -> str:
    """The coarsest of the given types; empty if none of them has a tolerance."""
    return max((kind for kind in kinds if kind in TOLERANCES), key=lambda kind: TOLERANCES[kind].relative, default="")


def _rounded_in(node: ir.Node, facts: Facts) -> str:
    """The type in which a node rounds its results; empty if it does not round."""
    kinds = [facts.dtype(value) for value in node.outputs if value.name and not facts.is_const(value)]
    kind = kinds[0] if kinds else None
    if kind is None or not kind.is_floating_point() or has(node, EXACT):
        return ""
    if node.op_type == "Cast" and not node.domain:
        before = facts.dtype(node.inputs[0]) if node.inputs[0] is not None else None
        if before is None or not before.is_floating_point() or before.bitwidth <= kind.bitwidth:
            return ""
    if node.op_type in _OF_MASKS and all(_of_integers(value, facts) for value in node.inputs if value is not None):
        return ""
    return _name(kind)


def _of_integers(value: ir.Value, facts: Facts) -> bool:
    """Whether a value is a constant, or comes from integers by casts, data movement and mask arithmetic."""
    pending, seen = [value], 0
    while pending:
        value = pending.pop()
        seen += 1
        kind = facts.dtype(value)
        if (
            facts.is_const(value)
            or value.const_value is not None
            or (kind is not None and not kind.is_floating_point())
        ):
            continue
        node = value.producer()
        if node is None or node.domain or seen > 100:
            return False
        if node.op_type != "Cast" and node.op_type not in EXACT and node.op_type not in _OF_MASKS:
            return False
        pending += [operand for operand in node.inputs if operand is not None]
    return True


def _name(kind: ir.DataType) -> str:
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(kind.name, kind.name.lower())
