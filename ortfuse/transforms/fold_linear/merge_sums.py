"""Merge the layers of one input among the terms of a sum, with that input itself and diagonal maps of it.

    x W + b +- ((x A + a) B + c) = x (W +- A B) + (b +- (a B + c))                          LoRA: arXiv:2106.09685
    conv(x, V) +- conv(x, W) + x = conv(x, V +- W + 1)                    RepVGG: arXiv:2101.03697, MobileOne: arXiv:2206.04040
    y + s y + t = (1 + s) y + t, y a layer                                                  DoRA: arXiv:2402.09353

They are merged where that needs no more multiplications.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.linear_maps import Diagonal, diagonal_of, layer_of, pointwise, united
from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.walk import Scope
from ortfuse.rewrite.magic_number_rounding import rounding_number
from ortfuse.transforms.context import Context
from ortfuse.transforms.fold_linear import guards
from ortfuse.transforms.fold_linear.layer_branches import (
    Branch,
    branch_of,
    last_layer,
    replace_by_one,
    taps_of,
)
from ortfuse.transforms.fold_linear.rebuild_layer import is_own
from ortfuse.transforms.node_builder import Builder, Rounds

Array: TypeAlias = "np.ndarray[Any, Any]"

NAME = "compose_linear_maps"

MOST_TERMS = 16
"""The most terms of a sum that are looked at."""


def merge_sum(node: ir.Node, scope: Scope, context: Context) -> Refusal | bool:
    """Merge the layers of one input among the terms of a sum, with that input itself; returns whether any were, or why not."""
    facts = context.facts
    if node.domain or node.op_type not in ("Add", "Sub") or layer_of(node, facts) is not None or _is_term(node, facts):
        return False
    signs, values, sums = _terms(node, facts)
    if any(rounding_number(one, facts) is not None for one in sums):
        return False
    if (multiple := _multiple(values, signs, facts.shape(node.outputs[0]), facts)) is not None:
        return _sum_multiple(node, *multiple, (signs, values, sums), scope, context)
    branches = {n: found for n, one in enumerate(values) if is_own(one, facts) and (found := branch_of(one, facts))}
    reason: Refusal | bool = False
    for number, branch in branches.items():
        for chosen in dict.fromkeys((branch, last_layer(branch, facts))):
            group = {place: _of_input(other, chosen.data, facts) for place, other in branches.items() if place > number}
            group |= _diagonals(chosen, values, {number, *branches}, facts)
            for place, other in group.items():
                if other is None:
                    continue
                merged = _merge_two(node, chosen, other, (signs, values, sums, number, place), scope, context)
                if merged is True:
                    return True
                reason = reason or merged
    return reason


def _of_input(branch: Branch, data: ir.Value, facts: Facts) -> Branch | None:
    """A branch, or its last layer, if that is one of an input."""
    return next((one for one in (branch, last_layer(branch, facts)) if one.data is data), None)


def _multiple(
    values: Sequence[ir.Value], signs: Sequence[int], shape: Sequence[DimLike] | None, facts: Facts
) -> tuple[int, int, Diagonal] | None:
    """A layer among the terms of a sum of this shape and a multiple of it: their numbers, and the multiple."""
    for number, value in enumerate(values):
        maker = value.producer()
        scaled = None if maker is None or not is_own(value, facts) or len(values) < 3 else diagonal_of(maker, facts)
        if scaled is None or not scaled.is_scale or not scaled.is_finite or scaled.data not in values:
            continue
        place, inner = list(values).index(scaled.data), scaled.data.producer()
        if facts.shape(scaled.data) != shape or shape is None:
            continue
        if signs[place] == signs[number] and inner is not None and layer_of(inner, facts) is not None:
            return number, place, scaled
    return None


def _sum_multiple(
    node: ir.Node,
    number: int,
    place: int,
    scaled: Diagonal,
    terms: tuple[list[int], list[ir.Value], list[ir.Node]],
    scope: Scope,
    context: Context,
) -> bool:
    """Multiply a layer by one number instead of adding a multiple of it among other terms: DoRA with a bias."""
    (signs, values, sums), dtype = terms, context.facts.dtype(scaled.output)
    assert dtype is not None
    nodes = [*sums, *scaled.nodes]
    with context.editor.change(NAME, rule=Rounds(NAME), nodes=nodes) as change:
        build = Builder(scope, context.editor, node)
        factor = build.constant(ir.Tensor(np.asarray(1 + scaled.factor, dtype.numpy()), dtype))
        made = build.node("Mul", [scaled.data, factor])[0]
        rest = [(signs[n], values[n]) for n in range(len(values)) if n not in (number, place)]
        if signs[number] < 0:
            start = next((n for n, (sign, _) in enumerate(rest) if sign > 0), None)
            if start is None:
                change.cancel(refuse("needless", node, found="all terms are taken away"))
                return False
            made = build.node("Sub", [rest.pop(start)[1], made])[0]
        for sign, value in rest:
            made = build.node("Add" if sign > 0 else "Sub", [made, value])[0]
        context.editor.replace(node.outputs[0], made)
        context.editor.remove(*[one for one in reversed(list(scope.graph)) if one in set(nodes)])
    return bool(change)


def _is_term(node: ir.Node, facts: Facts) -> bool:
    """Whether a sum is a term of another one, which is looked at instead."""
    value = node.outputs[0]
    users = [use.node for use in value.uses()]
    return (
        is_own(value, facts)
        and users[0].op_type in ("Add", "Sub")
        and not users[0].domain
        and users[0].graph is node.graph
    )


def _terms(node: ir.Node, facts: Facts) -> tuple[list[int], list[ir.Value], list[ir.Node]]:
    """The signs and values of the terms of a sum, and its nodes."""
    signs: list[int] = []
    values: list[ir.Value] = []
    sums: list[ir.Node] = []
    pending = [(1, node.outputs[0])]
    while pending:
        sign, value = pending.pop()
        maker = value.producer()
        inside = maker is node or (maker is not None and is_own(value, facts) and maker.graph is node.graph)
        is_sum = maker is not None and not maker.domain and maker.op_type in ("Add", "Sub") and inside
        if maker is None or not is_sum or layer_of(maker, facts) is not None or len(sums) >= MOST_TERMS:
            signs.append(sign)
            values.append(value)
            continue
        sums.append(maker)
        first, second = maker.inputs
        assert first is not None
        assert second is not None
        pending += [(-sign if maker.op_type == "Sub" else sign, second), (sign, first)]
    return signs, values, sums


def _diagonals(branch: Branch, values: Sequence[ir.Value], taken: set[int], facts: Facts) -> dict[int, Branch]:
    """The terms that are the input of a branch, or a diagonal map of it."""
    found: dict[int, Branch] = {}
    window = None if branch.window is None else pointwise(branch.window)
    for number, value in enumerate(values):
        if number in taken or branch.layers[-1].sizes[0] != branch.layers[0].sizes[1]:
            continue
        node = value.producer()
        diagonal = diagonal_of(node, facts) if node is not None and is_own(value, facts) else None
        if value is branch.data:
            one, zero = np.ones(()), np.zeros(())
            found[number] = Branch(value, (), Diagonal((), value, one, zero, ()), window, value)
        elif diagonal is not None and diagonal.data is branch.data and diagonal.is_finite:
            found[number] = Branch(branch.data, (), diagonal, window, value)
    return found


def _merge_two(
    node: ir.Node,
    one: Branch,
    other: Branch,
    terms: tuple[list[int], list[ir.Value], list[ir.Node], int, int],
    scope: Scope,
    context: Context,
) -> Refusal | bool:
    facts, (signs, values, sums, first, second) = context.facts, terms
    layers = [*one.layers, *other.layers]
    shape = facts.shape(node.outputs[0])
    if (
        shape is None
        or any(facts.shape(each.result) != shape for each in (one, other))
        or not _agree(one, other, facts)
    ):
        return False
    window = None
    if one.window is not None and other.window is not None:
        window = united(one.window, other.window)
        if window is None or (other.diagonal is not None and window != one.window):
            return refuse(
                "condition", other.result, found="other positions", needed="the strides and positions of the other"
            )
    taps = [taps_of(layer, facts) for layer in layers]
    before = sum(prod(layer.sizes) // layer.groups * count for layer, count in zip(layers, taps, strict=True))
    after = one.layers[-1].sizes[0] * one.layers[0].sizes[1]
    after = after if window is None else after // window.groups * window.taps
    if after > before and other.diagonal is None:
        return refuse("needless", other.result, found=f"{after} multiplications instead of {before}")
    refused = guards.are_not_copied((layer.weight for layer in layers), facts)
    if other.diagonal is not None:
        refused = refused or guards.weight_is_small(one.layers[-1], facts)
    if any(each.graph is not node.graph for branch in (one, other) for each in branch.nodes):
        return False  # a layer is not computed once for each iteration of a loop
    if refused is not None:
        return refused
    rest = [(signs[number], values[number]) for number in range(len(values)) if number not in (first, second)]
    nodes = [*sums, *one.nodes, *other.nodes]
    return replace_by_one(node.outputs[0], [one, other], [signs[first], signs[second]], nodes, rest, scope, context)


def _agree(one: Branch, other: Branch, facts: Facts) -> bool:
    """Whether two branches have the same channels, groups and types."""
    layer = one.layers[-1]
    types = {facts.dtype(each.weight) for each in (*one.layers, *other.layers)}
    if len(types) != 1 or (one.window is None) != (other.window is None):
        return False
    if other.diagonal is not None:
        return (
            facts.dtype(one.data) in types
            and (one.window is None or len(one.layers) == 1)
            and layer.in_axis == layer.out_axis
        )
    sizes = (other.layers[-1].sizes[0], other.layers[0].sizes[1])
    axes = (other.layers[0].in_axis, other.layers[-1].out_axis, other.layers[0].storage == "left")
    return sizes == (layer.sizes[0], one.layers[0].sizes[1]) and axes == (
        one.layers[0].in_axis, layer.out_axis, one.layers[0].storage == "left"
    )  # fmt: skip
