"""Masks of attention wherever they stand: on scores, windows, pixels or merged heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from attention_models import BOOLEAN, INPUTS, LOWEST, model, optimized, scores_to_result
from rewriting import rewritten

from ortfuse.analysis.facts import Facts
from ortfuse.verification import verify


def scored(body: str, **constants: Any) -> ir.Model:
    """Attention with scores `qk` and a boolean `keep`, whose body computes `masked` of them."""
    inputs = f"{INPUTS}, bool[b,1,1,t] keep"
    return model(f"qk = MatMul(q, kt) {body} {scores_to_result()}", inputs, **constants)


@pytest.mark.parametrize(
    "body",
    [
        f"{BOOLEAN} sum = Add(qk, mask) masked = Max(sum, lowest)",
        f"{BOOLEAN} sum = Add(qk, mask) small = Mul(sum, half) end = Constant<value_ints = [-1]>() m = ReduceMax(small, end) s = Sub(small, m) masked = Div(s, half)",
        "hide = Not(keep) shape = Shape(qk) wide = Expand(hide, shape) masked = Where(wide, filler, qk)",
    ],
    ids=["floored", "shifted", "expanded condition"],
)
def test_scores_however_they_are_masked(body: str) -> None:
    made = optimized(scored(body, filler=LOWEST, lowest=LOWEST))
    assert "Attention" in made


@pytest.mark.parametrize("mask", ["b,n,1,4,6", "1,n,1,4,6", "1,1,2,1,6", "b,1,2,4,6", "4,6"])
def test_windows_with_an_axis_of_their_own_are_of_the_batch(mask: str) -> None:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 23]> g (float[b,n,2,4,8] q, float[b,n,2,6,8] k, float[b,n,2,6,8] v, bool[{mask}] keep)
        => (float[b,n,2,4,8] out) <float zero = {{0.0}}, float filler = {{-1e9}}> {{ kt = Transpose<perm = [0, 1, 2, 4, 3]>(k)
        qk = MatMul(q, kt) mask = Where(keep, zero, filler) masked = Add(qk, mask) p = Softmax<axis = -1>(masked)
        out = MatMul(p, v) }}"""
    )
    m = ir.from_proto(proto)
    result = rewritten(m, "fuse.attention")
    assert verify(m, result).ok
    assert "Attention" in [node.op_type for node in result.graph]


@pytest.mark.parametrize("mask", ["", "b,2,1,4,6", "1,1,1,1,6", "b,1,1,4,6", "1,4,6"])
def test_a_single_window_behind_the_heads_leaves_heads_as_they_are(mask: str) -> None:
    scores = "mask = Where(keep, zero, filler) masked = Add(qk, mask)" if mask else ""
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 23]> g (float[b,4,1,2,8] x, float[b,6,1,2,8] k, float[b,6,1,2,8] v
        {f", bool[{mask}] keep" if mask else ""}) => (float[b,2,1,4,8] out) <float zero = {{0.0}}, float filler = {{-1e9}},
        float half = {{0.5}}> {{ kt = Transpose<perm = [0, 3, 2, 4, 1]>(k) q = Transpose<perm = [0, 3, 2, 1, 4]>(x)
        values = Transpose<perm = [0, 3, 2, 1, 4]>(v) scaled = Mul(q, half) qk = MatMul(scaled, kt) {scores}
        p = Softmax<axis = -1>({"masked" if mask else "qk"}) out = MatMul(p, values) }}"""
    )
    m = ir.from_proto(proto)
    result = rewritten(m, "fuse.attention")
    assert verify(m, result).ok
    made = next(node for node in result.graph if node.op_type == "Attention")
    shapes = [Facts(result).shape(value) for value in made.inputs[:3] if value is not None]
    assert [shape[1] for shape in shapes if shape is not None] == [2, 2, 2]


SPLIT_OFF = """keys = Reshape(k, shape) kt = Transpose<perm = [0, 2, 3, 1]>(keys) queries = Reshape(q, shape)
    qt = Transpose<perm = [0, 2, 1, 3]>(queries) values = Reshape(v, shape) vt = Transpose<perm = [0, 2, 1, 3]>(values)"""


def test_a_mask_of_any_numbers_for_all_queries_is_given_to_the_kernel_that_has_a_plain_softmax() -> None:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 17]> g (float[b,s,8] q, float[b,t,8] k, float[b,t,8] v, int64[b,t] keep)
        => (float[b,s,8] out) <int64[4] shape = {{0, 0, 2, 4}}, int64[3] merged = {{0, 0, 8}}, int64[2] axes = {{1, 2}},
        float one = {{1.0}}, float filler = {{-3.4028234663852886e38}}> {{ {SPLIT_OFF} qk = MatMul(qt, kt)
        kept = Cast<to = 1>(keep) four = Unsqueeze(kept, axes) hidden = Sub(one, four) mask = Mul(hidden, filler)
        masked = Add(qk, mask) p = Softmax<axis = -1>(masked) o = MatMul(p, vt) ot = Transpose<perm = [0, 2, 1, 3]>(o)
        out = Reshape(ot, merged) }}"""
    )
    made = optimized(ir.from_proto(proto))
    assert "MultiHeadAttention" in made
    assert "Softmax" not in made


WINDOWS = """<ir_version: 10, opset_import: ["": 23]>
g (float[b,4,36] q, float[b,4,36] k, float[b,4,36] v, float[1,3,1,4,4] mask) => (float[n,2,4,6] out)
<int64[4] split = {-1, 4, 2, 6}, int64[5] windows = {-1, 3, 2, 4, 4}, int64[4] merged = {-1, 2, 4, 4}> {
    q4 = Reshape(q, split) k4 = Reshape(k, split) v4 = Reshape(v, split) qh = Transpose<perm = [0, 2, 1, 3]>(q4)
    kt = Transpose<perm = [0, 2, 3, 1]>(k4) vh = Transpose<perm = [0, 2, 1, 3]>(v4) qk = MatMul(qh, kt)
    w = Reshape(qk, windows) once = Add(w, mask) twice = Add(mask, once) m = Reshape(twice, merged)
    p = Softmax<axis = -1>(m) out = MatMul(p, vh)
}"""


def test_a_mask_for_each_window_is_one_of_the_batch() -> None:
    m = ir.from_onnx_text(WINDOWS)
    values = m.graph.inputs[-1]
    levels = np.where(np.random.default_rng(0).random((1, 3, 1, 4, 4)) < 0.5, 0, -100).astype(np.float32)
    constant = ir.Value(name="mask", const_value=ir.Tensor(levels), shape=values.shape, type=values.type)
    values.replace_all_uses_with(constant)
    m.graph.inputs.pop()
    m.graph.register_initializer(constant)
    kinds = optimized(m)
    assert kinds.count("Attention") == 1
    assert "Softmax" not in kinds


@pytest.mark.parametrize("batch", ["b", "6"])
def test_masks_of_rows_and_columns_are_masks_of_pixels(batch: str) -> None:
    m = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 23]>
    g (float[{batch},12,8] q, float[{batch},12,8] k, float[{batch},12,6] v, float[{batch},3,4,3] rows, float[{batch},3,4,4] columns)
      => (float[{batch},12,6] out)
    <int64[5] grid = {{-1, 3, 4, 3, 4}}, int64[3] flat = {{-1, 12, 12}}, int64[1] four = {{4}}, int64[1] three = {{3}}> {{
        kt = Transpose<perm = [0, 2, 1]>(k) qk = MatMul(q, kt) w = Reshape(qk, grid)
        r0 = Relu(rows) c0 = Relu(columns) r = Unsqueeze(r0, four) c = Unsqueeze(c0, three) once = Add(w, r) twice = Add(once, c)
        m = Reshape(twice, flat) p = Softmax<axis = -1>(m) out = MatMul(p, v)
    }}""")
    kinds = optimized(m)
    assert kinds.count("Attention") == 1
    assert "Softmax" not in kinds


@pytest.mark.parametrize("batch", ["b", "3"])
def test_masks_of_rows_and_columns_are_those_of_heads_that_are_merged_with_the_batch(batch: str) -> None:
    """As ViTDet and SAM are written: of one tensor with queries, keys and values, whose heads become part of the batch."""
    m = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 20]>
    g (float[{batch},12,24] x, float[3,3,4] rows, float[4,4,4] columns) => (float[{batch},12,8] out)
    <int64[5] apart = {{-1, 12, 3, 2, 4}}, int64[3] heads = {{-1, 12, 4}}, int64[4] image = {{-1, 3, 4, 4}}, float half = {{0.5}},
     int64[5] grid = {{-1, 3, 4, 3, 4}}, int64[3] flat = {{-1, 12, 12}}, int64[1] four = {{4}}, int64[1] three = {{3}},
     int64 i0 = {{0}}, int64 i1 = {{1}}, int64 i2 = {{2}}, int64[4] split = {{-1, 2, 12, 4}}, int64[3] whole = {{-1, 12, 8}}> {{
        r = Reshape(x, apart) t = Transpose<perm = [2, 0, 3, 1, 4]>(r)
        q0 = Gather(t, i0) k0 = Gather(t, i1) v0 = Gather(t, i2)
        q = Reshape(q0, heads) k = Reshape(k0, heads) v = Reshape(v0, heads) u = Reshape(q, image)
        h = Einsum<equation = "bhwc,hkc->bhwk">(u, rows) w = Einsum<equation = "bhwc,wkc->bhwk">(u, columns)
        s = Mul(q, half) kt = Transpose<perm = [0, 2, 1]>(k) qk = MatMul(s, kt) g = Reshape(qk, grid)
        h1 = Unsqueeze(h, four) w1 = Unsqueeze(w, three) once = Add(g, h1) twice = Add(once, w1)
        m = Reshape(twice, flat) p = Softmax<axis = -1>(m) o = MatMul(p, v)
        o4 = Reshape(o, split) ot = Transpose<perm = [0, 2, 1, 3]>(o4) out = Reshape(ot, whole)
    }}""")
    kinds = optimized(m)
    assert kinds.count("Attention") == 1
    assert "Softmax" not in kinds


@pytest.mark.parametrize(
    "zeros", ["n = Shape(soft) zeros = ConstantOfShape(n)", "n = Shape(soft) zeros = Expand(zero, n)"]
)
def test_the_guard_may_put_a_tensor_of_zeros_in_place_of_nan(zeros: str) -> None:
    body = f"{BOOLEAN} qk = MatMul(q, kt) scaled = Mul(qk, half) masked = Add(scaled, mask) soft = Softmax<axis = -1>(masked) "
    body += f"isnan = IsNaN(soft) {zeros} p = Where(isnan, zeros, soft) out = MatMul(p, v)"
    assert "Attention" in optimized(model(body, f"{INPUTS}, bool[b,1,s,t] keep", filler=-np.inf))


@pytest.mark.parametrize("choice", ["Where(keep, qk, filler)", "Where(hidden, filler, qk)"])
def test_scores_of_a_head_of_its_own_are_masked_by_a_choice(choice: str) -> None:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 23]> g (float[b,s,8] q, float[b,t,8] k, float[b,t,8] v, bool[s,t] keep)
        => (float[b,s,8] out) <float filler = {{-3e38}}> {{ kt = Transpose<perm = [0, 2, 1]>(k) product = MatMul(q, kt) hidden = Not(keep)
        scale = Constant<value_float = 0.5>() qk = Mul(product, scale) masked = {choice}
        p = Softmax<axis = -1>(masked) out = MatMul(p, v) }}"""
    )
    m = ir.from_proto(proto)
    result = rewritten(m, "fuse.attention")
    assert verify(m, result).ok
    assert "Attention" in [node.op_type for node in result.graph]


def test_a_choice_that_repeats_the_scores_is_no_mask() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 23]> g (float[1,s,8] q, float[1,t,8] k, float[b,t,8] v, bool[b,s,t] keep)
        => (float[b,s,8] out) <float filler = {-3e38}> { kt = Transpose<perm = [0, 2, 1]>(k) qk = MatMul(q, kt)
        masked = Where(keep, qk, filler) p = Softmax<axis = -1>(masked) out = MatMul(p, v) }"""
    )
    assert "Where" in [node.op_type for node in rewritten(ir.from_proto(proto), "fuse.attention").graph]
