"""Fuse MatMuls of one input with several constant weights into one MatMul and a Split: QKV, gate and up projections.

    x A, x B, x C            =  split(x [A B C])
    x A + a, x B + b         =  split(x [A B] + [a b])

for MatMul and for Gemm that neither scales nor transposes `x`. On the CPU one wide product is as fast as several
narrower ones, and the split costs a copy. So no pass list has this pass. It is meant for short inputs on targets where
starting a kernel is expensive, and for kernels with packed weights. `--force horizontal_matmul_fusion=Split`
asks for it, as does its name.

Does not handle: weights that are used elsewhere too, which would be stored twice; products in different graphs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder, Rounds


@dataclass(frozen=True)
class HorizontalMatMulFusion:
    """Merge MatMuls of one input to one MatMul and a Split. `least` is the number of products from which on it is worth it."""

    name: ClassVar[str] = "horizontal_matmul_fusion"
    makes: ClassVar[tuple[str, ...]] = ("MatMul", "Split")

    least: int = 2

    def run(self, context: Context) -> int:
        """Merge all such products; returns the number of products that are merged."""
        return sum(
            self._merge(context, scope, products)
            for scope in context.scopes()
            for products in _siblings(scope.graph, context.facts)
            if len(products) >= max(2, self.least)
        )

    def _merge(self, context: Context, scope: Scope, products: Sequence[Product]) -> int:
        facts, editor, first = context.facts, context.editor, products[0].node
        bias = joined_bias(products, facts)
        nodes = [node for product in products for node in product.nodes(bias is not None)]
        with editor.change(self.name, rule=Rounds(self.name), nodes=nodes) as change:
            build = Builder(scope, editor, first)
            weights = np.concatenate([product.read(facts) for product in products], axis=1)
            merged = build.node("MatMul", [first.inputs[0], build.constant(context.spill.keep(weights))])[0]
            if bias is not None:
                merged = build.node("Add", [merged, build.constant(ir.Tensor(bias))])[0]
            parts = build.split(merged, -1, [product.columns for product in products])
            for product, part in zip(products, parts, strict=True):
                editor.replace(product.nodes(bias is not None)[-1].outputs[0], part)
            editor.remove(*nodes)
        if not change:
            return 0
        names = ", ".join(part.name or "?" for part in parts)
        context.note(f"{self.name}: {len(products)} products of one input are one at {names}")
        return len(products)


@dataclass(frozen=True)
class Product:
    """A product with a constant weight.

    Attributes:
        node: The MatMul or Gemm.
        weight: The weight.
        columns: The size of the last axis of the result.
        added: The node that adds a constant vector to the product, if nothing else uses the product.
        bias: That vector, or the one that Gemm adds.
    """

    node: ir.Node
    weight: ir.Value
    columns: int
    added: ir.Node | None = None
    bias: ir.Value | None = None

    def nodes(self, with_bias: bool) -> list[ir.Node]:
        """The nodes that a merged product stands for."""
        return [self.node, self.added] if self.added is not None and with_bias else [self.node]

    def read(self, facts: Facts) -> np.ndarray[Any, Any]:
        """The weight as [inner size, columns]."""
        found = facts.const(self.weight)
        assert found is not None
        return found.T if _is_transposed(self.node) else found


def joined_bias(products: Sequence[Product], facts: Facts) -> np.ndarray[Any, Any] | None:
    """The biases one behind the other, zeros for products that have none; `None` if none has one."""
    known = [facts.const(product.bias) for product in products]
    dtype = next((found.dtype for found in known if found is not None), None)
    if dtype is None:
        return None
    parts = zip(products, known, strict=True)
    return np.concatenate(
        [np.zeros(product.columns, dtype) if found is None else found.reshape(-1) for product, found in parts]
    )


def _is_transposed(node: ir.Node) -> bool:
    return node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))


def _siblings(graph: ir.Graph, facts: Facts) -> Iterator[list[Product]]:
    """The products of one input, in the order of the graph; a Gemm that adds a vector is no sibling of one without."""
    found: defaultdict[Hashable, list[Product]] = defaultdict(list)
    for node in graph:
        product = product_of(node, facts)
        if product is not None:
            found[node.inputs[0], node.op_type == "Gemm" and product.bias is not None].append(product)
    yield from found.values()


def product_of(node: ir.Node, facts: Facts) -> Product | None:
    """The node as a product with a constant weight that nothing else uses; `None` if it is none."""
    if node.domain or node.op_type not in ("MatMul", "Gemm"):
        return None
    weight = node.inputs[1]
    shape = _own_shape(weight, facts)
    if weight is None or shape is None or len(shape) != 2:
        return None
    columns = shape[0 if _is_transposed(node) else 1]
    if node.op_type == "MatMul":
        return Product(node, weight, columns, *_added_after(node, facts, columns))
    get = node.attributes
    if get.get_int("transA", 0) or {get.get_float(name, 1.0) for name in ("alpha", "beta")} != {1.0}:
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None:
        return Product(node, weight, columns)
    vector = facts.is_const(bias) and facts.shape(bias) in ((columns,), (1, columns))
    return Product(node, weight, columns, bias=bias) if vector else None


def _own_shape(value: ir.Value | None, facts: Facts) -> tuple[int, ...] | None:
    """The shape of a constant that nothing else uses."""
    if value is None or not facts.is_const(value) or len(value.uses()) != 1 or value.is_graph_output():
        return None
    shape = facts.shape(value)
    sizes = tuple(dim for dim in shape or () if isinstance(dim, int))
    return sizes if shape is not None and len(sizes) == len(shape) else None


def _added_after(node: ir.Node, facts: Facts, columns: int) -> tuple[ir.Node | None, ir.Value | None]:
    """The node that adds a constant vector to the product, and the vector, if nothing else uses the product."""
    (product,) = node.outputs
    users = product.consumers()
    if len(users) != 1 or product.is_graph_output() or users[0].op_type != "Add" or users[0].domain:
        return None, None
    (added,) = users
    other = added.inputs[1] if added.inputs[0] is product else added.inputs[0]
    if added.graph is not node.graph or not facts.is_const(other) or facts.shape(other) != (columns,):
        return None, None
    return added, other
