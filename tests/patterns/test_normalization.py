"""Normalisations and softmax: which spellings are found, which are not, and rows of zeros, infinities and NaN."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from rewriting import both, ops, parse, rewritten, same

import ortfuse

NORMALIZATION = "fuse.normalization"

ROWS = np.array(
    [
        [0, 1, 2, 3],
        [0, 0, 0, 0],
        [np.inf, 1, 2, 3],
        [-np.inf, 1, 2, 3],
        [-np.inf] * 4,
        [np.nan, 1, 2, 3],
        [1, 2, 3, np.nan],
        [0, -200, 1, 2],
        [100, 100, 0, 1],
        [1e10, 0, 1, -1e10],
        [1e-12, -1e-12, 0, 1e-12],
    ],
    np.float32,
)


def rows(body: str, opset: int = 20, dtype: str = "float") -> ir.Model:
    """A model of x [n, 4] with y of the same shape."""
    return parse(
        f"""<ir_version: 9, opset_import: ["": {opset}]> g ({dtype}[n,4] x) => ({dtype}[n,4] y)
        <int64[1] last = {{-1}}, int64[1] one = {{1}}, int64[1] first = {{0}}, {dtype} eps = {{0.001}}, {dtype} minus = {{-0.5}},
         {dtype}[4] w = {{1.5, 0.5, -1.0, 2.0}}, {dtype}[4] o = {{1.0, 1.0, 1.0, 1.0}}, {dtype}[4] b = {{0.1, 0.2, 0.3, -0.4}}, {dtype} half = {{0.5}},
         {dtype}[4] nothing = {{0.0, 0.0, 0.0, 0.0}}> {{ {body} }}"""
    )


SOFTMAX = {
    "m = ReduceMax(x, last) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, last) y = Div(e, s)": "Softmax",
    "m = ReduceMax(x, last) d = Sub(x, m) y = Softmax(d)": "Softmax",
    "z = Mul(x, half) m = ReduceMax(z, last) d = Sub(z, m) e = Div(d, half) y = Softmax(e)": "Softmax",
    "m = ReduceMax(x, last) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, one) r = Reciprocal(s) y = Mul(r, e)": "Softmax",
    "m = ReduceMax(x, last) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, last) l = Log(s) y = Sub(d, l)": "LogSoftmax",
    "m = ReduceMax(x, last) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, last) l = Log(s) k = Add(m, l) y = Sub(x, k)": "LogSoftmax",
    "l = LogSoftmax(x) y = Exp(l)": "Softmax",
}  # fmt: skip


def with_old_max(body: str) -> str:
    """ReduceMax with the axes as an attribute, as before opset 18."""
    return re.sub(r"ReduceMax\((\w), last\)", r"ReduceMax<axes = [-1]>(\1)", body)


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize("body", SOFTMAX)
def test_softmax_spelling_becomes_the_operator_and_stays_right_at_special_values(body: str, opset: int) -> None:
    original = rows(body if opset >= 18 else with_old_max(body), opset)
    result = rewritten(original, NORMALIZATION)
    assert ops(result) == SOFTMAX[body]
    same(original, result, {"x": ROWS})


SOFTMAX_LEFT_ALONE = {
    "the shift is missing": "e = Exp(x) s = ReduceSum(e, last) y = Div(e, s)",
    "another axis": ("m = ReduceMax(x, first) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, first) y = Div(e, s)"),
    "two axes": "m = ReduceMax(x, last) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, first) y = Div(e, s)",
    "the shift is another extreme": "m = ReduceMin(x, last) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, last) y = Div(e, s)",
    "a softmax that underflows has an infinite logarithm": "s = Softmax(x) y = Log(s)",
    "infinity minus infinity in one place only": "s = ReduceLogSumExp(x, last) y = Sub(x, s)",
    "the denominator has an epsilon": (
        "m = ReduceMax(x, last) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, last) t = Add(s, eps) y = Div(e, t)"
    ),
}


@pytest.mark.parametrize("reason", SOFTMAX_LEFT_ALONE)
def test_softmax_near_miss_is_left_alone(reason: str) -> None:
    original = rows(SOFTMAX_LEFT_ALONE[reason])
    assert ops(rewritten(original, NORMALIZATION)) == ops(original)


def test_the_logarithm_of_softmax_is_fused_when_other_results_are_allowed() -> None:
    original = rows("s = Softmax(x) y = Log(s)")
    result = rewritten(original, NORMALIZATION, approximate=True)
    assert ops(result) == "LogSoftmax"
    old, new = both(original, result, {"x": ROWS[7:8]})
    assert np.isneginf(old[0, 1])
    assert new[0, 1] == pytest.approx(-202.4076, abs=1e-3)


@pytest.mark.parametrize("zeros, expected", [("nothing", "LayerNormalization"), ("b", "LayerNormalization Mul Add")])
def test_a_scale_behind_a_normalisation_with_neither_scale_nor_bias_is_its_own(zeros: str, expected: str) -> None:
    original = rows(f"l = LayerNormalization(x, o, {zeros}) s = Mul(l, w) y = Add(s, b)")
    result = rewritten(original, NORMALIZATION)
    assert ops(result) == expected
    same(original, result, {"x": ROWS[:2]})


SUM = "e = Exp(d) s = ReduceSum(e, last) l = Log(s)"
GUARDED = f"m = ReduceMax(x, last) i = IsInf(m) k = Where(i, none, m) d = Sub(x, k) {SUM}"
LOG_SUM_EXP = {
    f"{GUARDED} y = Add(l, k)": "ReduceLogSumExp",
    f"{GUARDED.replace('i = IsInf(m)', 'a = Abs(m) i = Equal(a, inf)')} y = Add(k, l)": "ReduceLogSumExp",
    f"{GUARDED.replace('(e, last)', '<keepdims=0>(e, last)')} z = Squeeze(k, last) y = Add(l, z)": "ReduceLogSumExp",
    f"m = ReduceMax(x, last) d = Sub(x, m) {SUM} y = Add(l, m)": "ReduceMax Sub Exp ReduceSum Log Add",
    f"{GUARDED.replace('none, m', 'm, m')} y = Add(l, k)": "ReduceMax IsInf Where Sub Exp ReduceSum Log Add",
    f"{GUARDED.replace('i = IsInf(m)', 'a = Abs(m) i = Equal(a, large)')} y = Add(k, l)": (
        "ReduceMax Abs Equal Where Sub Exp ReduceSum Log Add"
    ),
}


@pytest.mark.parametrize("body", LOG_SUM_EXP)
def test_the_logarithm_of_a_sum_of_exponentials(body: str) -> None:
    original = parse(
        f"""<ir_version: 9, opset_import: ["": 20]> g (float[n,4] x) => (float y)
        <int64[1] last = {{-1}}, float none = {{0}}, float large = {{100}}, float inf = {{inf}}> {{ {body} }}"""
    )
    result = rewritten(original, NORMALIZATION)
    assert ops(result) == LOG_SUM_EXP[body]
    same(original, result, {"x": ROWS})


LAYER = {
    "m = ReduceMean(x, last) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, last) a = Add(v, eps) p = Pow(a, minus)"
    " n = Mul(d, p) s = Mul(n, w) y = Add(s, b)": "LayerNormalization",
    "m = ReduceMean(x, last) d = Sub(x, m) m2 = ReduceMean(x, one) d2 = Sub(x, m2) q = Mul(d2, d2) v = ReduceMean(q, one)"
    " a = Add(v, eps) r = Sqrt(a) i = Reciprocal(r) n = Mul(d, i) s = Mul(n, w) y = Add(s, b)": "LayerNormalization",
    "q = Mul(x, x) v = ReduceMean(q, last) a = Add(v, eps) p = Pow(a, minus) n = Mul(x, p) y = Mul(w, n)": "RMSNormalization",
    "q = Mul(x, x) v = ReduceSum(q, last) a = Add(v, eps) r = Sqrt(a) y = Div(x, r)": "RMSNormalization",
    "q = Mul(x, x) v = ReduceMean<noop_with_empty_axes=1>(q, last) a = Add(v, eps) r = Sqrt(a) i = Reciprocal(r) k = Mul(i, w)"
    " y = Mul(x, k)": "RMSNormalization",
    "q = Mul(x, x) v = ReduceSum(q, last) a = Add(v, eps) r = Sqrt(a) n = Div(x, r) s = Mul(n, half) y = Mul(s, w)": (
        "RMSNormalization Mul"
    ),
}


@pytest.mark.parametrize("body", LAYER)
def test_layer_spelling_becomes_the_operator(body: str) -> None:
    original = rows(body)
    result = rewritten(original, NORMALIZATION)
    assert ops(result) == LAYER[body]
    same(original, result, {"x": ROWS[[0, 1, 5, 7, 8, 10]]})


LAYER_LEFT_ALONE = {
    "the variance by products loses digits": (
        "m = ReduceMean(x, last) d = Sub(x, m) q = Mul(x, x) v = ReduceMean(q, last) m2 = Mul(m, m) u = Sub(v, m2)"
        " a = Add(u, eps) r = Sqrt(a) n = Div(d, r) y = Mul(n, w)"
    ),
    "the variance is of another mean": (
        "m = ReduceMean(x, last) d = Sub(x, m) m2 = ReduceMean(x, first) d2 = Sub(x, m2) q = Mul(d2, d2)"
        " v = ReduceMean(q, last) a = Add(v, eps) r = Sqrt(a) n = Div(d, r) y = Mul(n, w)"
    ),
    "no epsilon: a row of zeros": "q = Mul(x, x) v = ReduceSum(q, last) r = Pow(v, half) y = Div(x, r)",
    "a power of the wrong sign": (
        "q = Mul(x, x) v = ReduceMean(q, last) a = Add(v, eps) p = Pow(a, half) n = Mul(x, p) y = Mul(w, n)"
    ),
}


@pytest.mark.parametrize("reason", LAYER_LEFT_ALONE)
def test_layer_near_miss_is_left_alone(reason: str) -> None:
    result = ops(rewritten(rows(LAYER_LEFT_ALONE[reason]), NORMALIZATION))
    assert "Normalization" not in result


def images(body: str, constants: str = "", shape: str = "n,3,h,w") -> ir.Model:
    """A model of images x."""
    return parse(
        f"""<ir_version: 9, opset_import: ["": 20]> g (float[{shape}] x) => (float[{shape}] y)
        <int64[2] spatial = {{2, 3}}, int64[2] later = {{1, 2}}, float eps = {{0.00001}},
         float[3,1,1] s = {{1.5, 0.5, -1.0}}, float[1,3,1,1] t = {{0.1, 0.2, 0.3}}, float[3,1,1] m = {{0.5, -0.25, 2.0}},
         float[1,1,3] c = {{1.5, 0.5, -1.0}} {constants}> {{ {body} }}"""
    )


def pixels(*shape: int) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) * 2 + 1).astype(np.float32)


INSTANCE = "a = ReduceMean(x, spatial) d = Sub(x, a) q = Mul(d, d) v = ReduceMean(q, spatial) e = Add(v, eps) r = Sqrt(e) n = Div(d, r) "


@pytest.mark.parametrize("rest", ["k = Mul(n, s) y = Add(k, t)", "y = Mul(s, n)", "y = Add(t, n)", "y = Identity(n)"])
def test_decomposed_instance_norm_becomes_the_operator(rest: str) -> None:
    body = "o = Conv<group=3>(x, ones) " + INSTANCE.replace("(x,", "(o,") + rest
    original = images(body, constants=", float[3,1,1,1] ones = {1, 1, 1}")
    result = rewritten(original, NORMALIZATION)
    assert ops(result).split()[:2] == ["Conv", "InstanceNormalization"]
    assert len(list(result.graph)) <= 3
    same(original, result, {"x": pixels(2, 3, 5, 4)})


@pytest.mark.parametrize(
    ("rest", "axes", "shape"),
    [
        ("y = Mul(n, c)", "spatial", "n,3,5,3"),  # a scale for each column
        ("y = Mul(n, s)", "later", "n,3,h,w"),  # other axes
        ("y = Identity(n)", "spatial", "n,k,h,w"),  # as many channels as the input has
    ],
)
def test_another_scale_axis_or_rank_is_no_instance_norm(rest: str, axes: str, shape: str) -> None:
    original = images(INSTANCE.replace("spatial", axes) + rest, shape=shape)
    assert "InstanceNormalization" not in ops(rewritten(original, NORMALIZATION))


AFFINE = {
    "a = Sub(x, m) b = Div(a, s) c1 = Mul(b, t) y = Add(c1, t)": "BatchNormalization",
    "a = Sub(x, m) b = Mul(s, a) y = Add(t, b)": "BatchNormalization",
    "a = Sub(x, m) y = Div(a, s)": "BatchNormalization",
    "a = Mul(s, x) y = Add(t, a)": "BatchNormalization",
}


@pytest.mark.parametrize("body", AFFINE)
def test_affine_map_of_channels_becomes_batch_normalization(body: str) -> None:
    original = images(body)
    result = rewritten(original, NORMALIZATION)
    assert ops(result) == AFFINE[body]
    image = pixels(2, 3, 5, 4)
    image[0, :, 0] = [[np.nan, np.inf, -np.inf, 0]] * 3
    same(original, result, {"x": image})


AFFINE_LEFT_ALONE = {
    "a scale for each column": ("a = Mul(x, c) y = Add(a, t)", ""),
    "the mean is far off": ("a = Sub(x, far) y = Div(a, s)", ", float[3,1,1] far = {0.0, 10000.0, 0.0}"),
    "a deviation of 0": ("a = Sub(x, m) y = Div(a, none)", ", float[3,1,1] none = {0.0, 1.0, 1.0}"),
}


@pytest.mark.parametrize("reason", AFFINE_LEFT_ALONE)
def test_affine_near_miss_is_left_alone(reason: str) -> None:
    body, constants = AFFINE_LEFT_ALONE[reason]
    original = images(body, constants, shape="n,3,h,3" if reason == "a scale for each column" else "n,3,h,w")
    assert ops(rewritten(original, NORMALIZATION)) == ops(original)


@pytest.mark.parametrize("restored", ["u = Unsqueeze(r, last)", "u = Reshape(r, shape)"])
@pytest.mark.parametrize("opset", [13, 20])
def test_a_reduction_keeps_the_axes_that_come_back(restored: str, opset: int) -> None:
    mean = "ReduceMean<keepdims = 0>(x, last)" if opset >= 18 else "ReduceMean<keepdims = 0, axes = [-1]>(x)"
    original = parse(f"""<ir_version: 9, opset_import: ["": {opset}]> g (float[2,3] x) => (float[2,3] y)
        <int64[1] last = {{-1}}, int64[2] shape = {{2, 1}}> {{ r = {mean} {restored} y = Sub(x, u) }}""")
    result = rewritten(original, "canonicalize")
    assert ops(result) == "ReduceMean Sub"
    same(original, result, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})


def test_an_axis_that_comes_back_elsewhere_is_left_alone() -> None:
    original = parse("""<ir_version: 9, opset_import: ["": 20]> g (float[2,2] x) => (float[2,2] y)
        <int64[1] last = {-1}, int64[1] first = {0}> { r = ReduceMean<keepdims = 0>(x, last) u = Unsqueeze(r, first) y = Sub(x, u) }""")
    assert ops(rewritten(original, "canonicalize")) == ops(original)


def halves(body: str) -> ir.Model:
    """A model of x [n, 4] in float16; `wide` is a float32 vector that float16 has, `fine` one that it has not."""
    return parse(
        f"""<ir_version: 10, opset_import: ["": 23]> g (float16[n,4] x) => (float16[n,4] y)
        <float[4] wide = {{1.5, 0.5, -1.0, 2.0}}, float[4] fine = {{1.0001, 0.5, -1.0, 2.0}},
         float[4] ones = {{1.0, 1.0, 1.0, 1.0}}, float[1] short = {{1.0}}> {{
            w = Cast<to = 10>(wide) {body}
        }}"""
    )


HALVES = {
    "c = Cast<to = 1>(x) m = LayerNormalization(c, wide, wide) y = Cast<to = 10>(m)": "LayerNormalization",
    "c = Cast<to = 1>(x) v = Cast<to = 1>(w) m = LayerNormalization(c, v) y = Cast<to = 10>(m)": "LayerNormalization",
    "c = Cast<to = 1>(x) m = RMSNormalization(c, ones) h = Cast<to = 10>(m) y = Mul(w, h)": "RMSNormalization",
}


@pytest.mark.parametrize("body", HALVES)
def test_a_normalisation_takes_in_the_casts_around_it(body: str) -> None:
    original = halves(body)
    result = rewritten(original, NORMALIZATION)
    assert ops(result).removeprefix("Cast ") == HALVES[body]
    values = np.concatenate([ROWS[[0, 1, 2, 5, 7]], [[60000, -60000, 1, 0], [6e-8, 0, -6e-8, 1e-7]]]).astype(np.float16)
    old, new = both(original, result, {"x": values})
    np.testing.assert_allclose(new, old, rtol=2e-3, atol=1e-7)


HALVES_LEFT_ALONE = {
    "a scale that float16 rounds": "c = Cast<to = 1>(x) m = LayerNormalization(c, fine) y = Cast<to = 10>(m)",
    "a scale that is broadcast": "c = Cast<to = 1>(x) m = LayerNormalization(c, short) y = Cast<to = 10>(m)",
    "another type": "c = Cast<to = 11>(x) d = Cast<to = 11>(wide) m = RMSNormalization(c, d) y = Cast<to = 10>(m)",
    "something between": "c = Cast<to = 1>(x) m = RMSNormalization(c, ones) a = Abs(m) y = Cast<to = 10>(a)",
}


@pytest.mark.parametrize("reason", HALVES_LEFT_ALONE)
def test_casts_that_matter_stay(reason: str) -> None:
    original = halves(HALVES_LEFT_ALONE[reason])
    assert ops(rewritten(original, NORMALIZATION)) == ops(original)


@pytest.mark.parametrize(("scale", "expected"), [("o", "LayerNormalization"), ("w", "LayerNormalization Mul Add")])
def test_scale_and_bias_behind_a_normalisation_without_go_into_it(scale: str, expected: str) -> None:
    original = rows(f"m = LayerNormalization(x, {scale}) s = Mul(m, w) y = Add(s, b)")
    result = rewritten(original, NORMALIZATION)
    assert ops(result) == expected
    same(original, result, {"x": ROWS[[0, 1, 5, 7]]})


EXPANDED = {
    "e = Expand(n, size) y = Div(x, e)": "ReduceL2 Clip Shape Div",
    "e = Expand(n, size) y = Mul(e, x)": "ReduceL2 Clip Shape Mul",
    "e = Expand(n, size) y = Div(e, x)": "ReduceL2 Clip Shape Div",
    "e = Expand(n, more) y = Mul(e, x)": "ReduceL2 Clip Shape Mul Expand",
    "y = Mul(n, ones)": "ReduceL2 Clip Shape Mul",
}


@pytest.mark.parametrize("body", EXPANDED)
def test_an_operand_is_broadcast_by_the_operator_where_the_shape_is_its_own(body: str) -> None:
    original = parse(
        f"""<ir_version: 9, opset_import: ["": 20]> g (float[2,4] x) => (y)
        <int64[1] last = {{-1}}, int64[3] more = {{3, 2, 4}}, float eps = {{0.001}}, float[4] ones = {{1.0, 1.0, 1.0, 1.0}}> {{
        s = ReduceL2(x, last) n = Clip(s, eps) size = Shape(x) {body} }}""".replace("(y)", "(float y)")
    )
    original.graph.outputs[0].shape = None
    result = rewritten(original, "canonicalize")
    assert [op for op in ops(result).split() if op != "Shape"] == [op for op in EXPANDED[body].split() if op != "Shape"]
    same(original, result, {"x": ROWS[[0, 7]]})


RMS = "p = Pow(x, two) v = ReduceMean <axes = [-1]> (p) w = Add(v, e) r = Sqrt(w) n = Div(x, r) y = Mul(n, g)"


@pytest.mark.parametrize("opset", [9, 13, 17])
def test_no_operator_is_made_that_the_standard_lacks_at_the_opset(opset: int) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[b, 4] x) => (float[b, 4] y) '
        f"<float two = {{2}}, float e = {{0.00001}}, float[4] g = {{1, 2, 3, 4}}> {{ {RMS} }}"
    )
    onnx.checker.check_model(ortfuse.optimize(model, level="all", max_opset=opset).model)


@pytest.mark.parametrize(("shape", "made"), [("n,5,4", "LayerNormalization"), ("n,5,2,2", "GlobalAveragePool")])
def test_means_of_the_last_of_three_axes_may_be_pools(shape: str, made: str) -> None:
    """As tf2onnx writes them before opset 18; those of images stay pools."""
    original = parse(
        f"""<ir_version: 9, opset_import: ["": 17]> g (float[{shape}] x) => (float[{shape}] y) <float eps = {{0.001}}> {{
        m = GlobalAveragePool(x) d = Sub(x, m) q = Mul(d, d) v = GlobalAveragePool(q) e = Add(v, eps) s = Sqrt(e) y = Div(d, s) }}"""
    )
    result = original.clone()
    ortfuse.PassManager(f"fixpoint({NORMALIZATION}, fuse.global_average_pool)").run(result)
    assert made in ops(result)
    x = np.random.default_rng(0).standard_normal([3, *map(int, shape.split(",")[1:])]).astype(np.float32)
    before, after = both(original, result, {"x": x})
    np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mean", ["m = Div (t, n)", "m = Mul (t, r)"])
def test_means_as_sums_and_their_number(mean: str) -> None:
    m = parse(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[b, s, 64] x, float[64] gain, float[64] shift) => (float[b, s, 64] y)
        <float n = {{64}}, float r = {{0.015625}}, float epsilon = {{0.00001}}, int64[1] last = {{-1}}>
        {{
            t = ReduceSum (x, last)
            {mean}
            c = Sub (x, m)
            q = Mul (c, c)
            u = ReduceSum (q, last)
            {mean.replace("m =", "v =").replace("(t,", "(u,")}
            w = Add (v, epsilon)
            d = Sqrt (w)
            f = Div (c, d)
            h = Mul (f, gain)
            y = Add (h, shift)
        }}
    """)
    assert ops(ortfuse.optimize(m).model) == "LayerNormalization"


IMAGES = """<ir_version: 9, opset_import: ["": 20]> g (float[{shape}] x) => (float[{shape}] y)
    <int64[{count}] axes = {{{axes}}}, float eps = {{{epsilon}}}, float[{vector}] w = {{1.5, 0.5, -1.0}}, float[{vector}] b = {{0.1, 0.2, 0.3}}> {{
    m = ReduceMean(x, axes) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, axes) a = Add(v, eps) r = Sqrt(a) e = Div(d, r)
    f = Mul(e, w) y = Add(f, b) }}"""
MIDDLE = {"axes": "1", "count": 1, "vector": "3"}
LAST = {"axes": "2, 3", "count": 2, "vector": "3, 1, 1"}


@pytest.mark.parametrize(
    ("shape", "axes", "epsilon", "becomes"),
    [
        ("1,1,3", MIDDLE, 1e-5, False), ("1,1,3", MIDDLE, 1.0, False), ("2,4,3", MIDDLE, 1e-12, False),
        ("2,4,3", MIDDLE, 1e-5, True), ("1,3,1,1", LAST, 1e-5, False), ("1,3,2,1", LAST, 1e-5, True),
        ("1,3,2,1", LAST, 1e-12, False),
    ],
)  # fmt: skip
def test_the_bias_of_an_image_whose_pixels_are_all_alike_keeps_its_digits(
    shape: str, axes: dict[str, object], epsilon: float, becomes: bool
) -> None:
    original = parse(IMAGES.format(shape=shape, epsilon=f"{epsilon:.20f}", **axes))
    result = rewritten(original, NORMALIZATION)
    assert ("InstanceNormalization" in ops(result)) == becomes
    alike = np.full([int(size) for size in shape.split(",")], 0.7, np.float32)
    before, after = both(original, result, {"x": alike})
    np.testing.assert_allclose(after, before, atol=1e-4)
