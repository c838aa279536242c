"""Merge attention heads of one input that are computed one by one and concatenated.

    concat(attention(x A, x B, x C), attention(x D, x E, x F)) = attention(x [A D], x [B E], x [C F])        with all heads

Transforms: consecutive inputs of a Concat along the last axis that are ai.onnx Attention or com.microsoft MultiHeadAttention of
[batch, length, heads * size]. They have the same scale, mask and other attributes. Their queries, keys and values are products
of the same three values with constant weights. Textbook implementations have a module for each head.

Requires: heads of one size; a mask that is the same for all heads; weights and results that nothing else uses.

Does not handle: past keys and values, weights of the softmax as a further result, heads whose results are summed.

Rationale: the joined operator does the same arithmetic in one call of each kernel, and divides the heads among threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.traits import MICROSOFT
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.fold_linear.horizontal_matmul_fusion import Product, joined_bias, product_of
from ortfuse.transforms.node_builder import Builder, Rounds

_KINDS = {("", "Attention"): "q_num_heads", (MICROSOFT, "MultiHeadAttention"): "num_heads"}
"""The operators, and the attribute that tells the number of their heads."""

_COUNTS = ("q_num_heads", "kv_num_heads", "num_heads")
_MASK = {"Attention": 3, "MultiHeadAttention": 5}


@dataclass(frozen=True)
class _Head:
    """One attention operator on products of constant weights.

    Attributes:
        node: The operator.
        heads: How many heads it has.
        products: Those of queries, keys and values.
        alike: What other operators must have in common with it to be joined with it.
    """

    node: ir.Node
    heads: int
    products: tuple[Product, Product, Product]
    alike: Hashable


@dataclass(frozen=True)
class MergeAttentionHeads:
    """Merge attention heads of one input that are computed one by one."""

    name: ClassVar[str] = "merge_attention_heads"

    def run(self, context: Context) -> int:
        """Join all such heads; returns how many operators are joined."""
        return sum(
            _join(node, scope, context)
            for scope in context.scopes()
            for node in list(scope.graph)
            if node.op_type == "Concat" and not node.domain
        )


def _join(concat: ir.Node, scope: Scope, context: Context) -> int:
    rank = context.facts.rank(concat.outputs[0])
    if rank != 3 or concat.attributes.get_int("axis") not in (-1, 2):
        return 0
    heads = [None if value is None else _head(value, concat, context.facts) for value in concat.inputs]
    runs = [list(run) for _, run in itertools.groupby(range(len(heads)), key=lambda place: _key(heads[place], place))]
    joined = [run for run in runs if len(run) > 1]
    if not joined:
        return 0
    members = [[head for place in run if (head := heads[place]) is not None] for run in joined]
    removed = [concat, *(node for run in members for head in run for node in _nodes(head))]
    with context.editor.change(
        MergeAttentionHeads.name, rule=Rounds(MergeAttentionHeads.name), nodes=removed
    ) as change:
        build = Builder(scope, context.editor, concat)
        operands: list[ir.Value] = []
        for run in runs:
            together = [head for place in run if (head := heads[place]) is not None]
            if len(run) > 1:
                operands.append(_joined(together, build, context))
            else:
                operands += [value for place in run if (value := concat.inputs[place]) is not None]
        context.editor.replace(concat.outputs[0], operands[0] if len(operands) == 1 else build.like(concat, operands))
        context.editor.remove(*removed)
    return sum(map(len, members)) if change else 0


def _key(head: _Head | None, place: int) -> Hashable:
    return (None, place) if head is None else head.alike


def _head(value: ir.Value, concat: ir.Node, facts: Facts) -> _Head | None:
    """The attention operator that computes an input of a Concat, if it can be joined with others."""
    node = value.producer()
    counted = None if node is None else _KINDS.get((node.domain, node.op_type))
    if (
        node is None
        or counted is None
        or node.graph is not concat.graph
        or len(value.uses()) != 1
        or value.is_graph_output()
    ):
        return None
    mask_place = _MASK[node.op_type]
    mask = node.inputs[mask_place] if len(node.inputs) > mask_place else None
    others = [one for place, one in enumerate(node.inputs) if place > 2 and place != mask_place and one is not None]
    counts = {node.attributes.get_int(name) for name in _COUNTS if name in node.attributes}
    if (
        others
        or len(counts) != 1
        or any(output.uses() for output in node.outputs[1:])
        or not _is_for_all_heads(mask, facts)
    ):
        return None
    (heads,) = counts
    products = [_product(operand, facts) for operand in node.inputs[:3]]
    if not heads or any(product is None or product.columns % heads for product in products):
        return None
    query, key, result = (product for product in products if product is not None)
    attributes = {name: attribute.value for name, attribute in node.attributes.items() if name not in _COUNTS}
    if any(isinstance(one, ir.Graph) for one in attributes.values()):
        return None
    sizes = tuple(product.columns // heads for product in (query, key, result))
    inputs = tuple(product.node.inputs[0] for product in (query, key, result))
    alike = (node.op_type, node.version, mask, tuple(sorted(attributes.items())), sizes, inputs)
    return _Head(node, heads, (query, key, result), alike)


def _is_for_all_heads(mask: ir.Value | None, facts: Facts) -> bool:
    shape = () if mask is None else facts.shape(mask)
    return shape is not None and (len(shape) < 3 or (len(shape) == 4 and shape[1] == 1))


def _product(value: ir.Value | None, facts: Facts) -> Product | None:
    """The product, and what is added to it, that make an operand alone."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.domain or len(value.uses()) != 1 or value.is_graph_output():
        return None
    if node.op_type == "Add":
        makers = [operand.producer() for operand in node.inputs if operand is not None and not facts.is_const(operand)]
        node = makers[0] if len(makers) == 1 else None
    product = product_of(node, facts) if node is not None and node.op_type == "MatMul" else None
    if product is None or node is None or facts.rank(node.inputs[0]) != 3:
        return None
    return product if (product.added or product.node).outputs[0] is value else None


def _nodes(head: _Head) -> list[ir.Node]:
    return [head.node, *(node for product in head.products for node in reversed(product.nodes(True)))]


def _joined(heads: Sequence[_Head], build: Builder, context: Context) -> ir.Value:
    """One operator with all heads, on products with the weights of all."""
    operands: list[ir.Value | None] = [
        _merged([head.products[place] for head in heads], build, context) for place in range(3)
    ]
    first, count = heads[0].node, sum(head.heads for head in heads)
    counts = {name: count for name in _COUNTS if name in first.attributes}
    return build.like(first, [*operands, *first.inputs[3:]], counts)


def _merged(products: Sequence[Product], build: Builder, context: Context) -> ir.Value:
    weights = np.concatenate([product.read(context.facts) for product in products], axis=1)
    held = build.constant(context.spill.keep(weights))
    made = build.node("MatMul", [products[0].node.inputs[0], held])[0]
    bias = joined_bias(products, context.facts)
    return made if bias is None else build.node("Add", [made, build.constant(ir.Tensor(bias))])[0]
