"""Small networks with channels last, as converters write them: a Transpose before and after whatever needs channels first."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

FIRST, LAST = [0, 3, 1, 2], [0, 2, 3, 1]


class Builder:
    """Nodes with random weights; values have their channels last."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._random = np.random.default_rng(0)

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, numbers: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(numbers, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self._random.standard_normal(shape) / np.sqrt(np.prod(shape[1:])))

    def first(self, x: str) -> str:
        return self.node("Transpose", x, perm=FIRST)

    def last(self, x: str) -> str:
        return self.node("Transpose", x, perm=LAST)

    def conv(self, x: str, channels: int, to: int, size: int = 3, stride: int = 1, group: int = 1) -> str:
        weight = self.weight(to, channels // group, size, size)
        pads = [size // 2] * 4
        made = self.node("Conv", self.first(x), weight, strides=[stride] * 2, pads=pads, group=group)
        return self.node("Add", self.last(made), self.constant(self._random.standard_normal(to)))

    def norm(self, x: str, channels: int) -> str:
        """Batch normalisation with its arithmetic on the last axis."""
        scaled = self.node("Mul", x, self.constant(1 + self._random.random(channels)))
        return self.node("Add", scaled, self.constant(self._random.standard_normal(channels)))

    def norm_of_rows(self, x: str, channels: int) -> str:
        """Batch normalisation of all pixels as rows of channels."""
        rows = self.node("Reshape", x, self.constant([-1, channels], np.int64))
        statistics = [self.constant(0.5 + self._random.random(channels)) for _ in range(4)]
        return self.node("Reshape", self.node("BatchNormalization", rows, *statistics), self.node("Shape", x))

    def swish(self, x: str) -> str:
        return self.node("Mul", x, self.node("Sigmoid", x))

    def pool(self, x: str) -> str:
        return self.last(self.node("MaxPool", self.first(x), kernel_shape=[2, 2], strides=[2, 2]))

    def grow(self, x: str) -> str:
        scales = self.constant([1, 1, 2, 2])
        how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.last(self.node("Resize", self.first(x), "", scales, mode="nearest", **how))

    def gate(self, x: str, channels: int) -> str:
        """Squeeze and excitation."""
        mean = self.node("ReduceMean", x, axes=[1, 2], keepdims=1)
        inner = self.swish(self.conv(mean, channels, 4, 1))
        return self.node("Mul", x, self.node("Sigmoid", self.conv(inner, 4, channels, 1)))

    def head(self, x: str, channels: int) -> str:
        mean = self.node("ReduceMean", x, axes=[1, 2], keepdims=0)
        product = self.node("MatMul", mean, self.weight(channels, 10))
        return self.node("Softmax", self.node("Add", product, self.constant(np.zeros(10))), axis=-1)

    def model(self, result: str, shape: list[Any]) -> onnx.ModelProto:
        kind = onnx.TensorProto.FLOAT
        given = helper.make_tensor_value_info("x", kind, ["n", 16, 16, 3])
        made = helper.make_tensor_value_info(result, kind, shape)
        graph = helper.make_graph(self._nodes, "network", [given], [made], self._constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def residual() -> onnx.ModelProto:
    """Strided blocks with sums; the first image is padded."""
    net = Builder()
    pads = net.constant([0, 1, 1, 0, 0, 1, 1, 0], np.int64)
    y = net.node("Relu", net.norm(net.conv(net.node("Pad", "x", pads, net.constant(0.0)), 3, 8, 3, 2), 8))
    for channels, to, stride in ((8, 8, 1), (8, 16, 2)):
        skip = y if stride == 1 else net.norm(net.conv(y, channels, to, 1, stride), to)
        inner = net.node("Relu", net.norm(net.conv(y, channels, to, 3, stride), to))
        y = net.node("Relu", net.node("Add", net.norm(net.conv(inner, to, to), to), skip))
    return net.model(net.head(y, 16), ["n", 10])


def separable() -> onnx.ModelProto:
    """Inverted residual blocks with depthwise convolutions and Clip."""
    net = Builder()
    bounds = net.constant(0.0), net.constant(6.0)
    y = net.node("Clip", net.norm(net.conv("x", 3, 8, 3, 2), 8), *bounds)
    for stride in (1, 2):
        inner = net.node("Clip", net.norm(net.conv(y, 8, 32, 1), 32), *bounds)
        inner = net.node("Clip", net.norm(net.conv(inner, 32, 32, 3, stride, 32), 32), *bounds)
        inner = net.norm(net.conv(inner, 32, 8, 1), 8)
        y = net.node("Add", inner, y) if stride == 1 else inner
    flat = net.node("Reshape", net.node("ReduceMean", y, axes=[1, 2], keepdims=1), net.constant([-1, 8], np.int64))
    return net.model(net.node("Softmax", flat, axis=-1), ["n", 8])


def gated() -> onnx.ModelProto:
    """Swish and gates, on an image that is normalised first."""
    net = Builder()
    image = net.node("Sub", net.node("Mul", "x", net.constant(0.5)), net.constant([0.4, 0.5, 0.6]))
    y = net.swish(net.norm(net.conv(image, 3, 16, 3, 2), 16))
    for _ in range(2):
        y = net.node(
            "Add", net.norm(net.conv(net.gate(net.swish(net.conv(y, 16, 16, 3, 1, 16)), 16), 16, 16, 1), 16), y
        )
    return net.model(net.head(y, 16), ["n", 10])


def nested() -> onnx.ModelProto:
    """Down, up, and joined with what came before; an image of one channel comes out."""
    net = Builder()
    outer = net.node("Relu", net.norm(net.conv("x", 3, 8), 8))
    inner = net.node("Relu", net.norm(net.conv(net.pool(outer), 8, 16), 16))
    joined = net.node("Concat", net.conv(net.grow(inner), 16, 8), outer, axis=-1)
    y = net.node("Relu", net.norm(net.conv(joined, 16, 8), 8))
    return net.model(net.node("Sigmoid", net.conv(y, 8, 1, 1)), ["n", 16, 16, 1])


def flat() -> onnx.ModelProto:
    """An image that is flattened before a product with a matrix."""
    net = Builder()
    y = net.pool(net.node("Relu", net.conv("x", 3, 8)))
    rows = net.node("Reshape", y, net.constant([-1, 512], np.int64))
    return net.model(net.node("MatMul", rows, net.weight(512, 10)), ["n", 10])


def in_rows() -> onnx.ModelProto:
    """Pixels are rows where they are normalised."""
    net = Builder()
    y = net.node("Relu", net.norm_of_rows(net.conv("x", 3, 8), 8))
    y = net.node("Add", net.node("Relu", net.norm_of_rows(net.conv(y, 8, 8), 8)), y)
    return net.model(net.head(y, 8), ["n", 10])


NETWORKS = {made.__name__: made for made in (residual, separable, gated, nested, flat, in_rows)}
