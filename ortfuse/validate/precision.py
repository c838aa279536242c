"""In which precision a model computes: that of its coarsest step, whatever type its outputs have.

A model of float64 may normalise in float32, one with float32 outputs multiply in float16. Its outputs are then no more
exact than that step, and must not be measured by their own type alone.
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.ir import walk
from ortfuse.ir.facts import Facts
from ortfuse.validate.compare import TOLERANCES

_EXACT = frozenset(
    {
        *("Identity", "Reshape", "Transpose", "Expand", "Tile", "Concat", "Split", "Slice", "Gather", "GatherElements"),
        *(
            "GatherND",
            "Squeeze",
            "Unsqueeze",
            "Flatten",
            "Pad",
            "Where",
            "Max",
            "Min",
            "Clip",
            "Neg",
            "Abs",
            "Relu",
            "Sign",
        ),
        *("Constant", "ConstantOfShape", "Range", "CastLike", "Floor", "Ceil", "Round", "If", "Loop", "Scan"),
    }
)
"""Operators whose results are elements of their operands, or numbers that the type holds exactly; Cast apart."""

_OF_MASKS = frozenset({"Add", "Sub", "Mul"})
"""Operators that mask arithmetic, on zeros and ones, is made of."""


def coarsest(model: ir.Model) -> str:
    """The name of the coarsest floating-point type in which something is rounded, empty if there is none.

    Constants are left out, and casts of integers, which are masks and positions; what is computed of these by sums and
    products alone is not told from exact.
    """
    facts = Facts(model)
    found = {_rounded_in(node, facts) for graph in walk.graphs(model) for node in graph} & TOLERANCES.keys()
    return max(found, key=lambda name: TOLERANCES[name].relative, default="")


def _rounded_in(node: ir.Node, facts: Facts) -> str:
    """The type in which a node rounds what it computes, empty if it does not."""
    kinds = [facts.dtype(value) for value in node.outputs if value.name and not facts.is_const(value)]
    kind = kinds[0] if kinds else None
    if kind is None or not kind.is_floating_point() or (node.op_type in _EXACT and not node.domain):
        return ""
    if node.op_type == "Cast" and not node.domain:
        before = facts.dtype(node.inputs[0]) if node.inputs[0] is not None else None
        if before is None or not before.is_floating_point() or before.bitwidth <= kind.bitwidth:
            return ""
    if node.op_type in _OF_MASKS and all(_of_integers(value, facts) for value in node.inputs if value is not None):
        return ""
    return _name(kind)


def _of_integers(value: ir.Value, facts: Facts) -> bool:
    """Whether a value is a constant, or comes from integers by casts, moves and mask arithmetic."""
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
        if node.op_type != "Cast" and node.op_type not in _EXACT and node.op_type not in _OF_MASKS:
            return False
        pending += [operand for operand in node.inputs if operand is not None]
    return True


def _name(kind: ir.DataType) -> str:
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(kind.name, kind.name.lower())
