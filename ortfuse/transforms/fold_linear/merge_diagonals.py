"""Merge a chain of diagonal maps into one product and one sum, or into the BatchNormalization among them.

(x a) b = x (a b)          (x + a) + b = x + (a + b)          (x a + b) c = x (a c) + b c          (x + a) b + c = x b + (a b + c)
f bn(x) + t = bn'(x)       scale' = f scale, shift' = f shift + t          as Caffe scales after it normalises
bn(f x + t) = bn'(x)       scale' = f scale, mean' = (mean - t) / f        as images of bytes are normalised
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.linear_maps import Diagonal, diagonal_of
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.fold_linear import guards
from ortfuse.transforms.fold_linear.fold_diagonals import NAME
from ortfuse.transforms.node_builder import Builder, Rounds

LONGEST = 16
"""The most maps of a chain."""

Array: TypeAlias = "np.ndarray[Any, Any]"
Build = Callable[[ir.Value, Builder], ir.Value]


def merge_chain(diagonal: Diagonal, scope: Scope, context: Context) -> Refusal | bool:
    """Merge the longest chain that ends with a diagonal map; returns whether one was, or why the longest was not."""
    facts, chain = context.facts, [diagonal]
    while len(chain) < LONGEST and (above := _above(chain[0], facts)) is not None:
        chain.insert(0, above)
    reason: Refusal | bool = False
    for start in range(len(chain) - 1):
        found = _merge(chain[start:], scope, context)
        if found is True:
            return True
        reason = reason or found
    return reason


def _above(diagonal: Diagonal, facts: Facts) -> Diagonal | None:
    """The diagonal map that a diagonal map alone reads."""
    node = diagonal.data.producer()
    if node is None or node.graph is not diagonal.nodes[0].graph or diagonal.data.is_graph_output():
        return None
    if any(use.node not in diagonal.nodes for use in diagonal.data.uses()):
        return None
    return diagonal_of(node, facts, may_broadcast_data=True)


def _merge(chain: Sequence[Diagonal], scope: Scope, context: Context) -> Refusal | bool:
    facts, output = context.facts, chain[-1].output
    before = sum(len(one.nodes) for one in chain)
    with np.errstate(all="ignore"):
        pivot = next((number for number, one in enumerate(chain) if one.statistics is not None), None)
        factor, offset = _total(chain)
        if pivot is None:
            made = _sum_and_product(chain, factor, offset, before, facts)
        else:
            made = _normalisation(chain, pivot, facts)
    if made is None:
        return False
    if isinstance(made, Refusal):
        return made
    refused = guards.first(
        [
            *(guards.is_finite(one) for one in chain),
            *(guards.rounds_nothing(one, facts) for one in chain),
        ]
    )
    if refused is not None:
        return refused
    nodes = [node for one in chain for node in one.nodes]
    with context.editor.change(NAME, rule=Rounds(NAME), nodes=nodes) as change:
        build = Builder(scope, context.editor, nodes[-1])
        context.editor.replace(output, made(chain[0].data, build))
        context.editor.remove(*reversed(nodes))
    return bool(change)


def _total(chain: Sequence[Diagonal]) -> tuple[Array, Array]:
    """The factor and offset of all maps of a chain."""
    factor, offset = np.ones(()), np.zeros(())
    for one in chain:
        factor, offset = factor * one.factor, offset * one.factor + one.offset
    return factor, offset


def _sum_and_product(
    chain: Sequence[Diagonal], factor: Array, offset: Array, before: int, facts: Facts
) -> Build | Refusal | None:
    output = chain[-1].output
    dtype = facts.dtype(output)
    assert dtype is not None
    scales, shifts = bool(np.any(factor != 1)), bool(np.any(offset))
    negates = bool(np.all(factor == -1))
    if 1 <= before <= max(1, 1 if negates else scales + shifts):
        return None
    refused = guards.keeps_infinities(chain)
    refused = refused or guards.are_moderate(chain, factor, offset, facts)
    refused = refused or guards.constants_stay_small(chain, (factor, offset), facts)
    refused = refused or guards.decides_nothing(output, facts) or guards.takes_nothing_away(chain, facts)
    refused = refused or guards.shift_is_small(chain, facts)
    left = [offset] * shifts + [factor] * (not negates and (scales or not shifts))
    refused = refused or guards.constants_keep_shape(chain, left)
    if scales and not negates:
        refused = refused or guards.product_fits(output, offset, facts)
    if refused is not None:
        return refused

    def constant(array: Array, build: Builder) -> ir.Value:
        return build.constant(ir.Tensor(np.asarray(array, dtype.numpy()), dtype))

    def made(data: ir.Value, build: Builder) -> ir.Value:
        if negates:
            return build.node("Sub", [constant(offset, build), data])[0] if shifts else build.node("Neg", [data])[0]
        value = build.node("Mul", [data, constant(factor, build)])[0] if scales or not shifts else data
        return build.node("Add", [value, constant(offset, build)])[0] if shifts else value

    return made


def _normalisation(chain: Sequence[Diagonal], pivot: int, facts: Facts) -> Build | Refusal | None:
    """The BatchNormalization of a chain with the maps around it."""
    one = chain[pivot]
    found, node, output = one.statistics, one.nodes[0], one.output
    shape, dtype = facts.shape(one.data), facts.dtype(node.inputs[1])
    if any(one.broadcasts_data for one in chain):
        return None
    if found is None or shape is None or dtype is None or dtype.numpy().kind != "f":
        return None
    count = len(found.scale)
    before, behind = _total(chain[:pivot]), _total(chain[pivot + 1 :])
    vectors = [_vector(array, len(shape), count) for array in (*before, *behind)]
    if shape[1] != count or any(vector is None for vector in vectors):
        return refuse("shape", output, found="others", needed="factors and offsets of one channel each")
    first_factor, first_offset, last_factor, last_offset = (vector for vector in vectors if vector is not None)
    if not np.all(np.abs(found.scale / found.deviation * first_offset) <= guards.MOST_DEVIATIONS):
        needed = f"moved by at most {guards.MOST_DEVIATIONS:.0f} deviations"
        return refuse("value", chain[0].output, found="moved further", needed=needed)
    scale, shift = found.scale * first_factor * last_factor, found.shift * last_factor + last_offset
    mean = (found.mean - first_offset) / first_factor
    limits = np.finfo(dtype.numpy())
    fits = np.isfinite(scale) & ((np.abs(scale) >= float(limits.tiny)) | (found.scale == 0))
    if not np.all(fits) or not all(np.all(np.abs(array) <= float(limits.max)) for array in (scale, shift, mean)):
        return refuse("value", output, found="others", needed="such that their type holds the new statistics")

    def made(data: ir.Value, build: Builder) -> ir.Value:
        new = [build.constant(ir.Tensor(array.astype(dtype.numpy()))) for array in (scale, shift, mean)]
        return build.like(node, [data, *new, node.inputs[4]])

    return made


def _vector(array: Array, rank: int, channels: int) -> Array | None:
    """Numbers that broadcast to a value as one for each channel; `None` if they are not."""
    if array.ndim > rank:
        return None
    wide = array.reshape((1,) * (rank - array.ndim) + array.shape)
    if any(size != 1 for number, size in enumerate(wide.shape) if number != 1) or wide.shape[1] not in (1, channels):
        return None
    return np.broadcast_to(wide.reshape(-1), (channels,))
