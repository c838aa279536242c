"""Networks with channels last keep the one Transpose of their image, and what stands behind the others is folded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from channels_last import NETWORKS
from graphs import run

import ortfuse

IMAGE = {"x": np.random.default_rng(1).standard_normal((2, 16, 16, 3)).astype(np.float32)}


def executed_transposes(model: onnx.ModelProto, folder: Path) -> int:
    """How many Transposes the runtime keeps."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(options.optimized_model_filepath).graph.node
    return sum(node.op_type == "Transpose" for node in nodes)


@pytest.mark.parametrize("name", NETWORKS)
def test_one_transpose_is_left(name: str, tmp_path: Path) -> None:
    model = NETWORKS[name]()
    result = ortfuse.optimize(model, verify="sites")
    assert [check.text() for check in result.sites or () if check.rule == "layout" and check.state != "equal"] == []
    found = [node.op_type for node in result.model.graph.node]
    assert found.count("Transpose") == 1
    assert not {"Mul", "BatchNormalization"} & {*found} or name == "gated", (
        "batch normalisation is part of the convolution before it"
    )
    assert executed_transposes(result.model, tmp_path) <= executed_transposes(model, tmp_path)
    for before, after in zip(run(model, IMAGE), run(result.model, IMAGE), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


ATTENTION = """<ir_version: 9, opset_import: ["": 18]>
    agraph (float[5, 2, 32] q, float[7, 2, 32] k, float[7, 2, 32] v) => (float[5, 2, 32] y)
    <int64[3] rows = {5, 8, 8}, int64[3] columns = {7, 8, 8}, int64[4] four = {2, 4, 5, 8}, int64[4] others = {2, 4, 7, 8},
     int64[3] joined = {5, 2, 32}, float scale = {0.35355338}> {
        q3 = Reshape(q, rows) qt = Transpose<perm = [1, 0, 2]>(q3) q4 = Reshape(qt, four)
        k3 = Reshape(k, columns) kt = Transpose<perm = [1, 0, 2]>(k3) k4 = Reshape(kt, others)
        v3 = Reshape(v, columns) vt = Transpose<perm = [1, 0, 2]>(v3) v4 = Reshape(vt, others)
        ks = Transpose<perm = [0, 1, 3, 2]>(k4) s = MatMul(q4, ks) m = Mul(s, scale) p = Softmax<axis = -1>(m)
        o = MatMul(p, v4) t = Transpose<perm = [2, 0, 1, 3]>(o) y = Reshape(t, joined)
    }"""


def test_attention_with_the_length_first_has_its_heads_merged() -> None:
    """As torch.nn.MultiheadAttention is exported: one Transpose for each operand and the result, and no Reshapes for heads."""
    model = onnx.parser.parse_model(ATTENTION)
    result = ortfuse.optimize(model)
    found = [node.op_type for node in result.model.graph.node]
    assert found.count("Attention") == 1
    assert found.count("Transpose") == 4
    assert found.count("Reshape") == 0
    assert result.report.families()["attention"] == 1


WINDOWS = """<ir_version: 9, opset_import: ["": 18]>
    agraph (float[2, 3, 4, 24] x) => (float[2, 3, 4, 8] y)
    <int64[5] heads = {2, 12, 3, 2, 4}, int64[4] flat = {3, 4, 12, 4}, int64 zero = {0}, int64 one = {1}, int64 two = {2},
     int64[5] rows = {2, 2, 3, 4, 4}, int64[4] joined = {2, 3, 4, 8}, float scale = {0.5}> {
        h = Reshape(x, heads) t = Transpose<perm = [2, 0, 3, 1, 4]>(h) f = Reshape(t, flat)
        q = Gather(f, zero) k = Gather(f, one) v = Gather(f, two) kt = Transpose<perm = [0, 2, 1]>(k)
        s = MatMul(q, kt) m = Mul(s, scale) p = Softmax<axis = -1>(m) o = MatMul(p, v)
        r = Reshape(o, rows) b = Transpose<perm = [0, 2, 3, 1, 4]>(r) y = Reshape(b, joined)
    }"""


def test_attention_over_rows_and_columns_has_its_heads_merged() -> None:
    """As in image encoders, whose positions are rows and columns before and behind."""
    model = onnx.parser.parse_model(WINDOWS)
    result = ortfuse.optimize(model)
    found = [node.op_type for node in result.model.graph.node]
    assert found.count("Attention") == 1
    assert "Transpose" not in found
    given = {"x": np.random.default_rng(0).standard_normal((2, 3, 4, 24)).astype(np.float32)}
    np.testing.assert_allclose(run(result.model, given)[0], run(model, given)[0], rtol=1e-4, atol=1e-5)


def test_a_mask_for_each_head_is_read_by_the_operator_that_takes_any() -> None:
    """As torch.nn.MultiheadAttention is exported with its mask as an input of three axes."""
    text = ATTENTION.replace("float[7, 2, 32] v)", "float[7, 2, 32] v, float[8, 5, 7] mask)").replace(
        "p = Softmax<axis = -1>(m)", "each = Reshape(mask, heads) a = Add(m, each) p = Softmax<axis = -1>(a)"
    )
    model = onnx.parser.parse_model(text.replace("float scale", "int64[4] heads = {2, 4, 5, 7}, float scale"))
    result = ortfuse.optimize(model)
    found = [node.op_type for node in result.model.graph.node]
    assert found.count("MultiHeadAttention") == 1
    assert "Softmax" not in found
    random = np.random.default_rng(0)
    sizes = {"q": (5, 2, 32), "k": (7, 2, 32), "v": (7, 2, 32), "mask": (8, 5, 7)}
    given = {name: random.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    given["mask"][3, 2] = -np.inf
    np.testing.assert_allclose(run(result.model, given)[0], run(model, given)[0], rtol=1e-4, atol=1e-5)


WITH_WEIGHTS = """<ir_version: 9, opset_import: ["": 18]>
    agraph (float[2, 5, 32] x) => (float[2, 5, 32] y)
    <int64[3] heads = {5, 8, 8}, int64[3] joined = {5, 2, 32}, float scale = {0.35355338}> {
        t = Transpose<perm = [1, 0, 2]>(x) q3 = Reshape(t, heads) q = Transpose<perm = [1, 0, 2]>(q3)
        k = Transpose<perm = [1, 2, 0]>(q3) u = Neg(t) v3 = Reshape(u, heads) v = Transpose<perm = [1, 0, 2]>(v3)
        m = Mul(q, scale) s = MatMul(m, k) p = Softmax<axis = -1>(s) o = MatMul(p, v) b = Transpose<perm = [1, 0, 2]>(o)
        r = Reshape(b, joined) y = Transpose<perm = [1, 0, 2]>(r)
    }"""


def test_attention_whose_heads_were_merged_into_the_batch_is_not_transposed() -> None:
    """As torch.nn.MultiheadAttention is exported where its weights are asked for."""
    model = onnx.parser.parse_model(WITH_WEIGHTS)
    result = ortfuse.optimize(model)
    found = [node.op_type for node in result.model.graph.node]
    assert found.count("Attention") == 1
    assert "Transpose" not in found
    given = {"x": np.random.default_rng(0).standard_normal((2, 5, 32)).astype(np.float32)}
    np.testing.assert_allclose(run(result.model, given)[0], run(model, given)[0], rtol=1e-4, atol=1e-5)


def test_so_is_attention_with_a_mask_for_all_heads() -> None:
    text = WITH_WEIGHTS.replace("float[2, 5, 32] x)", "float[2, 5, 32] x, float[1, 5, 5] mask)")
    model = onnx.parser.parse_model(
        text.replace("p = Softmax<axis = -1>(s)", "a = Add(mask, s) p = Softmax<axis = -1>(a)")
    )
    result = ortfuse.optimize(model)
    found = [node.op_type for node in result.model.graph.node]
    assert found.count("MultiHeadAttention") == 1
    assert "Transpose" not in found
    random = np.random.default_rng(0)
    given = {
        name: random.standard_normal(size).astype(np.float32) for name, size in (("x", (2, 5, 32)), ("mask", (1, 5, 5)))
    }
    np.testing.assert_allclose(run(result.model, given)[0], run(model, given)[0], rtol=1e-4, atol=1e-5)
