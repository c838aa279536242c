"""Group normalisation, layer normalisation over channels and as TensorFlow writes it, and swish by tanh."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from rewriting import ops, parse, rewritten, same


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 3 + 1


@pytest.mark.parametrize(("opset", "size"), [(18, 2), (21, 6)])
def test_group_normalisation_is_an_instance_normalisation(opset: int, size: int) -> None:
    """Before opset 21 scale and bias are those of the groups."""
    vector = ", ".join(str(0.5 * number + 1) for number in range(size))
    text = f"""<ir_version: 9, opset_import: ["": {opset}]> g (float[n,6,4,s] x) => (float[n,6,4,s] y)
        <float[{size}] w = {{{vector}}}, float[{size}] b = {{{vector}}}, float[6,1,1,1] k = {{1, 1, 1, 1, 1, 1}}>
        {{ c = Conv<group=6>(x, k) y = GroupNormalization<num_groups=2, epsilon=0.01>(c, w, b) }}"""
    original = ir.from_onnx_text(text)  # the checker refuses opset 18
    result = rewritten(original, "fuse.normalization")
    assert ops(result) == "Conv Reshape InstanceNormalization Shape Reshape BatchNormalization"
    same(original, result, {"x": numbers(2, 6, 4, 5)})


@pytest.mark.parametrize(("opset", "size"), [(18, 2), (21, 6)])
def test_group_normalisation_of_what_may_be_without_pixels_is_what_it_computes(opset: int, size: int) -> None:
    vector = ", ".join(str(0.5 * number + 1) for number in range(size))
    text = f"""<ir_version: 9, opset_import: ["": {opset}]> g (float[n,6,r,s] x) => (float[n,6,r,s] y)
        <float[{size}] w = {{{vector}}}, float[{size}] b = {{{vector}}}>
        {{ y = GroupNormalization<num_groups=2, epsilon=0.01>(x, w, b) }}"""
    original = ir.from_onnx_text(text)  # the checker refuses opset 18
    result = rewritten(original, "fuse.normalization")
    assert ops(result) == "Reshape ReduceMean Sub Mul ReduceMean Add Sqrt Div Shape Reshape BatchNormalization"
    for shape in ((2, 6, 4, 5), (1, 6, 1, 1)):
        same(original, result, {"x": numbers(*shape)})


@pytest.mark.parametrize(("body", "fires"), [("c = Relu(x)", False), ("z = Conv<group=2>(x, k) c = Relu(z)", True)])
def test_an_image_that_may_have_no_pixels_is_left_alone(body: str, fires: bool) -> None:
    """The runtime's InstanceNormalization ends the process on one without; a convolution fails before."""
    original = parse(f"""<ir_version: 9, opset_import: ["": 18]> g (float[n,2,h,w] x) => (float[n,2,i,j] y)
        <float[2,1,1,1] k = {{1, 1}}, int64[2] axes = {{2, 3}}, float epsilon = {{0.001}}>
        {{ {body} m = ReduceMean(c, axes) d = Sub(c, m) q = Mul(d, d) v = ReduceMean(q, axes) e = Add(v, epsilon) r = Sqrt(e)
           y = Div(d, r) }}""")
    result = rewritten(original, "fuse.normalization")
    assert ("InstanceNormalization" in ops(result)) is fires
    for shape in ((2, 2, 3, 4), (0, 2, 3, 4), *([] if fires else [(2, 2, 0, 4)])):
        same(original, result, {"x": numbers(*shape)})


def test_group_normalisation_with_computed_scales_is_left_alone() -> None:
    original = parse("""<ir_version: 9, opset_import: ["": 21]> g (float[n,6,4] x, float[6] w, float[6] b) => (float[n,6,4] y)
        { y = GroupNormalization<num_groups=2>(x, w, b) }""")
    assert ops(rewritten(original, "fuse.normalization")) == "GroupNormalization"


CHANNELS_FIRST = """m = ReduceMean<keepdims=1>(x, axis) d = Sub(x, m) q = Mul(d, d) v = ReduceMean<keepdims=1>(q, axis)
    e = Add(v, epsilon) r = Sqrt(e) n = Div(d, r) p = Mul(w, n) y = Add(p, b)"""


@pytest.mark.parametrize(("axis", "found"), [(1, "Transpose LayerNormalization Transpose"), (2, "")])
def test_the_normalisation_of_channels_is_one_between_transposes(axis: int, found: str) -> None:
    original = parse(f"""<ir_version: 9, opset_import: ["": 20]> g (float[n,3,4,s] x) => (float[n,3,4,s] y)
        <int64[1] axis = {{{axis}}}, float epsilon = {{0.001}}, float[3,1,1] w = {{1.0, 2.0, 3.0}}, float[3,1,1] b = {{0.5, 0.0, 1.0}}>
        {{ {CHANNELS_FIRST} }}""")
    result = rewritten(original, "fuse.normalization")
    assert ops(result) == found or (not found and "LayerNormalization" not in ops(result))
    same(original, result, {"x": numbers(2, 3, 4, 5)})


TENSORFLOW = {
    "s = Sqrt(e) r = Reciprocal(s) f = Mul(r, w) xf = Mul(x, f) mf = Mul(m, f) k = Sub(b, mf) y = Add(xf, k)": True,
    "s = Sqrt(e) f = Div(w, s) xf = Mul(f, x) mf = Mul(f, m) k = Sub(b, mf) y = Add(k, xf)": True,
    "s = Sqrt(e) f = Div(w, s) xf = Mul(f, x) mf = Mul(f, m) k = Sub(mf, b) y = Add(k, xf)": False,
    "s = Sqrt(e) f = Div(rw, s) xf = Mul(f, x) o = Neg(m) mf = Mul(f, o) k = Add(rb, mf) y = Add(k, xf)": True,
    "s = Sqrt(e) f = Div(column, s) xf = Mul(f, x) mf = Mul(f, m) k = Sub(rb, mf) y = Add(k, xf)": False,
    "s = Sqrt(e) f = Div(w, s) g = Div(b, s) xf = Mul(f, x) mf = Mul(g, m) k = Sub(b, mf) y = Add(k, xf)": False,
}


@pytest.mark.parametrize("body", TENSORFLOW)
def test_layer_normalisation_as_tensorflow_writes_it(body: str) -> None:
    original = parse(f"""<ir_version: 9, opset_import: ["": 17]> g (float[n,s,4] x) => (float[n,s,4] y)
        <float[4] w = {{1.0, 2.0, 3.0, 4.0}}, float[4] b = {{0.5, 0.0, 1.0, -1.0}}, float epsilon = {{0.001}},
         float[1,1,4] rw = {{1.0, 2.0, 3.0, 4.0}}, float[1,1,4] rb = {{0.5, 0.0, 1.0, -1.0}}, float[1,3,1] column = {{1.0, 2.0, 3.0}}> {{
            m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) e = Add(v, epsilon) {body} }}""")
    result = rewritten(original, "fuse.normalization")
    assert (ops(result) == "LayerNormalization") == TENSORFLOW[body]
    same(original, result, {"x": numbers(2, 3, 4)})


def test_swish_spelled_with_tanh() -> None:
    original = parse("""<ir_version: 9, opset_import: ["": 17]> g (float[n] x) => (float[n] y)
        <float half = {0.5}, float one = {1.0}>
        { h = Mul(x, half) t = Tanh(h) o = Add(t, one) y = Mul(h, o) }""")
    result = rewritten(original, "fuse.activation")
    assert ops(result) == "QuickGelu"
    same(original, result, {"x": np.array([np.nan, np.inf, 0, -0.0, 1, -1, 30, -30, 1e30], np.float32)})


KERAS = {
    "last": ("float[n,4,5,6] x", "0, 4, 5, 2, 3", "0, 4, 5, 6", "1, 2, 4", "1, 1, 1, 2, 3"),
    "second": ("float[n,6,4,5] x", "0, 2, 3, 4, 5", "0, 6, 4, 5", "2, 3, 4", "1, 2, 3, 1, 1"),
    "not in groups": ("float[n,4,5,6] x", "0, 4, 5, 2, 3", "0, 4, 5, 6", "1, 2, 3", "1, 1, 1, 2, 3"),
}
"""The channels of images, their groups, the way back, the axes of the means, and the axes of scale and bias."""


@pytest.mark.parametrize("where", KERAS)
def test_group_normalisation_as_keras_writes_it(where: str) -> None:
    image, groups, back, axes, vector = KERAS[where]
    shape = ", ".join(vector.split(", "))
    original = parse(f"""<ir_version: 9, opset_import: ["": 18]> g ({image}) => (float[i,j,k,l] y)
        <int64[5] groups = {{{groups}}}, int64[4] back = {{{back}}}, int64[3] axes = {{{axes}}}, float epsilon = {{0.001}},
         float[{shape}] w = {{1.0, 2.0, 3.0, 0.5, -1.0, 1.5}}, float[{shape}] b = {{0.5, 0.0, 1.0, -1.0, 2.0, 3.0}}>
        {{ s = Reshape(x, groups) m = ReduceMean(s, axes) o = Neg(m) d = Sub(s, m) q = Mul(d, d) v = ReduceMean(q, axes)
           e = Add(v, epsilon) r = Sqrt(e) i = Reciprocal(r) f = Mul(i, w) k = Mul(o, f) t = Add(k, b) p = Mul(s, f)
           z = Add(p, t) y = Reshape(z, back) }}""")
    result = rewritten(original, "fuse.normalization")
    whole = ["Reshape", "InstanceNormalization", "Shape", "Reshape", "BatchNormalization"]
    turned = ["Transpose", *whole, "Transpose"]
    found = {"last": turned, "second": whole}.get(where)
    assert ops(result).split() == found or (found is None and "InstanceNormalization" not in ops(result))
    same(original, result, {"x": numbers(2, *(int(size) for size in image[8:-3].split(",")))})


LAST = {"1, 2": "Transpose InstanceNormalization Transpose", "0, 1": "", "1, 2, 3": ""}


@pytest.mark.parametrize("axes", LAST)
def test_instance_normalisation_with_the_channels_last(axes: str) -> None:
    count = axes.count(",") + 1
    original = parse(f"""<ir_version: 9, opset_import: ["": 18]> g (float[n,4,5,3] x) => (float[i,j,k,l] y)
        <int64[{count}] axes = {{{axes}}}, float epsilon = {{0.001}}, float[3] w = {{1.0, 2.0, 3.0}}, float[3] b = {{0.5, 0.0, 1.0}}>
        {{ m = ReduceMean(x, axes) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, axes) e = Add(v, epsilon) r = Sqrt(e)
           f = Div(w, r) k = Mul(m, f) t = Sub(b, k) p = Mul(x, f) y = Add(p, t) }}""")
    result = rewritten(original, "fuse.normalization")
    assert ops(result) == LAST[axes] or (not LAST[axes] and "InstanceNormalization" not in ops(result))
    same(original, result, {"x": numbers(2, 4, 5, 3)})
