"""List weights that no scheme quantises, with the reasons."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

import onnx_ir as ir

from ortfuse.ir import walk
from ortfuse.ir.nn_module_of_node import describe_in_module
from ortfuse.ir.traits import WEIGHS, has
from ortfuse.quantization.scheme_families import names_of
from ortfuse.rewrite import Log, NearMiss

TOLD = 3
"""How many weights are told of where there is no site."""

SMALL = 64
"""Weights with fewer numbers are not told of."""


def weights_left(model: ir.Model, covered: Collection[str], log: Log, families: Collection[str]) -> dict[str, str]:
    """Why weights have no site, by the name of what is computed with them.

    Args:
        model: The model in float32.
        covered: The names of values that sites compute.
        log: The near misses of all schemes that were looked for.
        families: Their families.
    """
    found: dict[str, str] = {}
    nearest = _nearest(log)
    for graph in walk.nested(model.graph):
        for node in graph:
            output = (node.outputs[0].name or "") if node.outputs else ""
            weight = _weight(node)
            if weight is None or not output or output in covered:
                continue
            shape = [int(size) for size in weight.const_value.shape.numpy()] if weight.const_value is not None else []
            why = "it is in the body of a node, where no values are observed"
            if graph is model.graph:
                why = _why(nearest.get(output), node, weight, families)
            found[output] = f"{describe_in_module(node)}, weight '{weight.name}' {shape}: {why}"
    return found


def why_none(left: Mapping[str, str]) -> str:
    """Why there is no site at all, in words."""
    if not left:
        return "no product, convolution, recurrent layer or table in it has a constant weight of float32"
    first, *others = list(left.values())[:TOLD]
    more = f"; and {len(left) - TOLD} more" if len(left) > TOLD else ""
    return "; ".join([first, *others]) + more


def _why(miss: NearMiss | None, node: ir.Node, weight: ir.Value, families: Collection[str]) -> str:
    """Why a weight has no site among schemes of these families."""
    form, what = _form(node, weight)
    named = names_of(families)
    if form and not any(family.endswith(f"_{form}") for family in families):
        return f"{what}, which {named} does not take"
    return f"no scheme of {named} is for {node.op_type}" if miss is None else miss.refusal.reason


def _form(node: ir.Node, weight: ir.Value) -> tuple[str, str]:
    """Return the suffixes of the names of families for such a product, and the reason in words; nothing for others."""
    assert weight.const_value is not None
    if node.op_type != "MatMul":
        return "", ""
    if node.inputs[0] is weight:
        return "left", "it is on the left of the product"
    stacked = any(size != 1 for size in weight.const_value.shape.numpy()[:-2])
    return ("batched", "it is a stack of matrices") if stacked else ("", "")


def _nearest(log: Log) -> Mapping[str, NearMiss]:
    """The near miss that came nearest, at each site."""
    found: dict[str, NearMiss] = {}
    for (_, site), miss in log.misses.items():
        known = found.get(site)
        if known is None or _order(miss) > _order(known):
            found[site] = miss
    return found


def _order(miss: NearMiss) -> tuple[bool, bool, int]:
    return miss.step == "replacement", miss.step == "guards", miss.matched


def _weight(node: ir.Node) -> ir.Value | None:
    """The largest constant of floating-point numbers of at least two axes that an operator takes."""
    if not has(node, WEIGHS):
        return None
    return max(_constants(node), key=lambda value: math.prod(value.const_value.shape.numpy()), default=None)  # type: ignore[union-attr]


def _constants(node: ir.Node) -> Iterator[ir.Value]:
    for value in node.inputs:
        tensor = None if value is None or value.is_graph_input() else value.const_value
        if value is None or tensor is None or tensor.dtype != ir.DataType.FLOAT:
            continue
        if len(tensor.shape) > 1 and tensor.size >= SMALL:
            yield value
