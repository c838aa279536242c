"""The target wasm: decompositions of kernels that are slow there, and runs in Node.js where it and the package are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import operators

import ortfuse
from ortfuse.pipeline import load_catalogue
from ortfuse.rewrite import Rule
from ortfuse.runtime import node_sessions
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.session import Session
from ortfuse.targets import spec_of
from ortfuse.verification.rule_tests import prove

RULES = [rule for file in load_catalogue([], spec_of("wasm")).files if file.source == "target" for rule in file.rules]


def _missing() -> str:
    try:
        node_sessions.find_node()
        node_sessions.find_package("onnxruntime-web")
    except node_sessions.NodeError as error:
        return str(error)
    return ""


wasm = pytest.mark.skipif(bool(_missing()), reason=_missing())


@pytest.mark.rule_test
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_decomposition_is_right(rule: Rule) -> None:
    report = prove(rule, pairs=8, most_nodes=5000)
    assert report.proved, "\n".join(dict.fromkeys(report.failures))


def _model(body: str, opset: int = 21, **constants: Any) -> ir.Model:
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]> g {body}')
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    return ir.from_proto(proto)


def _quantised(opset: int = 17, zeros: bool = False) -> ir.Model:
    rng = np.random.default_rng(0)
    return _model(
        f"(float[1, 1, 96] x) => (float[1, 1, 512] y) {{"
        f" y = com.microsoft.MatMulNBits <K = 96, N = 512, bits = 4, block_size = 32> (x, q, s{', z' if zeros else ''}) }}",
        opset,
        q=rng.integers(0, 256, (512, 3, 16)).astype(np.uint8),
        s=rng.normal(size=(512, 3)).astype(np.float32),
        **({"z": rng.integers(0, 256, (512, 2)).astype(np.uint8)} if zeros else {}),
    )


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("zeros", [False, True])
def test_weights_of_few_bits_are_unpacked_when_the_model_is_loaded(opset: int, zeros: bool) -> None:
    result = ortfuse.optimize(_quantised(opset, zeros), target="wasm", loaded=False)
    found = operators(result.model)
    assert "MatMul" in found
    assert "MatMulNBits" not in found
    packed = max(result.model.graph.initializers.values(), key=lambda one: one.const_value.nbytes)
    assert packed.dtype == ir.DataType.UINT4  # the file does not grow


def test_weights_of_few_bits_stay_packed_on_request() -> None:
    result = ortfuse.optimize(_quantised(), target="wasm", force={"matmul_nbits": "none"}, loaded=False)
    assert operators(result.model) == ["MatMulNBits"]


def test_weights_of_few_bits_stay_packed_where_memory_would_not_hold_them() -> None:
    model = _quantised()

    def unread() -> ir.TensorProtocol:
        raise AssertionError("a weight that no rule asks for is read")

    table = ir.LazyTensor(unread, dtype=ir.DataType.FLOAT, shape=ir.Shape([1 << 15, 1 << 15]), name="table")
    value = ir.Value(name="table", const_value=table, type=ir.TensorType(table.dtype), shape=table.shape)
    model.graph.register_initializer(value)
    node = ir.Node(
        "", "Gather", [value, ir.Value(name="i", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([1]))]
    )
    model.graph.inputs.append(node.inputs[1])
    model.graph.append(node)
    node.outputs[0].name = "rows"
    model.graph.outputs.append(node.outputs[0])
    assert "MatMulNBits" in operators(ortfuse.optimize(model, target="wasm", loaded=False).model)


def test_normalisations_become_operators_with_fast_kernels() -> None:
    model = _model(
        "(float[1, 128, 64] x, float[1, 128, 64] z) => (float[1, 128, 64] y, float[1, 128, 64] w) {"
        " t = Add(x, z)  y = LayerNormalization <epsilon = 0.00001> (t, g, b)  w = Tanh(t) }",
        g=np.ones(64, np.float32) * 2,
        b=np.ones(64, np.float32),
    )
    found = operators(ortfuse.optimize(model, target="wasm", loaded=False).model)
    assert sorted(found) == ["Add", "Add", "RMSNormalization", "ReduceMean", "Sub", "Tanh"]


def test_images_of_one_pixel_are_multiplied_as_rows() -> None:
    model = _model(
        "(float[n, 144, 7, 7] x) => (float[n, 576, 1, 1] y) { p = GlobalAveragePool(x)  y = Conv(p, w, b) }",
        w=np.ones((576, 144, 1, 1), np.float32),
        b=np.ones(576, np.float32),
    )
    found = operators(ortfuse.optimize(model, target="wasm", loaded=False).model)
    assert "Gemm" in found
    assert "Conv" not in found


@wasm
@pytest.mark.parametrize("zeros", [False, True])
def test_unpacked_weights_are_computed_once(zeros: bool) -> None:
    original = _quantised(zeros=zeros)
    result = ortfuse.optimize(_quantised(zeros=zeros), target="wasm", loaded=False)
    given = {"x": np.random.default_rng(1).normal(size=(1, 1, 96)).astype(np.float32)}
    with executing_for(spec_of("wasm")):
        expected, found = (Session(model, threads=1).run(given)["y"] for model in (original, result.model))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        assert ortfuse.runtime.bench.executed_ops(result.model, given) == {"MatMul": 1}
