"""What the matcher must know of ONNX operators: attribute defaults, and parameters that moved from attributes to inputs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import onnx
import onnx_ir as ir

from ortfuse.dims import DimLike
from ortfuse.facts.facts import Facts

UNKNOWN: Any = object()
"""An attribute or parameter whose value is not known here (computed at run time, or given by a function's caller)."""

_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
               "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")  # fmt: skip

PARAMETER_INPUTS: Mapping[str, Mapping[str, int]] = {
    **{name: {"axes": 1} for name in _REDUCTIONS},
    "Squeeze": {"axes": 1},
    "Unsqueeze": {"axes": 1},
    "Reshape": {"shape": 1},
    "Expand": {"shape": 1},
    "Tile": {"repeats": 1},
    "Split": {"split": 1},
    "Slice": {"starts": 1, "ends": 2, "axes": 3, "steps": 4},
    "Clip": {"min": 1, "max": 2},
    "Pad": {"pads": 1, "constant_value": 2},
    "TopK": {"k": 1},
    "Dropout": {"ratio": 1, "training_mode": 2},
    "CumSum": {"axis": 1},
}
"""Operator -> parameter -> input position, for parameters written as keywords in patterns. Some were attributes once."""

ORDERED_AXES = frozenset({"Slice", "Pad"})
"""Operators whose axes belong one by one to the numbers of other inputs, so that their order means something."""

BROADCASTING = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Sum", "Mean", "Where", "And", "Or", "Xor", "Equal", "Greater",
     "GreaterOrEqual", "Less", "LessOrEqual", "PRelu", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor"}
)  # fmt: skip
"""Operators whose result has the rank of the operand with the most axes."""


@functools.cache
def attribute_default(domain: str, op_type: str, version: int, name: str) -> Any:
    """The value an absent attribute has by the operator's schema; `None` when absence is a meaning of its own."""
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    attribute = schema.attributes.get(name)
    if attribute is None or not attribute.default_value.name:
        return None
    value = onnx.helper.get_attribute_value(attribute.default_value)
    return value.decode() if isinstance(value, bytes) else tuple(value) if isinstance(value, list) else value


@functools.cache
def newest_version(domain: str, op_type: str) -> int | None:
    """The newest opset at which the operator's definition changed, or `None` for an operator ONNX does not define."""
    try:
        return int(onnx.defs.get_schema(op_type, domain=domain).since_version)
    except onnx.defs.SchemaError:
        return None


def attribute_value(node: ir.Node, name: str, facts: Facts) -> Any:
    """The attribute's Python value, its ONNX default when absent, `None` without one, `UNKNOWN` for a reference."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return attribute_default(node.domain, node.op_type, facts.version(node), name)
    if attribute.is_ref():
        return UNKNOWN
    return attribute.value


def parameter(node: ir.Node, name: str, facts: Facts) -> Any:
    """The value of an attribute or of a parameter input, axes counted from the front where the rank is known.

    Integer tensors come as tuples of (symbolic) integers or as one integer for rank 0, `UNKNOWN` if not known.
    """
    position = PARAMETER_INPUTS.get(node.op_type, {}).get(name)
    if position is not None and position < len(node.inputs) and name not in node.attributes:
        value = node.inputs[position]
        if value is None:
            return None
        return (
            _tensor_value(value, facts)
            if name not in ("axis", "axes")
            else _axes(node, _tensor_value(value, facts), facts)
        )
    value = attribute_value(node, name, facts)
    if name in ("axis", "axes"):
        return _axes(node, value, facts)
    if name == "perm" and value is None:
        rank = facts.rank(node.inputs[0])
        return UNKNOWN if rank is None else tuple(reversed(range(rank)))
    return value


def _tensor_value(value: ir.Value, facts: Facts) -> Any:
    integers = facts.ints(value)
    if integers is not None:
        if None in integers.elements:
            return UNKNOWN
        return integers.elements if integers.shape else integers.elements[0]
    number = facts.scalar(value)
    return UNKNOWN if number is None else number


def _axes(node: ir.Node, axes: Any, facts: Facts) -> Any:
    if axes is None or axes is UNKNOWN:
        return axes
    if (
        not isinstance(axes, (tuple, list))
        and node.op_type in PARAMETER_INPUTS
        and "axes" in PARAMETER_INPUTS[node.op_type]
    ):
        axes = (axes,)  # a tensor of rank 0 where the specification asks for a vector: runtimes take it
    rank = facts.rank(node.inputs[0])
    if rank is None:
        return axes
    if node.op_type == "Unsqueeze":
        rank += len(axes)
    if isinstance(axes, (tuple, list)):
        counted = [_from_front(axis, rank) for axis in axes]
        return tuple(counted) if node.op_type in ORDERED_AXES else tuple(sorted(counted))
    return _from_front(axes, rank)


def _from_front(axis: DimLike, rank: int) -> DimLike:
    return axis + rank if isinstance(axis, int) and axis < 0 else axis
