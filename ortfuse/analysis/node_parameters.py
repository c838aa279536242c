"""The parameters of a node, whether given as attributes, as inputs or by default."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import Dim, DimLike
from ortfuse.ir.schemas import attribute_default
from ortfuse.ir.traits import MICROSOFT, ORDERED_AXES, PARAMETER_INPUTS, REDUCES

UNKNOWN: Any = object()
"""An attribute or parameter whose value is not known here (computed at run time, or given by a function's caller)."""

_NUMBERS = frozenset({"min", "max"})
"""Parameters that are compared with numbers: a symbolic size says as little as an unknown one."""


def attribute_value(node: ir.Node, name: str, facts: Facts) -> Any:
    """The attribute's Python value; its ONNX default if absent, `None` if it has none, `UNKNOWN` for a reference."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return attribute_default(node.domain, node.op_type, facts.version(node), name)
    if attribute.is_ref():
        return UNKNOWN
    return attribute.value


def parameter(node: ir.Node, name: str, facts: Facts) -> Any:
    """The value of an attribute or of a parameter input; axes are counted from the front if the rank is known.

    Integer tensors are returned as tuples of (symbolic) integers, or as one integer for rank 0; `UNKNOWN` if unknown. An empty
    list of axes that means all of them to the runtime is `None`, as if it were absent. If nothing is reduced then, they
    are the empty tuple.
    """
    found = _parameter(node, name, facts)
    if name == "axes" and not node.domain and (found is None or found == ()):
        if node.op_type == "Squeeze":
            return None
        if node.op_type in REDUCES:
            empty = attribute_value(node, "noop_with_empty_axes", facts)
            return UNKNOWN if empty is UNKNOWN else () if empty else None
    return found


def _parameter(node: ir.Node, name: str, facts: Facts) -> Any:
    position = PARAMETER_INPUTS.get(node.op_type, {}).get(name)
    if position is not None and position < len(node.inputs) and name not in node.attributes:
        value = node.inputs[position]
        if value is None:
            return None
        found = _tensor_value(value, facts)
        if name in _NUMBERS:
            return UNKNOWN if isinstance(found, Dim) else found
        return _axes(node, found, facts) if name in ("axis", "axes") else found
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
        axes = (axes,)  # runtimes accept a tensor of rank 0 where the specification asks for a vector
    return axes_from_front(node, axes, facts)


def axes_from_front(node: ir.Node, axes: Any, facts: Facts) -> Any:
    """The `axis` or `axes` of a node counted from the front, as they are if the rank that they count in is unknown.

    Several are sorted, unless their order matters to the operator.
    """
    rank = _rank_of_axes(node, axes, facts)
    if rank is None:
        return axes
    if isinstance(axes, (tuple, list)):
        counted = [_from_front(axis, rank) for axis in axes]
        return tuple(counted) if node.op_type in ORDERED_AXES else tuple(sorted(counted))
    return _from_front(axes, rank)


def _rank_of_axes(node: ir.Node, axes: Any, facts: Facts) -> int | None:
    """The rank that axes count in: mostly that of the first input.

    New axes count in the rank of the result, and the first operands of QLinearConcat are a scale and a zero point.
    """
    if not node.domain and node.op_type in ("OneHot", "Unsqueeze"):
        rank = facts.rank(node.inputs[0])
        return None if rank is None else rank + (len(axes) if node.op_type == "Unsqueeze" else 1)
    if (node.domain, node.op_type) == (MICROSOFT, "QLinearConcat"):
        return facts.rank(node.inputs[2]) if len(node.inputs) > 2 else None
    if not node.domain and node.op_type == "ConcatFromSequence":
        return facts.rank(node.outputs[0])
    return facts.rank(node.inputs[0])


def _from_front(axis: DimLike, rank: int) -> DimLike:
    return axis + rank if isinstance(axis, int) and axis < 0 else axis
