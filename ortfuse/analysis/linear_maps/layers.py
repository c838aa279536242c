"""Layers: Conv, ConvTranspose, FusedConv, MatMul and Gemm with constant weights, in one form.

    y[o] = sum over i and taps of kernel[group, o, i, *taps] x[i] + bias[o]

A product is a convolution without taps, of one group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.linear_maps.windows import Window, window
from ortfuse.ir.operator_registry import Facet
from ortfuse.ir.traits import DEQUANTISES, MICROSOFT, has

Array: TypeAlias = "np.ndarray[Any, Any]"

Storage = Literal["conv", "conv transposed", "columns", "rows", "left"]
"""The stored axes: [out, in / groups, taps], [in, out / groups, taps], [in, out], or [out, in] of a right or left factor."""

DTYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})
"""The types of the weights that are computed anew."""

PRODUCTS = frozenset({"MatMul", "Gemm"})


@dataclass(frozen=True)
class Layer:
    """A layer with constant weights.

    Attributes:
        node: The convolution or product.
        added: The Add behind a MatMul that adds the bias.
        data: The operand that is not constant.
        weight: The weights.
        bias: The bias.
        storage: How the weights are stored.
        groups: The number of groups.
        sizes: The numbers of outputs and inputs, of all groups.
        alpha: The factor of the weights of Gemm.
        beta: The factor of its bias.
        in_axis: The axis of the inputs in the data.
        out_axis: The axis of the outputs in the result.
    """

    node: ir.Node
    added: ir.Node | None
    data: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    storage: Storage
    groups: int
    sizes: tuple[int, int]
    alpha: float
    beta: float
    in_axis: int
    out_axis: int

    @property
    def output(self) -> ir.Value:
        """The result."""
        return (self.added or self.node).outputs[0]

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes, the last of which computes the result."""
        return (self.node,) if self.added is None else (self.node, self.added)

    @property
    def is_product(self) -> bool:
        """Whether it is a product of matrices."""
        return self.node.op_type in PRODUCTS

    @property
    def adds_bias_for_free(self) -> bool:
        """Whether a bias is an operand of the node itself."""
        return self.node.op_type != "MatMul"

    def kernel(self, facts: Facts) -> Array:
        """Return the weights in float64, as [group, output, input, *taps]."""
        array = facts.const(self.weight)
        assert array is not None
        wide = array.astype(np.float64) * self.alpha if self.alpha != 1 else array.astype(np.float64)
        if self.storage == "columns":
            turned: Array = wide.T[None]
            return turned
        grouped: Array = wide.reshape(self.groups, wide.shape[0] // self.groups, *wide.shape[1:])
        return grouped.swapaxes(1, 2) if self.storage == "conv transposed" else grouped

    def stored(self, kernel: Array) -> Array:
        """Return weights [group, output, input, *taps] in the order in which they are stored."""
        if self.storage == "columns":
            turned: Array = kernel[0].T
            return turned
        array = kernel.swapaxes(1, 2) if self.storage == "conv transposed" else kernel
        flat: Array = array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
        return flat

    def bias_vector(self, facts: Facts) -> Array:
        """Return the bias in float64, a number for each output; zeros if there is none."""
        array = None if self.bias is None else facts.const(self.bias)
        if array is None:
            return np.zeros(self.sizes[0])
        return np.broadcast_to(array.astype(np.float64).reshape(-1) * self.beta, self.sizes[0])

    def window(self, facts: Facts) -> Window | None:
        """Return the window of a convolution; `None` if it depends on the size of the input."""
        attributes: dict[str, Any] = {name: one.value for name, one in self.node.attributes.items()}
        taps = [dim for dim in (facts.shape(self.weight) or ())[2:] if isinstance(dim, int)]
        return None if self.is_product else window(attributes, taps)

    @property
    def is_padded(self) -> bool:
        """Whether it reads zeros around its input, as a ConvTranspose does even without padding."""
        if self.is_product:
            return False
        automatic = self.node.attributes.get_string("auto_pad", "NOTSET")
        if self.node.op_type == "ConvTranspose" or automatic in ("SAME_UPPER", "SAME_LOWER"):
            return True
        return automatic == "NOTSET" and any(self.node.attributes.get_ints("pads") or ())


LAYERS: Facet[Callable[[ir.Node, Facts], Layer | None]] = Facet(
    "layer", "weights and bias of the layer that ends with a node, which is linear by constants"
)


def layer_of(node: ir.Node, facts: Facts) -> Layer | None:
    """Return the layer that ends with a node; `None` if there is none with constant weights of a known form."""
    reader = LAYERS.of(node)
    if reader is None or any(one.is_ref() for one in node.attributes.values()):
        return None
    return reader(node, facts)


def _weights(value: ir.Value | None, facts: Facts) -> tuple[int, ...] | None:
    """The shape of constant weights; `None` if they are none, or have no elements."""
    if value is None or not facts.is_const(value) or facts.dtype(value) not in DTYPES:
        return None
    maker = value.producer()
    if maker is not None and has(maker, DEQUANTISES):
        return None  # weights that are stored small stay so
    shape = tuple(dim for dim in facts.shape(value) or () if isinstance(dim, int))
    return shape if len(shape) >= 2 and 0 not in shape else None


@LAYERS.register("Conv", "ConvTranspose", f"{MICROSOFT}.FusedConv")
def convolution(node: ir.Node, facts: Facts) -> Layer | None:
    """Convolutions whose weights, and bias if there is one, are constant."""
    data, weight, bias = (*node.inputs[:3], None)[:3]
    shape = _weights(weight, facts)
    if data is None or weight is None or shape is None or len(shape) < 3:
        return None
    groups = node.attributes.get_int("group", 1)
    if groups < 1 or shape[0] % groups or (bias is not None and not facts.is_const(bias)):
        return None
    storage: Storage = "conv transposed" if node.op_type == "ConvTranspose" else "conv"
    sizes = (shape[1] * groups, shape[0]) if node.op_type == "ConvTranspose" else (shape[0], shape[1] * groups)
    if bias is not None and facts.shape(bias) != (sizes[0],):
        return None
    return Layer(node, None, data, weight, bias, storage, groups, sizes, 1.0, 1.0, 1, 1)


@LAYERS.register("MatMul")
def product(node: ir.Node, facts: Facts) -> Layer | None:
    """Products with a constant matrix on either side."""
    for index in (1, 0):
        data, weight = node.inputs[1 - index], node.inputs[index]
        shape, rank = _weights(weight, facts), facts.rank(data)
        if data is None or weight is None or shape is None or len(shape) != 2 or rank is None or rank < 2:
            continue
        if facts.is_const(data):
            return None
        if index:
            return Layer(
                node, None, data, weight, None, "columns", 1, (shape[1], shape[0]), 1.0, 1.0, rank - 1, rank - 1
            )
        return Layer(node, None, data, weight, None, "left", 1, (shape[0], shape[1]), 1.0, 1.0, rank - 2, rank - 2)
    return None


@LAYERS.register("Gemm")
def gemm(node: ir.Node, facts: Facts) -> Layer | None:
    """Products with a constant matrix on the right, and a constant bias."""
    data, weight, bias = (*node.inputs[:3], None)[:3]
    shape = _weights(weight, facts)
    if data is None or weight is None or shape is None or len(shape) != 2 or facts.is_const(data):
        return None
    alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    if not 0 < abs(alpha) < math.inf or not math.isfinite(beta):
        return None
    turned = node.attributes.get_int("transB", 0)
    sizes = (shape[0], shape[1]) if turned else (shape[1], shape[0])
    if bias is not None and not (facts.is_const(bias) and _is_of_columns(bias, sizes[0], 2, facts)):
        return None
    axis = 0 if node.attributes.get_int("transA", 0) else 1
    storage: Storage = "rows" if turned else "columns"
    return Layer(node, None, data, weight, bias, storage, 1, sizes, alpha, beta, axis, 1)


@LAYERS.register("Add")
def product_with_bias(node: ir.Node, facts: Facts) -> Layer | None:
    """A MatMul behind which a constant bias is added."""
    for summed, bias in (node.inputs, node.inputs[::-1]):
        inner = None if summed is None or facts.is_const(summed) else summed.producer()
        if inner is None or bias is None or not facts.is_const(bias) or inner.domain or inner.op_type != "MatMul":
            continue
        if summed is None or len(summed.uses()) > 1 or summed.is_graph_output():
            return None
        found = product(inner, facts)
        if found is None or any(one.is_ref() for one in inner.attributes.values()):
            return None
        rank = facts.rank(summed) or 0
        if found.storage == "left":
            shape = facts.shape(bias) or ()
            fits = shape == () or (len(shape) <= rank and shape[-1:] == (1,) and _ends(shape[:-1], found.sizes[0]))
        else:
            fits = _is_of_columns(bias, found.sizes[0], rank, facts)
        return Layer(**{**vars(found), "added": node, "bias": bias}) if fits else None
    return None


def _is_of_columns(bias: ir.Value, columns: int, rank: int, facts: Facts) -> bool:
    """Whether a bias is one number, or one for each column."""
    shape = facts.shape(bias)
    return shape is not None and len(shape) <= rank and _ends(shape, columns)


def _ends(shape: Any, size: int) -> bool:
    return all(dim == 1 for dim in shape[:-1]) and shape[-1:] in ((), (1,), (size,))
