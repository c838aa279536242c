"""Costs of operators against numbers computed by hand."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortfuse.analysis.costs import Cost, cost_of, total
from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import evaluate


def costs(text: str) -> list[Cost | None]:
    model = ir.from_proto(
        onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]> {text}')
    )
    facts = Facts(model)
    return [cost_of(node, facts) for node in model.graph]


@pytest.mark.parametrize(
    ("text", "macs"),
    [
        ("g (float[2, 3, 4] x, float[4, 5] w) => (float[2, 3, 5] y) { y = MatMul(x, w) }", 2 * 3 * 5 * 4),
        ("g (float[4, 3] x, float[5, 4] w) => (float[3, 5] y) { y = Gemm <transA = 1, transB = 1> (x, w) }", 3 * 5 * 4),
        ("g (float[2, 4, 3] x, float[2, 4, 5] w) => (float[2, 3, 5] y) { y = com.microsoft.FusedMatMul <transA = 1> (x, w) }",
         2 * 3 * 5 * 4),
        ("g (float[1, 4, 8, 8] x, float[6, 2, 3, 3] w) => (float[1, 6, 6, 6] y) { y = Conv <group = 2> (x, w) }",
         6 * 6 * 6 * 2 * 9),
        ("g (float[1, 4, 8, 8] x, float[4, 3, 2, 2] w) => (float[1, 3, 16, 16] y) { y = ConvTranspose <strides = [2, 2]> (x, w) }",
         4 * 64 * 3 * 4),
        ("g (float[2, 3, 4] x, float[2, 4, 5] w) => (float[2, 3, 5] y) { y = Einsum <equation = \"bij,bjk->bik\"> (x, w) }",
         2 * 3 * 4 * 5),
        ("g (float[7, 2, 4] x, float[1, 12, 4] w, float[1, 12, 3] r) => (float[7, 1, 2, 3] y) { y = LSTM <hidden_size = 3> (x, w, r) }",
         7 * 2 * 12 * (4 + 3)),
        ("g (float[2, 4, 5, 8] q, float[2, 2, 6, 8] k, float[2, 2, 6, 3] v) => (float[2, 4, 5, 3] y) { y = Attention(q, k, v) }",
         2 * 4 * 5 * 6 * (8 + 3)),
        ("g (float[2, 5, 8] q, float[2, 6, 8] k, float[2, 6, 8] v) => (float[2, 5, 8] y) "
         "{ y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v) }", 2 * 5 * 6 * (8 + 8)),
        ("g (float[2, 5, 8] x, float[8, 24] w, float[24] b) => (float[2, 5, 8] y) "
         "{ y = com.microsoft.Attention <num_heads = 2> (x, w, b) }", 2 * 5 * 8 * 24 + 2 * 5 * 5 * 16),
    ],
)  # fmt: skip
def test_multiply_accumulates_of_products(text: str, macs: int) -> None:
    (found,) = costs(text)
    assert found is not None
    assert (found.macs, found.flops) == (macs, 2 * macs)


@pytest.mark.parametrize(
    ("text", "flops", "moved"),
    [
        ("g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }", 6, 48),
        ("g (float[2, 3] x, float16[3] b) => (float[2, 3] y) { y = Add(x, x) }", 6, 48),
        ("g (float16[2, 3] x, float16[3] b) => (float16[2, 3] y) { y = Add(x, b) }", 6, 30),
        ("g (float[2, 3] x) => (float[3, 2] y) { y = Transpose(x) }", 0, 48),
        ("g (float[2, 3] x) => (float[6] y) <int64[1] s = {-1}> { y = Reshape(x, s) }", 0, 0),
        ("g (float[100, 3] x, int64[2] i) => (float[2, 3] y) { y = Gather(x, i) }", 0, 2 * 24 + 16),
        ("g (float[2, 3] x) => (float[2, 1] y) <int64[1] a = {-1}> { y = ReduceMean(x, a) }", 6, 24 + 8 + 8),
        ("g (float[1, 2, 4, 4] x) => (float[1, 2, 2, 2] y) { y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }",
         32, 4 * (32 + 8)),
        ("g (float[1, 2, 4, 4] x) => (float[1, 2, 2, 2] y) { y = AveragePool <kernel_shape = [9, 9], pads = [3, 3, 3, 3]> (x) }",
         8 * 16, 4 * (32 + 8)),
        ("g (float[2, 3] x) => (float[2, 3] y) { y = Softmax(x) }", 30, 48),
    ],
)  # fmt: skip
def test_operations_and_bytes(text: str, flops: int, moved: int) -> None:
    (found,) = costs(text)
    assert found == Cost(0, flops, moved)


def test_costs_are_polynomials_of_the_open_dimensions() -> None:
    (found,) = costs("g (float[B, S, 8] x, float[8, 4] w) => (float[B, S, 4] y) { y = MatMul(x, w) }")
    assert found is not None
    assert str(found.macs) == "32*B*S"
    assert evaluate(found.bytes, {"B": 2, "S": 3}) == 4 * (2 * 3 * 8 + 8 * 4 + 2 * 3 * 4)


def test_what_is_not_known_costs_nothing_that_could_be_said() -> None:
    model = ir.from_proto(onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20, "my.domain": 1]> g (float[2] x) => (float[2] y) { t = my.domain.Odd(x)  y = Relu(t) }'
    ))  # fmt: skip
    found, unknown = total(model, Facts(model))
    assert found == Cost()
    assert [node.op_type for node in unknown] == ["Odd", "Relu"]


class Net:
    """Convolutions with the shapes of a network; weights are zeros."""

    def __init__(self, size: int) -> None:
        self.value = ir.Value(name="x", shape=ir.Shape([1, 3, size, size]), type=ir.TensorType(ir.DataType.FLOAT))
        self.graph = ir.Graph([self.value], [], nodes=[], opset_imports={"": 20})
        self.parameters = 0

    def weight(self, *shape: int) -> ir.Value:
        tensor = ir.tensor(np.zeros(shape, np.float32), name=f"w{len(self.graph.initializers)}")
        value = ir.Value(name=tensor.name, const_value=tensor, shape=tensor.shape, type=ir.TensorType(tensor.dtype))
        self.graph.register_initializer(value)
        self.parameters += tensor.size
        return value

    def node(self, op_type: str, *inputs: ir.Value, **attributes: object) -> ir.Value:
        node = ir.node(op_type, list(inputs), attributes)
        node.outputs[0].name = f"v{len(self.graph)}"
        self.graph.append(node)
        return node.outputs[0]

    def conv(self, x: ir.Value, channels: tuple[int, int], kernel: int, stride: int = 1) -> ir.Value:
        weight = self.weight(channels[1], channels[0], kernel, kernel)
        pads = [kernel // 2] * 4
        made = self.node("Conv", x, weight, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)
        scales = [self.weight(channels[1]) for _ in range(2)]
        means = [self.weight(channels[1]) for _ in range(2)]
        self.parameters -= 2 * channels[1]  # running statistics are not trained
        return self.node("BatchNormalization", made, *scales, *means)


def resnet50() -> tuple[ir.Model, int]:
    net = Net(224)
    x = net.node("Relu", net.conv(net.value, (3, 64), 7, 2))
    x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    before = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for number in range(blocks):
            stride = 2 if stage and not number else 1
            y = net.node("Relu", net.conv(x, (before, width), 1))
            y = net.node("Relu", net.conv(y, (width, width), 3, stride))
            y = net.conv(y, (width, 4 * width), 1)
            skip = net.conv(x, (before, 4 * width), 1, stride) if not number else x
            x, before = net.node("Relu", net.node("Add", y, skip)), 4 * width
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    net.graph.outputs.append(net.node("Gemm", x, net.weight(2048, 1000), net.weight(1000)))
    return ir.Model(net.graph, ir_version=10), net.parameters


def test_resnet_50_has_the_known_counts() -> None:
    model, parameters = resnet50()
    assert parameters == 25_557_032
    found, unknown = total(model, Facts(model))
    assert not unknown
    assert found.macs == 4_089_184_256
