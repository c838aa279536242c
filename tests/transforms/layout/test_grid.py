"""Operators between two Transposes: never more of these are left than the runtime leaves by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphs import run
from small_models import proto_of
from test_layout import THROUGH, X, text_of
from test_networks import executed_transposes

import ortfuse

MORE = {
    "resize linear": 'r = Resize<mode = "linear">(t, , scl)',
    "resize cubic": 'r = Resize<mode = "cubic">(t, , scl)',
    "maxpool": "r = MaxPool<kernel_shape=[2,2]>(t)",
    "global": "a = GlobalAveragePool(t) r = Sub(t, a)",
    "BatchNormalization": "r = BatchNormalization(t, v4, v4, v4, v4)",
    "InstanceNormalization": "r = InstanceNormalization(t, v4, v4)",
    "LRN": "r = LRN<size=3>(t)",
    "topk": "r, i = TopK<axis=2>(t, two)",
    "argmin": "a = ArgMin<axis=1>(t) c = Cast<to=1>(a) r = Add(t, c)",
    "DepthToSpace": "a = Concat<axis=1>(t,t) q = DepthToSpace<blocksize=2>(a) r = Relu(q)",
    "SpaceToDepth": "a = Pad(t, even) r = SpaceToDepth<blocksize=2>(a)",
    "gridsample": "r = GridSample(t, grid)",
    "prelu": "r = PRelu(t, f3)",
    "where": "c = Greater(t, one) r = Where(c, t, f3)",
    "pow": "r = Pow(t, two_)",
    "mean": "r = Mean(t, full)",
    "trilu": "r = Trilu(t)",
    "MeanVarianceNormalization": "r = MeanVarianceNormalization(t)",
    "quantised and back": "q = QuantizeLinear(t, one, zero8) r = DequantizeLinear(q, one, zero8)",
    "quantised by channels and back": "q = QuantizeLinear<axis=3>(t, s3, z3) r = DequantizeLinear<axis=3>(q, s3, z3)",
    "gathernd": "r = GatherND(t, gnd)",
    "scatter": "r = ScatterElements<axis=3>(t, idx, upd)",
    "scatternd": "r = ScatterND(t, sidx, supd)",
    "matmul const": "r = MatMul(t, w32)",
    "matmul batch": "u = Transpose<perm=[0,1,3,2]>(t) r = MatMul(u, t)",
    "matmul pair": "r = MatMul(t, w4)",
    "einsum": 'r = Einsum<equation="nhwc,cd->nhwd">(t, w32)',
    "layernorm": "r = LayerNormalization(t, v3)",
    "reshape merge": "m = Reshape(t, merged) s = Softmax<axis=1>(m) r = Reshape(s, apart)",
    "flatten": "m = Flatten<axis=3>(t) s = Relu(m) r = Reshape(s, apartb)",
    "expand shape": "s = Shape(full2) r = Expand(t, s)",
    "Unsqueeze": "m = Unsqueeze(t, last) a = Relu(m) r = Squeeze(a, last)",
    "split concat": "a, b, c = Split<axis=3, num_outputs=3>(t) r = Concat<axis=3>(b, a, c)",
    "LpNormalization": "r = LpNormalization<axis=3>(t)",
    "hardmax": "r = Hardmax<axis=2>(t)",
    "reduce l2": "a = ReduceL2<keepdims=1>(t, last) r = Div(t, a)",
    "reduce chain": "a = ReduceMean<keepdims=0>(t, inner) b = Reshape(a, nc) r = Mul(t, b)",
    "compress none": "m = Compress(t, maskall) r = Reshape(m, apartc)",
    "gelu": "r = Gelu(t)",
    "clip": "r = Clip(t, lo, hi)",
    "mod": "r = Mod<fmod=1>(t, one)",
    "max3": "a = Relu(t) r = Max(t, a, f3)",
    "isnan": "b = IsNaN(t) r = Where(b, one, t)",
    "pools": "p = LpPool<kernel_shape=[2,2]>(t) r = GlobalMaxPool(p)",
    "truth values": "c = Greater(t, one) d = Less(t, f3) e = And(c, d) f = Xor(e, d) r = Where(f, t, one)",
    "reversed in part": "l = Identity(rows) r = ReverseSequence<time_axis=1, batch_axis=0>(t, l)",
    "indices of two axes": "g = Gather<axis=1>(t, second) r = Squeeze(g, two)",
    "scattered and added": 'r = ScatterElements<axis=2, reduction="add">(t, idx, upd)',
    "cropped": "r = CenterCropPad<axes=[1,2]>(t, crop)",
    "reflected": 'r = Pad<mode="reflect">(t, border)',
    "backwards": "r = Slice(t, behind, before, last, behind)",
    "three parts": "a, b, c = Split<axis=3, num_outputs=3>(t) d = Add(a, b) r = Mul(d, c)",
    "einsum sum": 'a = Einsum<equation="nhwc->nc">(t) b = Reshape(a, nc) r = Mul(t, b)',
    "matmul left": "r = MatMul(w55, t)",
    "rows of a product": "m = Reshape(t, flat3) g = MatMul(m, w32) r = Reshape(g, back2)",
    "a branch": "p = Identity(yes) r = If<then_branch = th () => (float[a,b,c,d] o1) { o1 = Relu(t) }, "
    "else_branch = el () => (float[a,b,c,d] o2) { o2 = Neg(t) }>(p)",
    "resized in part": "r = Resize<axes=[1,2]>(t, , twice)",
    "an axis split by one": "m = Reshape(t, c31) a = ReduceSum<keepdims=0>(m, last) r = Relu(a)",
    "an axis repeated and averaged": "u = Unsqueeze(t, two) v = Expand(u, w5) s = ReduceMean<keepdims=0>(v, two) r = Relu(s)",
    "log of sums": "a = ReduceLogSumExp<keepdims=1>(t, last) r = Sub(t, a)",
}
"""Bodies on images with channels last, as in `THROUGH`; of some, the Transposes have to stay."""


def _floats(name: str, *shape: int) -> str:
    numbers = np.random.default_rng(len(name)).random(shape).ravel() + 0.5
    return f"float{list(shape)} {name} = {{{', '.join(f'{number:.3f}' for number in numbers)}}}"


def _integers(name: str, *shape: int) -> str:
    numbers = np.random.default_rng(0).integers(0, 3, shape).ravel()
    return f"int64{list(shape)} {name} = {{{', '.join(map(str, numbers))}}}"


CONSTANTS = ", ".join([
    _floats("v4", 4), _floats("v3", 3), _floats("w32", 3, 2), _floats("w4", 1, 4, 3, 3), _floats("grid", 2, 4, 5, 2),
    _floats("s3", 3), _floats("upd", 2, 4, 5, 3), _floats("supd", 1, 4, 5, 3), _floats("full2", 2, 4, 5, 3),
    _integers("idx", 2, 4, 5, 3), f"bool[120] maskall = {{{', '.join(['1'] * 120)}}}",
    "uint8 zero8 = {3}", "uint8[3] z3 = {1, 2, 3}", "float[4] scl = {1.0, 2.0, 2.0, 1.0}", "float two_ = {2.0}",
    "int64[8] even = {0, 0, 0, 0, 0, 0, 1, 1}", "int64[2, 1] gnd = {1, 0}", "int64[1, 1] sidx = {1}",
    "int64[4] apartb = {-1, 4, 5, 3}", "int64[4] apartc = {-1, 4, 5, 3}", "int64[4] nc = {-1, 1, 1, 3}",
    "float lo = {0.1}", "float hi = {0.8}", _floats("w55", 5, 5), "int64[2] rows = {1, 2}", "int64[1, 1] second = {1}",
    "int64[2] crop = {3, 4}", "int64[8] border = {0, 1, 1, 0, 0, 1, 0, 0}", "int64[1] behind = {-1}", "int64[1] before = {-100}",
    "int64[2] flat3 = {-1, 3}", "int64[4] back2 = {-1, 4, 5, 2}", "bool yes = {1}", "float[2] twice = {2.0, 2.0}",
    "int64[5] c31 = {0, 0, 0, 3, 1}", "int64[5] w5 = {1, 1, 2, 1, 1}",
])  # fmt: skip


@pytest.mark.parametrize("case", [*THROUGH, *MORE])
def test_no_more_is_left_than_by_the_runtime(case: str, tmp_path: Path) -> None:
    text = text_of({**THROUGH, **MORE}[case]).replace("int64[2] wide2", f"{CONSTANTS}, int64[2] wide2")
    original = proto_of(text)
    before = run(original, X)
    result = ortfuse.optimize(original).model
    assert executed_transposes(result, tmp_path) <= executed_transposes(original, tmp_path)
    for one, other in zip(before, run(result, X), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
