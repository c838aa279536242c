"""Permute columns of a QKV weight with interleaved heads, so that queries, keys and values are contiguous.

    split(reshape(x W + b)) = reshape(split(x W' + b'))          W', b' the columns of W and b, part by part

Some networks project to [batch, length, heads, 3, size] or [batch, length, heads, 3 * size] (Black et al., arXiv:2204.06745).
They take queries, keys and values from it, perhaps after a Transpose of heads and positions. With columns in the order of the
parts, each of these is a plain [batch, length, heads * size], which the attention operators take. The weights are constants:
they are moved once.

Does not handle: weights, products and results that are used elsewhere too, parts of unequal or unknown sizes, and two parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.editor import Editor
from ortfuse.ir.walk import Scope
from ortfuse.transforms.canonicalize.slices_to_split import part_of
from ortfuse.transforms.node_builder import Builder, Rounds

LEAST_PARTS, MOST_PARTS = 3, 4
"""How many parts there are: queries, keys and values are three. Two are the halves of heads, which rotary embeddings turn."""

Window = tuple[ir.Value, int, int]
"""A value, and the elements that it takes of an axis: from the first number on, up to the second (exclusive)."""


@dataclass(frozen=True)
class _Product:
    """`x` times constant columns, plus a constant vector if `bias` is one; the nodes that compute it, the last one first."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None


@dataclass(frozen=True)
class _Parts:
    """The parts of a product that are read: `count` parts of `heads` * `size` elements, some by the values with their numbers.

    Attributes:
        leading: The number of axes before the columns.
        heads: The axis behind them, ...
        size: ... and the last one of a part.
        mover: The Transpose between the Reshape and what takes the parts.
    """

    values: tuple[tuple[ir.Value, int], ...]
    leading: int
    heads: int
    count: int
    size: int
    mover: ir.Node | None

    def shape(self, value: ir.Value, facts: Facts) -> list[int]:
        """The target of a Reshape that makes the value of its part, before it is transposed."""
        has_part = self.mover is None and facts.rank(value) == self.leading + 3
        return [0] * self.leading + ([self.heads, 1, self.size] if has_part else [self.heads, self.size])


def put_in_order(reshape: ir.Node, scope: Scope, editor: Editor, facts: Facts, author: Any) -> bool:
    """Put the columns before a Reshape in the order of the parts that are taken of its result, in the name of a pass.

    The runtime may add up a column elsewhere in another order, so that this is checked like a rewrite.
    """
    product = _product(reshape.inputs[0], facts)
    parts = _parts(reshape, facts) if product is not None else None
    if product is None or parts is None:
        return False
    movers = [reshape] if parts.mover is None else [parts.mover, reshape]
    takers = list(dict.fromkeys(use.node for use in movers[0].outputs[0].uses()))
    with editor.change(author.name, rule=Rounds(author.name), nodes=[*takers, *movers, *product.nodes]) as change:
        build = Builder(scope, editor, takers[0])
        ordered = build.node("MatMul", [product.x, _ordered(product.weight, parts, build, facts)])[0]
        if product.bias is not None:
            ordered = build.node("Add", [ordered, _ordered(product.bias, parts, build, facts)])[0]
        pieces = build.split(ordered, parts.leading, [parts.heads * parts.size] * parts.count)
        for value, number in parts.values:
            piece = build.reshape(pieces[number], parts.shape(value, facts))
            editor.replace(value, piece if parts.mover is None else build.like(parts.mover, [piece]))
        editor.remove(*takers, *movers, *product.nodes)
    return bool(change)


def _ordered(constant: ir.Value, parts: _Parts, build: Builder, facts: Facts) -> ir.Value:
    """A weight or bias with its columns in the order of the parts."""
    rows = (facts.rank(constant) or 1) - 1
    apart = build.reshape(constant, [0] * rows + [parts.heads, parts.count, parts.size])
    moved = build.transpose(apart, [*range(rows), rows + 1, rows, rows + 2])
    return build.reshape(moved, [0] * rows + [parts.heads * parts.count * parts.size])


def _product(value: ir.Value | None, facts: Facts) -> _Product | None:
    """A product with a constant matrix that nothing else uses, and perhaps a constant vector added to it."""
    node = _sole(value)
    if node is None:
        return None
    if node.op_type == "MatMul":
        x, weight = node.inputs
        held = x is not None and weight is not None and _is_alone(weight, 2, facts)
        return _Product((node,), x, weight, None) if held and x is not None and weight is not None else None
    if node.op_type != "Add":
        return None
    for product, bias in (node.inputs, node.inputs[::-1]):
        inner = _product(product, facts) if bias is not None and facts.is_const(bias) else None
        if inner is not None and inner.bias is None and bias is not None and _is_alone(bias, 1, facts):
            same = facts.shape(bias) == (facts.shape(inner.weight) or ())[-1:]
            return _Product((node, *inner.nodes), inner.x, inner.weight, bias) if same else None
    return None


def _sole(value: ir.Value | None) -> ir.Node | None:
    """The node of ai.onnx that makes a value, which one node uses."""
    node = value.producer() if value is not None else None
    if value is None or node is None or node.domain or len(value.uses()) != 1 or value.is_graph_output():
        return None
    return node


def _is_alone(constant: ir.Value, rank: int, facts: Facts) -> bool:
    return facts.is_const(constant) and facts.rank(constant) == rank and len(constant.uses()) == 1


def _parts(reshape: ir.Node, facts: Facts) -> _Parts | None:
    """Return the parts that are read of a Reshape that splits heads off its last axis."""
    before, after = facts.shape(reshape.inputs[0]), facts.shape(reshape.outputs[0])
    leading = len(before or ()) - 1
    if before is None or after is None or leading < 1 or after[:leading] != before[:leading] or len(after) == leading:
        return None
    heads, *rest = after[leading:]
    numbers = [size for size in (heads, *rest) if isinstance(size, int) and size > 1]
    mover = _mover(reshape, facts) if len(rest) == 1 else None
    whole = reshape.outputs[0] if mover is None else mover.outputs[0]
    if len(numbers) != 1 + len(rest) or len(rest) not in (1, 2) or whole.is_graph_output():
        return None
    axis = leading + 1
    windows = list(_windows(whole, axis, numbers[1], facts))
    size = 1 if len(rest) == 2 else min((end - start for _, start, end in windows), default=0)
    values = tuple(
        (value, start // size) for value, start, end in windows if size and start % size == 0 == end - start - size
    )
    count = numbers[1] // size if size and numbers[1] % size == 0 else 0
    distinct = len({number for _, number in values}) == len(values) == len(windows)
    if not distinct or not 2 <= len(values) == _outputs(whole) or not LEAST_PARTS <= count <= MOST_PARTS:
        return None
    return _Parts(values, leading, numbers[0], count, numbers[2] if len(rest) == 2 else size, mover)


def _outputs(whole: ir.Value) -> int:
    """The number of values that are made of one."""
    return sum(len(use.node.outputs) for use in whole.uses())


def _mover(reshape: ir.Node, facts: Facts) -> ir.Node | None:
    """The Transpose that alone uses the result of a Reshape, and leaves the last axis where it is."""
    uses = list(reshape.outputs[0].uses())
    node = uses[0].node if len(uses) == 1 else None
    if node is None or node.op_type != "Transpose" or node.domain or reshape.outputs[0].is_graph_output():
        return None
    perm = parameter(node, "perm", facts)
    return node if isinstance(perm, tuple | list) and perm and perm[-1] == len(perm) - 1 else None


def _windows(whole: ir.Value, axis: int, size: int, facts: Facts) -> Iterator[Window]:
    """Return the indices that nodes read along an axis of a value, as far as they are known."""
    for use in whole.uses():
        node = use.node
        if use.idx or node.domain or node.graph is not whole.graph:
            continue
        if node.op_type == "Split" and parameter(node, "axis", facts) == axis:
            yield from _split(node, axis, facts)
        elif node.op_type == "Gather" and parameter(node, "axis", facts) == axis:
            index = facts.scalar(node.inputs[1]) if facts.rank(node.inputs[1]) == 0 else None
            if index is not None and -size <= index < size:
                yield node.outputs[0], int(index) % size, int(index) % size + 1
        elif (part := part_of(node, facts)) is not None and part.axis == axis:
            yield node.outputs[0], part.start, part.end


def _split(node: ir.Node, axis: int, facts: Facts) -> Iterator[Window]:
    """The outputs of a Split, up to the first one of unknown size."""
    start = 0
    for output in node.outputs:
        size = (facts.shape(output) or (None,) * (axis + 1))[axis]
        if not isinstance(size, int) or output.name == "":
            return
        yield output, start, start + size
        start += size
