"""What operators cost: multiply-accumulates, floating-point operations and bytes moved, as polynomials of the open dimensions.

Conventions, which are those of the literature:

- A multiply-accumulate of a product (MatMul, Conv, attention, recurrent layers) is two operations. Biases are not counted.
- Everything else counts operations per element, where a function such as Exp is one: elementwise operators 1, normalisations and
  softmax as many as their formulas have.
- Bytes are those of each operand and each result once. Reshapes move nothing; what only picks elements (Gather, Slice) reads
  what it writes.
- If, Loop, Scan and calls of functions cost nothing themselves; the nodes in their bodies do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.transfer.fact import Shape
from ortfuse.ir import walk
from ortfuse.ir.dims import DimLike, floor_div, product
from ortfuse.ir.traits import (
    BROADCASTS,
    CONTROL_FLOW,
    DEQUANTISES,
    ELEMENTWISE,
    FILLS,
    JOINS,
    MICROSOFT,
    MOVES,
    QUANTISES,
    RANDOM,
    REDUCES,
    RESHAPES,
    SIZES,
    has,
)


@dataclass(frozen=True)
class Cost:
    """The cost of one execution.

    Attributes:
        macs: Multiply-accumulates of products.
        flops: All operations, two for each multiply-accumulate.
        bytes: Bytes read and written.
    """

    macs: DimLike = 0
    flops: DimLike = 0
    bytes: DimLike = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.macs + other.macs, self.flops + other.flops, self.bytes + other.bytes)


class Known(Protocol):
    """What is known about the values of a graph: facts, or what was seen in a run."""

    def shape(self, value: ir.Value | None) -> Shape | None:
        """The shape; `None` if it is not known."""

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type; `None` if it is not known."""


BLOCKED = "com.microsoft.nchwc"
"""The domain of the operators that the runtime executes in its blocked layout; shapes and costs are those of ai.onnx's."""


def operator_of(node: ir.Node) -> str:
    """The operator, with its domain unless that is ai.onnx or the one for the blocked layout."""
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", BLOCKED) else node.op_type


def cost_of(node: ir.Node, facts: Known) -> Cost | None:
    """The cost of a node; `None` if the operator, or a shape or element type that matters, is not known."""
    if has(node, CONTROL_FLOW) or node.op_type == "Constant" or _is_free(node):
        return Cost()
    place = _Place(node, facts)
    try:
        macs = _products(place)
        flops = 2 * macs if macs is not None else _operations(place)
        return None if flops is None else Cost(macs or 0, flops, place.bytes())
    except _UnknownError:
        return None


class _UnknownError(Exception):
    pass


T = TypeVar("T")


def _known(thing: T | None) -> T:
    if thing is None:
        raise _UnknownError
    return thing


class _Place:
    """A node with what is known about its operands and results; whatever is not known raises `_UnknownError`."""

    def __init__(self, node: ir.Node, facts: Known) -> None:
        self.node, self._facts = node, facts

    def has(self, index: int) -> bool:
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def shape(self, index: int) -> Shape:
        return _known(self._facts.shape(self.node.inputs[index]) if self.has(index) else None)

    def size(self, index: int) -> DimLike:
        return product(self.shape(index))

    def result(self, index: int = 0) -> Shape:
        return _known(self._facts.shape(self.node.outputs[index]))

    def results(self) -> DimLike:
        return product(self.result())

    def integer(self, name: str, default: int = 0) -> int:
        attribute = self.node.attributes.get(name)
        return default if attribute is None or attribute.is_ref() else int(attribute.value)

    def integers(self, name: str) -> tuple[int, ...]:
        attribute = self.node.attributes.get(name)
        return () if attribute is None or attribute.is_ref() else tuple(attribute.value)

    def text(self, name: str) -> str:
        attribute = self.node.attributes.get(name)
        return "" if attribute is None or attribute.is_ref() else str(attribute.value)

    def bytes(self) -> DimLike:
        """The bytes of the operands and results, as far as the node moves them."""
        results = [value for value in self.node.outputs if value.name != "" and _is_used(value)]
        written = sum((self._bytes_of(value) for value in results), start=0)
        if has(self.node, MOVES - JOINS - FILLS):
            further = [value for value in self.node.inputs[1:] if value is not None]
            return 2 * written + sum((self._bytes_of(value) for value in further), start=0)
        operands = dict.fromkeys(value for value in self.node.inputs if value is not None)
        return written + sum((self._bytes_of(value) for value in operands), start=0)

    def _bytes_of(self, value: ir.Value) -> DimLike:
        elements, dtype = product(_known(self._facts.shape(value))), _known(self._facts.dtype(value))
        if dtype == ir.DataType.STRING:
            raise _UnknownError
        bits = int(dtype.bitwidth)
        return elements * (bits // 8) if bits >= 8 else floor_div(elements * bits, 8)


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _is_free(node: ir.Node) -> bool:
    """Whether a node only looks at shapes, or gives its input another one."""
    return has(node, RESHAPES) or has(node, SIZES)


def _products(place: _Place) -> DimLike | None:
    """The multiply-accumulates of a node; `None` if it is no product."""
    found = _PRODUCTS.get(operator_of(place.node))
    return None if found is None else found(place)


def _operations(place: _Place) -> DimLike | None:
    """The operations of a node that is no product; `None` if they are not known."""
    node, name = place.node, operator_of(place.node)
    if name in _PER_RESULT:
        return _PER_RESULT[name] * place.results()
    if name in _PER_OPERAND or has(node, REDUCES):
        return _PER_OPERAND.get(name, 1) * place.size(0)
    if name in _POOLS:
        return place.results() * product(_within(place.integers("kernel_shape"), place.shape(0)))
    if name == "Sum" or name == "Mean":
        return len(node.inputs) * place.results()
    if has(node, MOVES | RANDOM) or name in _NOTHING:
        return 0
    if has(node, ELEMENTWISE | BROADCASTS | QUANTISES | DEQUANTISES):
        return place.results()
    return None


def _within(kernel: Sequence[int], shape: Shape) -> list[DimLike]:
    """A kernel, no larger than what it is moved over."""
    sizes = zip(kernel, shape[2:], strict=False)
    return [min(side, size) if isinstance(size, int) else side for side, size in sizes]


def _matmul(a: int, b: int) -> Callable[[_Place], DimLike]:
    """A product of matrices, the operands of which are inputs `a` and `b`."""

    def macs(place: _Place) -> DimLike:
        left = place.shape(a)
        if not left or not place.shape(b):
            raise _UnknownError
        return place.results() * left[-2 if place.integer("transA") and len(left) > 1 else -1]

    return macs


def _convolution(weight: int) -> Callable[[_Place], DimLike]:
    """Each result is a sum over the channels of its group and the kernel."""
    return lambda place: place.results() * product(place.shape(weight)[1:])


def _transposed_convolution(place: _Place) -> DimLike:
    """Each element of the input goes to all channels of its group and all of the kernel."""
    return place.size(0) * product(place.shape(1)[1:])


def _recurrent(place: _Place) -> DimLike:
    """For each step and sample, the gates of all directions: the input's weights and the state's."""
    steps, samples, _ = place.shape(0)
    return steps * samples * (place.size(1) + place.size(2))


def _einsum(place: _Place) -> DimLike:
    equation = place.text("equation").replace(" ", "")
    if "." in equation or not equation:
        raise _UnknownError
    terms = equation.partition("->")[0].split(",")
    sizes: dict[str, DimLike] = {}
    for index, letters in enumerate(terms):
        for letter, dim in zip(letters, place.shape(index), strict=True):
            sizes[letter] = dim if sizes.get(letter, 1) == 1 else sizes[letter]
    return product(tuple(sizes.values())) * (len(terms) - 1)


def _attention(place: _Place) -> DimLike:
    """Scores and weighted values of ai.onnx Attention."""
    heads, kv_heads = place.integer("q_num_heads"), place.integer("kv_num_heads")
    query, key, value = (
        _heads_apart(place.shape(index), count) for index, count in enumerate((heads, kv_heads, kv_heads))
    )
    total = key[2] + (place.shape(4)[2] if place.has(4) else 0)
    return query[0] * query[1] * query[2] * total * (query[3] + value[3])


def _heads_apart(shape: Shape, heads: int) -> Shape:
    if len(shape) == 4:
        return shape
    if len(shape) != 3 or not heads:
        raise _UnknownError
    return shape[0], heads, shape[1], floor_div(shape[2], heads)


def _multi_head_attention(place: _Place) -> DimLike:
    """Scores and weighted values of com.microsoft.MultiHeadAttention, unless its operands are packed."""
    query, key, value = place.shape(0), place.shape(1), place.shape(2)
    if len(query) != 3:
        raise _UnknownError
    merged = len(key) == 3
    total = key[1] if merged else key[2]
    if place.has(6):
        total = total + place.shape(6)[2]
    width = value[2] if merged else value[1] * value[3]
    return query[0] * query[1] * total * (query[2] + width)


def _packed_attention(place: _Place) -> DimLike:
    """com.microsoft.Attention: the projections of query, key and value, then scores and weighted values."""
    batch, length, _ = place.shape(0)
    widths = place.integers("qkv_hidden_sizes") or (floor_div(place.shape(1)[1], 3),) * 3
    total = length + (place.shape(4)[3] if place.has(4) else 0)
    return batch * length * place.size(1) + batch * length * total * (widths[0] + widths[2])


def _group_query_attention(place: _Place) -> DimLike:
    batch, length, width = place.shape(0)
    heads, groups = place.integer("num_heads"), place.integer("kv_num_heads")
    if not place.has(1):
        width = floor_div(width, heads + 2 * groups) * heads
    total = length + (place.shape(3)[2] if place.has(3) else 0)
    return 2 * batch * length * total * width


def _linear_attention(place: _Place) -> DimLike:
    """For each position and head, the state is changed and read, and read once more where it is corrected (the delta rule)."""
    batch, length, width = place.shape(0)
    state = floor_div(width, place.integer("q_num_heads")) * place.shape(2)[2]
    return batch * length * state * (3 if "delta" in place.text("update_rule") else 2)


_PRODUCTS: Mapping[str, Callable[[_Place], DimLike]] = {
    "MatMul": _matmul(0, 1),
    "Gemm": _matmul(0, 1),
    "MatMulInteger": _matmul(0, 1),
    "QLinearMatMul": _matmul(0, 3),
    f"{MICROSOFT}.QGemm": _matmul(0, 3),
    f"{MICROSOFT}.FusedMatMul": _matmul(0, 1),
    f"{MICROSOFT}.FusedGemm": _matmul(0, 1),
    f"{MICROSOFT}.DynamicQuantizeMatMul": _matmul(0, 1),
    f"{MICROSOFT}.MatMulIntegerToFloat": _matmul(0, 1),
    f"{MICROSOFT}.MatMulNBits": lambda place: place.size(0) * place.integer("N"),
    "Einsum": _einsum,
    "Conv": _convolution(1),
    "ConvInteger": _convolution(1),
    "DeformConv": _convolution(1),
    "QLinearConv": _convolution(3),
    f"{MICROSOFT}.FusedConv": _convolution(1),
    f"{MICROSOFT}.QLinearConv": _convolution(3),
    "ConvTranspose": _transposed_convolution,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    f"{MICROSOFT}.DynamicQuantizeLSTM": _recurrent,
    "Attention": _attention,
    f"{MICROSOFT}.LinearAttention": _linear_attention,
    f"{MICROSOFT}.CausalConvWithState": _convolution(1),
    f"{MICROSOFT}.MultiHeadAttention": _multi_head_attention,
    f"{MICROSOFT}.Attention": _packed_attention,
    f"{MICROSOFT}.GroupQueryAttention": _group_query_attention,
}
"""The multiply-accumulates of products."""

_PER_RESULT: Mapping[str, int] = {
    "Softmax": 5, "LogSoftmax": 5, "Hardmax": 2,
    "BatchNormalization": 2, "InstanceNormalization": 7, "GroupNormalization": 8, "LayerNormalization": 8,
    "MeanVarianceNormalization": 6, "LpNormalization": 4, "RMSNormalization": 5, "SimplifiedLayerNormalization": 5,
    "LRN": 6, f"{MICROSOFT}.SkipLayerNormalization": 9, f"{MICROSOFT}.SkipSimplifiedLayerNormalization": 6,
    "Gelu": 5, f"{MICROSOFT}.Gelu": 5, f"{MICROSOFT}.BiasGelu": 6, f"{MICROSOFT}.FastGelu": 8, f"{MICROSOFT}.QuickGelu": 3,
    "HardSigmoid": 4, "HardSwish": 5, "Swish": 3, "Sigmoid": 3, "Mish": 4, "Clip": 2,
    f"{MICROSOFT}.QLinearAdd": 1, f"{MICROSOFT}.QLinearMul": 1, f"{MICROSOFT}.QLinearConcat": 0, f"{MICROSOFT}.QLinearSoftmax": 5,
    f"{MICROSOFT}.QLinearSigmoid": 3, f"{MICROSOFT}.QLinearLeakyRelu": 1, f"{MICROSOFT}.BiasSoftmax": 6,
    "RotaryEmbedding": 3, f"{MICROSOFT}.RotaryEmbedding": 3, "Resize": 0, "Upsample": 0, "GridSample": 8,
}  # fmt: skip
"""Operations for each element of the result, where that is not 1."""

_PER_OPERAND: Mapping[str, int] = {
    "ReduceL2": 2, "ReduceSumSquare": 2, "ReduceLogSumExp": 2, "ArgMax": 1, "ArgMin": 1, "CumSum": 1, "CumProd": 1, "TopK": 1,
    "SoftmaxCrossEntropyLoss": 6, "NegativeLogLikelihoodLoss": 0,
    f"{MICROSOFT}.QLinearGlobalAveragePool": 1, f"{MICROSOFT}.QLinearReduceMean": 1,
    "GlobalAveragePool": 1, "GlobalMaxPool": 1, "GlobalLpPool": 2,
}  # fmt: skip
"""Operations for each element of the first operand; 1 for all other reductions."""

_POOLS = frozenset({"AveragePool", "MaxPool", "LpPool"})

_NOTHING = frozenset(
    {
        "ConstantOfShape", "Range", "OneHot", "EyeLike", "ScatterElements", "ScatterND", "TensorScatter", "NonZero", "Dropout",
        "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SequenceLength",
        "SplitToSequence", "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement",
        "ReorderInput", "ReorderOutput",
    }
)  # fmt: skip
"""Operators that compute nothing, beyond those that move elements."""


def total(model: ir.Model, facts: Facts) -> tuple[Cost, list[ir.Node]]:
    """The cost of all nodes of a model, bodies counted once, and the nodes whose cost is not known."""
    found, unknown = Cost(), []
    for node in walk.nodes(model):
        one = cost_of(node, facts)
        if one is not None:
            found = found + one
        elif node.op_identifier() not in model.functions:
            unknown.append(node)
    return found, unknown
