"""Sink the diagonal maps of all operands below a Concat: one product and one sum instead of some for each.

concat(x a + b, y c + d) = concat(x, y) concat(a, c) + concat(b, d)          as Inception normalises channels: arXiv:1512.00567
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.linear_maps import Diagonal, diagonal_of
from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.fold_linear import guards
from ortfuse.transforms.fold_linear.fold_diagonals import NAME
from ortfuse.transforms.fold_linear.rebuild_layer import is_own
from ortfuse.transforms.node_builder import Builder, Rounds

Array: TypeAlias = "np.ndarray[Any, Any]"


def sink_below_concat(node: ir.Node, scope: Scope, context: Context) -> Refusal | bool:
    """Sink the maps of the operands of a Concat below it; returns whether they were, or why not."""
    facts = context.facts
    chains = [_chain(value, node, facts) for value in node.inputs]
    maps = [one for chain in chains for one in chain]
    rank, dtype = facts.rank(node.outputs[0]), facts.dtype(node.outputs[0])
    if not all(chains) or rank is None or dtype is None or any(one.is_ref() for one in node.attributes.values()):
        return False
    axis = node.attributes.get_int("axis", 0) % rank
    datas = [chain[0].data for chain in chains]
    shapes = [facts.shape(data) for data in datas]
    if None in shapes or len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes if shape is not None}) != 1:
        return False  # empty operands may have other shapes
    sizes = [shape[axis] for shape in shapes if shape is not None]
    factor = _joined([chain[0].factor * chain[-1].factor ** (len(chain) - 1) for chain in chains], sizes, axis, rank)
    offset = _joined([chain[-1].offset for chain in chains], sizes, axis, rank)
    if factor is None or offset is None or factor.size > guards.FEW:
        return False
    scales, shifts = bool(np.any(factor != 1)), bool(np.any(offset))
    if len(maps) <= scales + shifts:
        return False
    refused = guards.first([*map(guards.is_finite, maps), *(guards.rounds_nothing(one, facts) for one in maps)])
    refused = refused or guards.first(guards.are_moderate([one], factor, offset, facts) for one in maps)
    if refused is not None:
        return refused
    nodes = [node, *(each for one in maps for each in one.nodes)]
    with context.editor.change(NAME, rule=Rounds(NAME), nodes=nodes) as change:
        build = Builder(scope, context.editor, node)
        made = build.like(node, datas)
        for op_type, numbers in (("Mul", factor),) * scales + (("Add", offset),) * shifts:
            made = build.node(op_type, [made, build.constant(ir.Tensor(numbers.astype(dtype.numpy()), dtype))])[0]
        context.editor.replace(node.outputs[0], made)
        context.editor.remove(node, *(each for one in reversed(maps) for each in reversed(one.nodes)))
    return bool(change)


def _chain(value: ir.Value | None, node: ir.Node, facts: Facts) -> list[Diagonal]:
    """The map of an operand, or a product and the sum behind it, which nothing else reads."""
    found: list[Diagonal] = []
    while value is not None and len(found) < 2 and is_own(value, facts):
        maker = value.producer()
        one = None if maker is None or maker.graph is not node.graph else diagonal_of(maker, facts)
        if one is None or one.statistics is not None or (found and not (one.is_scale and found[0].is_shift)):
            break
        found.insert(0, one)
        value = one.data
    return found


def _joined(numbers: list[Array], sizes: list[DimLike], axis: int, rank: int) -> Array | None:
    """Numbers for each position along an axis of the operands, joined; `None` if they differ along others."""
    parts: list[Array] = []
    for array, size in zip(numbers, sizes, strict=True):
        wide = array.reshape((1,) * (rank - array.ndim) + array.shape)
        if not isinstance(size, int) or any(dim != 1 for place, dim in enumerate(wide.shape) if place != axis):
            return None
        parts.append(np.broadcast_to(wide.reshape(-1), size))
    return np.concatenate(parts).reshape(-1, *[1] * (rank - axis - 1))
