"""Compute float16 and bfloat16 attention in float32 where the runtime has no half-precision kernels for its parts.

Transforms: softmax(mask(s q k^T)) v of float16 or bfloat16, with or without Casts to float32 around the softmax. The result
computes the same in float32 between Casts, so that the fusions of attention apply. Data movement of queries, keys, values and
results is widened too: heads that are split, repeated and merged. So the Casts stand before and behind it.

Requires: a target that computes half precision in float32 (`Quirk.COMPUTES_HALF_IN_FLOAT32`).

Does not handle: softmaxes whose numbers are not products of computed values (those of classes); operators that exist already.

Rationale: the runtime on CPUs has no float16 kernels for MatMul, Softmax and arithmetic. It puts Casts around each node, and
removes those that undo each other, even one of the model. So scores, weights and masks are never rounded to float16.
Its Attention has such a kernel, which rounds the scores. On scores of size 16, its error is 20 times that of the
replaced nodes. It is also slower than Cast and the float32 kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.traits import PICKS, PRODUCT, RESHAPES, SUM
from ortfuse.ir.walk import Scope
from ortfuse.targets import Quirk
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder, Rounds

_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_SCORES = SUM | PRODUCT | PICKS | RESHAPES | {"Where", "Tanh", "Cast", "Transpose"}
"""Operators between the product and the softmax."""

_GUARDS = RESHAPES | {"Where", "IsNaN", "Cast", "Mul", "Transpose"}
"""Operators between the softmax and the second product."""

_MOVES = RESHAPES | {"Transpose", "Expand"}
_SCALES = frozenset({"Mul", "Div"})
_DEEPEST = 12


@dataclass
class _Region:
    """Nodes that are to compute in float32."""

    nodes: dict[ir.Node, None] = field(default_factory=dict)
    products: list[ir.Node] = field(default_factory=list)


@dataclass(frozen=True)
class UpcastAttention:
    """Compute float16 attention in float32 between Casts."""

    name: ClassVar[str] = "upcast_attention"

    def run(self, context: Context) -> int:
        """Widen every attention; returns how many."""
        if Quirk.COMPUTES_HALF_IN_FLOAT32 not in context.target.quirks:
            return 0
        return sum(
            _widen(node, scope, context)
            for scope in context.scopes()
            for node in list(scope.graph)
            if node.op_type == "Softmax" and not node.domain and node.graph is scope.graph
        )


def _widen(softmax: ir.Node, scope: Scope, context: Context) -> bool:
    facts = context.facts
    region = _Region({softmax: None})
    scores, weights = softmax.inputs[0], softmax.outputs[0]
    if (
        scores is None
        or not _collect_scores(scores, region, facts, _DEEPEST)
        or not _collect_weights(weights, region, facts)
    ):
        return False
    if not any(facts.dtype(output) in _HALVES for node in region.nodes for output in node.outputs):
        return False
    for product in region.products:
        for operand in product.inputs:
            _collect_moves_before(operand, region, facts)
    _collect_moves_behind(region, facts)
    nodes = [node for node in scope.graph if node in region.nodes]
    with context.editor.change(UpcastAttention.name, rule=Rounds(UpcastAttention.name), nodes=nodes) as change:
        _Widening(nodes, scope, context).make()
    return bool(change)


def _collect_scores(value: ir.Value, region: _Region, facts: Facts, left: int) -> bool:
    """Add the nodes from a product of computed values to the scores; returns whether there is one."""
    node = value.producer()
    if node is None or node.domain or not left or node.graph is not next(iter(region.nodes)).graph:
        return False
    if node.op_type == "MatMul":
        found = not any(facts.is_const(operand) for operand in node.inputs)
        if found:
            region.products.append(node)
    elif node.op_type in _SCORES:
        found = False
        for operand in node.inputs:
            found |= operand is not None and _collect_scores(operand, region, facts, left - 1)
    else:
        found = False
    if found:
        region.nodes[node] = None
    return found


def _collect_weights(value: ir.Value, region: _Region, facts: Facts) -> bool:
    """Add the nodes from the weights to the product with the values; returns whether there is one."""
    found = False
    for use in tuple(value.uses()):
        node = use.node
        if node.domain or node in region.nodes or node.graph is not value.graph:
            continue
        if node.op_type == "MatMul":
            there = not any(facts.is_const(operand) for operand in node.inputs)
            if there:
                region.products.append(node)
        else:
            there = node.op_type in _GUARDS and _collect_weights(node.outputs[0], region, facts)
        if there:
            region.nodes[node] = None
        found = found or there
    return found


def _collect_moves_before(value: ir.Value | None, region: _Region, facts: Facts) -> None:
    """Add the nodes that only move an operand, or scale it by a number, and whose results nothing else reads."""
    while value is not None and facts.dtype(value) in _HALVES:
        node = value.producer()
        if node is None or node.domain or node in region.nodes or not _is_read_within(node, region):
            return
        place = _moved_operand(node, facts)
        if place is None:
            return
        region.nodes[node] = None
        value = node.inputs[place]


def _moved_operand(node: ir.Node, facts: Facts) -> int | None:
    """Return the operand that a node moves or scales by a number; `None` if it does something else."""
    if node.op_type in _MOVES:
        return 0
    numbers = [facts.scalar(value) is not None for value in node.inputs]
    if node.op_type in _SCALES and numbers[1]:
        return 0
    return 1 if node.op_type == "Mul" and numbers[0] else None


def _is_read_within(node: ir.Node, region: _Region) -> bool:
    output = node.outputs[0]
    return (
        len(node.outputs) == 1
        and not output.is_graph_output()
        and all(use.node in region.nodes for use in output.uses())
    )


def _collect_moves_behind(region: _Region, facts: Facts) -> None:
    """Add the nodes that only move the result."""
    for product in list(region.products):
        value = product.outputs[0]
        while not value.is_graph_output() and len(value.uses()) == 1:
            (use,) = value.uses()
            node = use.node
            is_move = node.op_type in _MOVES and not node.domain and use.idx == 0 and node.graph is product.graph
            if not is_move or node in region.nodes or facts.dtype(value) not in _HALVES:
                break
            region.nodes[node] = None
            value = node.outputs[0]


class _Widening:
    """Nodes of one region, computed in float32 as part of the open change."""

    def __init__(self, nodes: list[ir.Node], scope: Scope, context: Context) -> None:
        self._nodes, self._scope, self._context = nodes, scope, context
        self._wide: dict[ir.Value, ir.Value] = {}

    def make(self) -> None:
        """Replace the nodes."""
        members = set(self._nodes)
        for node in self._nodes:
            self._wide[node.outputs[0]] = self._widened(node)
        for node in self._nodes:
            (output,) = node.outputs
            if output.is_graph_output() or any(use.node not in members for use in output.uses()):
                self._hand_on(node, output)
        self._context.editor.remove(*reversed(self._nodes))

    def _widened(self, node: ir.Node) -> ir.Value:
        build = Builder(self._scope, self._context.editor, node)
        if node.op_type == "Cast" and node.inputs[0] is not None and self._is_float(node):
            return self._operand(node.inputs[0], build)
        computes = node.op_type not in _MOVES
        operands = [None if value is None else self._operand(value, build, computes) for value in node.inputs]
        return build.like(node, operands)

    def _is_float(self, node: ir.Node) -> bool:
        """Whether a Cast converts between half precision and float32."""
        kinds = {self._context.facts.dtype(value) for value in (node.inputs[0], node.outputs[0])}
        return kinds <= {*_HALVES, ir.DataType.FLOAT}

    def _operand(self, value: ir.Value, build: Builder, computes: bool = False) -> ir.Value:
        """The operand in float32: for a node that `computes` as it was before it was rounded, as the runtime has it."""
        facts, source = self._context.facts, _source_of_cast(value)
        if value not in self._wide:
            if facts.dtype(value) not in _HALVES:
                return value
            if computes and source is not None and facts.dtype(source) == ir.DataType.FLOAT:
                return source
            self._wide[value] = build.node("Cast", [value], {"to": ir.DataType.FLOAT.value})[0]
        return self._wide[value]

    def _hand_on(self, node: ir.Node, output: ir.Value) -> None:
        """Give a result to the rest of the graph in the type that it had."""
        dtype, made = self._context.facts.dtype(output), self._wide[output]
        if dtype in _HALVES:
            assert dtype is not None
            build = Builder(self._scope, self._context.editor, node)
            made = build.node("Cast", [made], {"to": dtype.value})[0]
        self._context.editor.replace(output, made)


def _source_of_cast(value: ir.Value) -> ir.Value | None:
    """Return the input of the Cast that computes this value."""
    node = value.producer()
    return node.inputs[0] if node is not None and node.op_type == "Cast" and not node.domain else None
