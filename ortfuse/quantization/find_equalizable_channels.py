"""Find producers and consumers between which channels can be rescaled without changing the result.

T(a(G(x)), W) = T(a(G'(x)), W'), where G' makes each channel 1/s times as large, and W' has its rows s times as large

G is a product, convolution or normalisation whose constants absorb 1/s; T are products and convolutions. Between them, a
commutes with a positive factor of a channel: Relu, LeakyRelu, pools, the other factor of a gate, attention (of its values).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.traits import MICROSOFT

Array = np.ndarray[Any, Any]

DEEPEST = 12
"""The most operators between what makes a value and the products."""

_KEEPS = frozenset({"Relu", "LeakyRelu", "PRelu", "Identity", "Abs"})
"""Operators of which each element of the result has the positive factor that the element of the first input has."""

_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})

_NORMALISES = {
    "LayerNormalization": (1, 2), "RMSNormalization": (1,), "SimplifiedLayerNormalization": (1,),
    f"{MICROSOFT}.SkipLayerNormalization": (2, 3), f"{MICROSOFT}.SkipSimplifiedLayerNormalization": (2,),
}  # fmt: skip
"""The inputs that are the last factors and offsets of normalisations."""

_EARLIER = {"Attention": (4, 5), f"{MICROSOFT}.MultiHeadAttention": (3, 6, 7)}
"""The inputs of attention that hold biases, keys and values besides those that are computed."""

SMALL = 1 << 16
"""The most elements of a constant that is written once more for one of those that take it."""


@dataclass(frozen=True)
class Constant:
    """An input that is a constant with channels along an axis, which is counted from the last one: -1.

    Attributes:
        node: What takes it.
        index: Which input of the node it is.
        axis: The axis.
        groups: How many parts of the channels there are, each of which only a part of the constant is for.
    """

    node: ir.Node
    index: int
    axis: int
    groups: int = 1

    @property
    def value(self) -> ir.Value:
        """The constant."""
        found = self.node.inputs[self.index]
        assert found is not None
        return found

    def spread(self, channels: Array, rank: int) -> Array:
        """Numbers for each channel in a shape that broadcasts with the constant."""
        if self.groups == 1:
            return channels.reshape(-1, *[1] * (-self.axis - 1))
        shape = self.value.shape
        assert shape is not None
        each = int(shape.numpy()[0]) // self.groups  # the channels made of those of a group
        return np.repeat(channels.reshape(self.groups, -1), each, axis=0).reshape(
            each * self.groups, -1, *[1] * (rank - 2)
        )


@dataclass(frozen=True)
class Link:
    """A value whose channels can be scaled.

    Attributes:
        value: The value.
        axis: The axis of the channels, counted from the last one: -1.
        channels: How many there are.
        makers: The constants that take 1/s in.
        takers: The weights that take s in.
    """

    value: ir.Value
    axis: int
    channels: int
    makers: Sequence[Constant]
    takers: Sequence[Constant]


def links(graph: ir.Graph, facts: Facts) -> Iterator[Link]:
    """All values of a graph whose channels can be scaled."""
    seen: set[ir.Value] = set()
    for node in graph:
        taken = _taken(node, facts)
        if taken is None or node.inputs[0] is None or node.inputs[0] in seen:
            continue
        value = node.inputs[0]
        seen.add(value)
        found = _link(graph, value, taken[1], facts)
        if found is not None:
            yield found


def _link(graph: ir.Graph, value: ir.Value, axis: int, facts: Facts) -> Link | None:
    takers = [(use, _taken(use.node, facts)) for use in value.uses()]
    if value.is_graph_output() or any(
        taken is None or taken[1] != axis or use.idx or use.node.graph is not graph for use, taken in takers
    ):
        return None
    channels = _channels(value, axis, facts)
    makers = None if channels is None else _Above(graph, facts, channels).makers(value, axis, DEEPEST)
    if not makers or channels is None:
        return None
    return Link(value, axis, channels, makers, [taken[0] for _, taken in takers if taken is not None])


def _channels(value: ir.Value | None, axis: int, facts: Facts) -> int | None:
    shape = facts.shape(value)
    dim = None if shape is None or len(shape) < -axis else shape[axis]
    return dim if isinstance(dim, int) and facts.dtype(value) == ir.DataType.FLOAT else None


def _name(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _is_scalable(value: ir.Value | None, facts: Facts) -> bool:
    """Whether a value is a constant of float32 that can be written anew: large ones only if nothing else takes them."""
    tensor = None if value is None or not facts.is_const(value) else value.const_value
    if value is None or tensor is None or tensor.dtype != ir.DataType.FLOAT:
        return False
    return len(value.uses()) == 1 or tensor.size <= SMALL


def _is_plain(node: ir.Node, *names: str) -> bool:
    return all(node.attributes.get_int(name, 0) == 0 for name in names)


def _activation_keeps(node: ir.Node) -> bool:
    return node.attributes.get_string("activation", "") in ("", "Relu", "LeakyRelu")


def _weight(node: ir.Node, facts: Facts) -> tuple[int, int] | None:
    """The axes of the weight of a product that stand for what comes in and what comes out; `None` if there is none such."""
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if not _is_scalable(weight, facts):
        return None
    rank, name = facts.rank(weight), _name(node)
    if name == "MatMul" and rank == 2:
        return -2, -1
    batches = _is_plain(node, "transA", "transBatchA", "transBatchB")
    if name in ("Gemm", f"{MICROSOFT}.FusedMatMul", f"{MICROSOFT}.FusedGemm") and rank == 2 and batches:
        return (-2, -1) if _is_plain(node, "transB") else (-1, -2)
    if name in ("Conv", f"{MICROSOFT}.FusedConv") and rank is not None and rank > 2:
        return 1 - rank, -rank
    return None


def _taken(node: ir.Node, facts: Facts) -> tuple[Constant, int] | None:
    """The weight of a product, with the axis of the channels in what comes in."""
    axes = _weight(node, facts)
    if axes is None:
        return None
    convolves = node.op_type in ("Conv", "FusedConv")
    groups = node.attributes.get_int("group", 1) if convolves else 1
    return Constant(node, 1, axes[0], groups), axes[0] if convolves else -1


@dataclass(frozen=True)
class _Above:
    """Look for the constants that the channels of a value can be scaled by."""

    graph: ir.Graph
    facts: Facts
    channels: int

    def makers(self, value: ir.Value | None, axis: int, depth: int) -> list[Constant] | None:
        """The constants; `None` if there are none that scale all of the value, and nothing else."""
        node = None if value is None else value.producer()
        if node is None or node.graph is not self.graph or value is not node.outputs[0] or not depth:
            return None
        if _channels(value, axis, self.facts) != self.channels:
            return None
        return self._of_product(node, axis) or self._of_normalisation(node, axis) or self._through(node, axis, depth)

    def _inner(self, value: ir.Value | None, axis: int, depth: int) -> list[Constant] | None:
        """The same for a value that one operator takes, once."""
        if value is None or value.is_graph_output() or len(value.uses()) != 1:
            return None
        return self.makers(value, axis, depth - 1)

    def _of_product(self, node: ir.Node, axis: int) -> list[Constant] | None:
        axes = _weight(node, self.facts)
        if axes is None or not _activation_keeps(node) or len(node.inputs) > 3:
            return None
        convolves = node.op_type in ("Conv", "FusedConv")
        if axis != (axes[1] + 1 if convolves else -1):
            return None
        found = [Constant(node, 1, axes[1])]
        return found if len(node.inputs) < 3 or node.inputs[2] is None else self._with(found, node, 2, -1)

    def _of_normalisation(self, node: ir.Node, axis: int) -> list[Constant] | None:
        found: list[Constant] | None = []
        rank = self.facts.rank(node.outputs[0])
        if (
            _name(node) not in _NORMALISES
            or axis != -1
            or node.attributes.get_int("axis", -1) not in (-1, (rank or 0) - 1)
        ):
            return None
        for index in _NORMALISES[_name(node)]:
            if found is not None and index < len(node.inputs) and node.inputs[index] is not None:
                found = self._with(found, node, index, -1)
        return found

    def _with(self, found: list[Constant], node: ir.Node, index: int, axis: int) -> list[Constant] | None:
        """The constants and one more, which may be an offset or factor that others take too."""
        scalable = _is_scalable(node.inputs[index], self.facts)
        return [*found, Constant(node, index, axis)] if scalable else None

    def _through(self, node: ir.Node, axis: int, depth: int) -> list[Constant] | None:
        name, rank = _name(node), self.facts.rank(node.outputs[0])
        if name in _KEEPS or (name in _POOLS and rank is not None and axis == 1 - rank):
            return self._inner(node.inputs[0], axis, depth) if self._is_alone(node) else None
        if name == "Mul":
            return next(filter(None, (self._side(node, index, axis, depth) for index in (0, 1))), None)
        if name in ("Add", "Sub"):
            sides = [self._side(node, index, axis, depth) for index in (0, 1)]
            return None if None in sides else [one for side in sides for one in side or ()]
        if name in _EARLIER and axis == -1 and self._is_alone(node):
            return self._values(node, depth)
        return None

    def _side(self, node: ir.Node, index: int, axis: int, depth: int) -> list[Constant] | None:
        """One of two operands: a constant of which there is one number for each channel or for all, or what is computed."""
        value = node.inputs[index]
        if _is_scalable(value, self.facts):
            return [Constant(node, index, axis)]
        return self._inner(value, axis, depth)

    def _values(self, node: ir.Node, depth: int) -> list[Constant] | None:
        """The values of attention over as many heads of keys as of queries."""
        heads = {node.attributes.get_int(name, 0) for name in ("q_num_heads", "kv_num_heads")}
        earlier = (node.inputs[index] for index in _EARLIER[_name(node)] if index < len(node.inputs))
        if len(heads) != 1 or len(node.inputs) < 3 or any(value is not None for value in earlier):
            return None
        return self._inner(node.inputs[2], -1, depth) if self.facts.rank(node.inputs[2]) == 3 else None

    @staticmethod
    def _is_alone(node: ir.Node) -> bool:
        """Whether nothing takes another output of a node."""
        return not any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
