"""Which numbers a value can hold: one operator at a time, held against the runtime for inputs that go to extremes."""

from __future__ import annotations

import math
from itertools import cycle, islice
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from soundness import judge_model, strict_transfer

from ortfuse.analysis.facts import Facts, Range
from ortfuse.analysis.propagation import Analysis
from ortfuse.analysis.ranges.range import between, of_array, one_of

pytestmark = pytest.mark.usefixtures(strict_transfer.__name__)

INF = math.inf
LARGEST = float(np.finfo(np.float32).max)
FLOATS = (math.nan, -INF, INF, -LARGEST, LARGEST, -0.0, 0.0, 1e-45, 0.5, -0.5, 3e9, -1e20, 7.0)
WHOLE = (-(2**63), 2**63 - 1, -1, 0, 1, 2**33, 255, -129, 2**53 + 1)
INPUTS = "float[b,6] x, int64[b,6] i, bool[b,6] c, bool[b,1] d, float[s] v"
CONSTANTS = """float zero = {0}, float one = {1}, float two = {2}, float three = {3}, float far = {-3.4028234663852886e38},
float tenth = {0.1}, int64 k0 = {0}, int64 k1 = {1}, int64 k3 = {3}, int64 k5 = {5}, int64[4] around = {0, 1, 0, 1},
int64[1] last = {-1}, int64[1] first = {0}, int64[1] end = {9}, float[2] off_on = {-1, 1}, int64[2] twice = {1, 2},
float[0] none = {}, float big = {60000}, int64[2] rows = {4, 6}, int64[1] fours = {4}, int8 low = {-128}, int8 minus = {-1}, uint8 seven = {7}"""
MASK = "m = Where(c, zero, far)"
UNIT = "u = Clip(x, zero, one)"
COUNTED = "n = Shape(v) t0 = Squeeze(n) m = Add(t0, k1) r = Range(k0, m, k1)"


def parse(body: str, opset: int = 20) -> tuple[onnx.ModelProto, ir.Model, dict[str, ir.Value]]:
    head = f'<ir_version: 10, opset_import: ["" : {opset}]> g ({INPUTS}) => (y)'
    proto = onnx.parser.parse_model(f"{head} <{CONSTANTS}> {{ {body} }}")
    model = ir.from_proto(proto)
    values = {value.name or "": value for node in model.graph.all_nodes() for value in node.outputs}
    return proto, model, values | {value.name or "": value for value in model.graph.inputs}


def extremes(b: int) -> dict[str, np.ndarray]:
    """Numbers at the ends of their types, in every column."""

    def filled(numbers: tuple[Any, ...], shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.array(list(islice(cycle(numbers), math.prod(shape)))).astype(dtype).reshape(shape)

    return {
        "x": filled(FLOATS, (b, 6), np.float32),
        "i": filled(WHOLE, (b, 6), np.int64),
        "c": filled((True, False, False, True, True), (b, 6), bool),
        "d": filled((False, True), (b, 1), bool),
        "v": filled(FLOATS, (4,), np.float32),
    }


def held(body: str, opset: int = 20) -> tuple[Facts, dict[str, ir.Value]]:
    """The facts of a graph, after they were held against what the runtime makes of extreme inputs."""
    proto, model, values = parse(body, opset)
    facts = Facts(model)
    for b in (13, 1) if "Reduce" in body else (13, 1, 0):  # the runtime reduces empty tensors otherwise than ONNX says
        inputs = extremes(b)
        used = {value.name for value in proto.graph.input}
        judge = judge_model(proto, facts, model, {name: inputs[name] for name in used}, {"b": b, "s": 4})
        assert not judge.wrong, f"{b}: " + "; ".join(judge.wrong)
    return facts, values


WHOLE_LIMITS = between(-(2**63), 2**63 - 1)

CASES: list[tuple[str, Range | None]] = [
    (f"{MASK} y = Add(m, tenth)", one_of(float(np.float32(0.1)), -LARGEST)),
    (f"{MASK} y = Add(m, m)", one_of(0.0, -LARGEST, -INF)),
    (f"{MASK} {UNIT} y = Add(m, u)", Range(frozenset((-LARGEST,)), (0.0, 1.0), nan=True)),
    (f"{MASK} t = Add(m, m) y = Sub(t, t)", Range(frozenset((0.0, -LARGEST, LARGEST, INF, -INF)), None, nan=True)),
    (f"{MASK} t = Add(m, m) y = Mul(t, zero)", Range(frozenset((0.0,)), None, nan=True)),
    (f"{UNIT} y = Mul(x, u)", None),
    ("y = Mul(x, x)", between(0.0, INF, nan=True)),
    (f"{UNIT} t = Sub(u, two) y = Mul(t, t)", between(1.0, 4.0, nan=True)),
    ("y = Pow(x, two)", between(0.0, INF, nan=True)),
    ("y = Pow(x, three)", None),
    ("f = Cast<to = 1>(c) g = Sub(one, f) y = Mul(g, far)", one_of(0.0, -LARGEST)),
    ("f = Cast<to = 1>(c) y = Div(f, zero)", None),
    ("f = Cast<to = 1>(c) y = Div(f, three)", one_of(0.0, float(np.float32(1 / 3)))),
    ("y = Div(zero, x)", None),
    ("y = Add(i, k1)", WHOLE_LIMITS),
    ("n = Cast<to = 7>(c) t = Sub(n, k3) y = Div(t, k3)", one_of(-1, 0)),
    ("n = Cast<to = 7>(c) t = Sub(n, k3) y = Mod(t, k5)", between(0, 4)),
    ("n = Cast<to = 7>(c) y = Mod(n, k5)", one_of(0, 1)),
    ("y = Mod(i, k5)", between(0, 4)),
    ("n = Cast<to = 3>(c) t = Neg(n) s = Add(t, low) y = Identity(s)", between(-128, 127)),
    ("n = Cast<to = 6>(i) y = Identity(n)", between(-(2**31), 2**31 - 1)),
    ("q = QuantizeLinear(x, one, seven) y = DequantizeLinear(q, two, seven)", between(-14.0, 496.0)),
    ("q = QuantizeLinear(x, one, low) y = DequantizeLinear(q, two, low)", between(0.0, 510.0)),
    ("y = Cast<to = 1>(i)", between(-9.367487224930632e18, 9.367487224930632e18)),
    ("y = Cast<to = 6>(x)", between(-(2**31), 2**31 - 1)),
    (f"{UNIT} t = Mul(u, three) y = Cast<to = 7>(t)", WHOLE_LIMITS),
    ("t = Where(c, one, two) s = Add(t, tenth) y = Cast<to = 7>(s)", one_of(1, 2)),
    ("t = Where(c, far, two) y = Cast<to = 10>(t)", one_of(-INF, 2.0)),
    ("half = Cast<to = 10>(big) h = CastLike(c, half) y = Add(h, half)", one_of(60000.0)),
    ("half = Cast<to = 10>(big) h = CastLike(c, half) t = Add(half, half) y = Mul(h, t)", Range(frozenset((0.0, INF)), None, nan=True)),
    ("y = Cast<to = 9>(x)", one_of(0, 1)),
    ("t = Where(c, tenth, far) y = Cast<to = 9>(t)", one_of(1)),
    ("t = Where(c, zero, zero) y = Cast<to = 9>(t)", one_of(0)),
    ("y = Clip(x, zero, one)", between(0.0, 1.0, nan=True)),
    ("y = Clip(x, one, zero)", Range(frozenset((0.0,)), None, nan=True)),
    ("y = Clip(x, zero)", between(0.0, INF, nan=True)),
    ("y = Clip(x)", None),
    (f"{MASK} t = Add(m, m) y = Clip(t, , one)", one_of(0.0, -LARGEST, -INF)),
    ("y = Max(x, far)", between(-LARGEST, INF, nan=True)),
    ("y = Min(x, zero, one)", Range(frozenset((1.0,)), (-INF, 0.0), nan=True)),
    (f"{MASK} y = Max(m, one)", one_of(1.0)),
    ("y = Min(i, k3)", between(-(2**63), 3)),
    ("y = Relu(x)", between(0.0, INF, nan=True)),
    (f"{MASK} y = Neg(m)", one_of(0.0, LARGEST)),
    ("y = Neg(i)", WHOLE_LIMITS),
    (f"{MASK} y = Abs(m)", one_of(0.0, LARGEST)),
    ("y = Abs(x)", between(0.0, INF, nan=True)),
    ("y = Sqrt(x)", between(0.0, INF, nan=True)),
    (f"{MASK} y = Sqrt(m)", Range(frozenset((0.0,)), None, nan=True)),
    (f"{UNIT} t = Sub(u, tenth) y = Ceil(t)", between(0.0, 1.0, nan=True)),
    ("t = Where(c, tenth, far) y = Floor(t)", one_of(0.0, -LARGEST)),
    ("y = Sign(x)", Range(frozenset((-1.0, 0.0, 1.0)), None, nan=True)),
    ("y = Softmax(x)", between(0.0, 1 + 2.0**-7, nan=True)),
    ("y = HardSigmoid<alpha = 0.0>(x)", between(0.0, 1 + 2.0**-7, nan=True)),
    (f"{MASK} t = Add(m, m) y = HardSigmoid<alpha = 0.0>(t)", between(0.0, 1 + 2.0**-7, nan=True)),
    ("y = Sigmoid(x)", between(-(2.0**-7), 1 + 2.0**-7, nan=True)),
    ("y = Tanh(x)", between(-1 - 2.0**-7, 1 + 2.0**-7, nan=True)),
    ("y = Erf(x)", between(-1 - 2.0**-7, 1 + 2.0**-7, nan=True)),
    (f"{MASK} y = Cos(m)", between(-1 - 2.0**-7, 1 + 2.0**-7)),
    ("y = Exp(x)", between(0.0, INF, nan=True)),
    ("t = Min(x, zero) y = Exp(t)", between(0.0, 1 + 2.0**-6, nan=True)),
    ("y = Log(x)", Range(frozenset({-INF}), (float(np.float32(-104.0936126708984)), INF), nan=True)),
    ("t, y = TopK(x, fours)", between(0, 5)),
    ("y = NonZero(c)", between(0, 2**60 - 1)),
    ("a, d2, e2, y = Unique(i)", between(1, 2**60)),
    ("a, d2, y = Unique<axis = 1>(x)", between(0, 2**60 - 1)),
    ("n = Cast<to = 7>(c) y = CumSum(n, k1)", between(0, 6)),
    ("n = Cast<to = 7>(c) y = CumSum<exclusive = 1>(n, k0)", between(0, 2**62)),
    ("n = Cast<to = 7>(c) t = Neg(n) y = ReduceSum(t, last)", between(-6, 0)),
    ("y = ReduceSum(i, last)", WHOLE_LIMITS),
    ("y = CumSum(i, k1)", WHOLE_LIMITS),
    (f"{UNIT} y = CumSum(u, k1)", between(0.0, INF, nan=True)),
    ("t = Unsqueeze(x, twice) s = Abs(t) y = GlobalAveragePool(s)", between(0.0, INF, nan=True)),
    ("t = Unsqueeze(x, twice) s = Abs(t) r = Neg(s) y = AveragePool<kernel_shape = [1, 2], pads = [0, 1, 0, 1]>(r)", between(-INF, 0.0, nan=True)),
    ("y = Softsign(x)", between(-1 - 2.0**-7, 1 + 2.0**-7, nan=True)),
    ("y = Equal(i, i)", one_of(1)),
    ("y = Equal(x, x)", one_of(0, 1)),
    ("y = Less(x, x)", one_of(0)),
    ("n = Cast<to = 7>(c) y = Equal(n, k3)", one_of(0)),
    ("n = Cast<to = 7>(c) y = Less(n, k3)", one_of(1)),
    (f"{UNIT} y = GreaterOrEqual(u, zero)", one_of(0, 1)),
    (f"{COUNTED} y = LessOrEqual(r, n)", one_of(1)),
    (f"{COUNTED} y = GreaterOrEqual(n, r)", one_of(1)),
    (f"{COUNTED} y = Greater(r, n)", one_of(0)),
    (f"{COUNTED} y = Less(n, r)", one_of(0)),
    (f"{COUNTED} y = Less(r, m)", one_of(1)),
    (f"{COUNTED} y = GreaterOrEqual(r, m)", one_of(0)),
    (f"{COUNTED} y = Equal(r, m)", one_of(0)),
    (f"{COUNTED} y = Equal(m, r)", one_of(0)),
    (f"{COUNTED} y = Less(r, n)", one_of(0, 1)),
    (f"{COUNTED} y = LessOrEqual(m, r)", one_of(0)),
    (f"{COUNTED} y = LessOrEqual(n, r)", one_of(0, 1)),
    (f"{COUNTED} y = Equal(r, n)", one_of(0, 1)),
    (f"{COUNTED} t = Add(r, n) y = GreaterOrEqual(t, n)", one_of(1)),
    (f"{COUNTED} t = Sub(r, n) y = Greater(t, k0)", one_of(0)),
    (f"{COUNTED} t = Cast<to = 6>(r) u = Cast<to = 6>(m) y = Less(t, u)", one_of(1)),
    (f"{COUNTED} t = Range(m, k0, n) y = LessOrEqual(t, n)", one_of(0, 1)),
    (f"{MASK} y = LessOrEqual(m, zero)", one_of(1)),
    (f"{MASK} y = Greater(m, zero)", one_of(0)),
    ("t = Equal(i, i) y = Not(t)", one_of(0)),
    ("t = Equal(i, i) y = And(t, c)", one_of(0, 1)),
    ("t = Equal(i, i) y = Or(c, t)", one_of(1)),
    ("t = Equal(i, i) y = Xor(t, t)", one_of(0)),
    (f"{MASK} y = IsNaN(m)", one_of(0)),
    ("y = IsNaN(x)", one_of(0, 1)),
    (f"{UNIT} y = IsInf(u)", one_of(0)),
    ("t = Equal(i, i) y = Where(t, zero, x)", one_of(0.0)),
    (f"{MASK} t = Slice(m, first, end, last) y = Concat<axis = 0>(t, x)", None),
    (f"{MASK} n = Neg(m) y = Concat<axis = 0>(m, n)", one_of(0.0, LARGEST, -LARGEST)),
    (f"{MASK} y = Pad(m, around, one)", one_of(0.0, 1.0, -LARGEST)),
    (f"{MASK} y = Pad(m, around)", one_of(0.0, -LARGEST)),
    (f"{MASK} y = Trilu<upper = 0>(m)", one_of(0.0, -LARGEST)),
    (f"{MASK} t = Add(m, one) y = Trilu<upper = 0>(t)", one_of(1.0, 0.0, -LARGEST)),
    ("n = Cast<to = 7>(c) y = OneHot(n, k3, off_on)", one_of(-1.0, 1.0)),
    ("y = ConstantOfShape<value = float[1] {5.0}>(rows)", one_of(5.0)),
    ("n = Shape(x) y = ConstantOfShape(n)", one_of(0.0)),
    ("t = Shape(v) n = Squeeze(t) y = Range(k3, n, k1)", between(3, 2**60 - 1)),
    ("y = Range(k0, k5, k3)", one_of(0, 3)),
    ("n = Shape<start = 0, end = 1>(x) t = Squeeze(n) y = Range(t, k0, k3)", None),
    (f"{MASK} y = ReduceMax(m, last)", one_of(0.0, -LARGEST)),
    (f"{MASK} y = ReduceMax(m, first)", one_of(0.0, -LARGEST, -INF)),
    ("y = ArgMax<axis = 1>(x)", between(0, 5)),
    ("y = Expand(tenth, rows)", one_of(float(np.float32(0.1)))),
    ("t = Shape(x) y = Expand(one, t)", one_of(1.0)),
    (f"{MASK} y = Tile(m, twice)", one_of(0.0, -LARGEST)),
    ("y = Identity(none)", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("activation", "wanted"),
    [
        ("Relu", between(0.0, INF, nan=True)),
        ("Sigmoid", between(-(2.0**-7), 1 + 2.0**-7, nan=True)),
        ("HardSigmoid", between(-(2.0**-7), 1 + 2.0**-7, nan=True)),
        ("Tanh", between(-1 - 2.0**-7, 1 + 2.0**-7, nan=True)),
        ("LeakyRelu", None),
    ],
)
def test_what_a_convolution_ends_with_bounds_it(activation: str, wanted: Range | None) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 20, "com.microsoft": 1]> g (float[n,1,s] x, float[1,1,1] w) => (y)
        {{ c = com.microsoft.FusedConv<activation = "{activation}">(x, w) y = Identity(c) }}"""
    model = ir.from_onnx_text(text)
    assert Facts(model).range(model.graph.outputs[0]) == wanted


@pytest.mark.parametrize(("body", "wanted"), CASES, ids=[body for body, _ in CASES])
def test_range(body: str, wanted: Range | None) -> None:
    facts, values = held(body)
    assert facts.range(values["y"]) == wanted


@pytest.mark.parametrize(
    ("body", "opset", "wanted"),
    [
        ("y = Clip<min = 0.0, max = 1.0>(x)", 10, between(0.0, 1.0, nan=True)),
        ("y = Clip<max = 1.0>(x)", 6, between(-INF, 1.0, nan=True)),
        ("y = Pad<pads = [0, 1, 0, 1], value = -3.0>(u)", 10, Range(frozenset((-3.0,)), (0.0, 1.0), nan=True)),
        ("y = Pad<pads = [0, 1, 0, 1]>(u)", 6, between(0.0, 1.0, nan=True)),
        ('y = Pad<pads = [0, 1, 0, 1], mode = "edge", value = -3.0>(u)', 10, between(0.0, 1.0, nan=True)),
    ],
)
def test_bounds_and_fillers_that_were_attributes_once(body: str, opset: int, wanted: Range) -> None:
    facts, values = held(body if "Clip" in body else f"u = Clip<min = 0.0, max = 1.0>(x) {body}", opset)
    assert facts.range(values["y"]) == wanted


ROWS = "n = Shape(v) t = Squeeze(n) counted = Range(k0, t, k1) column = Unsqueeze(counted, last)"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (f"{ROWS} y = LessOrEqual(counted, column)", one_of(1)),
        (f"{ROWS} y = Less(counted, column)", one_of(0, 1)),
        (f"{ROWS} y = Identity(counted)", one_of(0)),
        (f"{MASK} y = Trilu<upper = 1>(m, k1)", one_of(0)),
        (f"{MASK} t = Sub(m, one) n = Neg(t) y = Trilu<upper = 0>(n, k1)", one_of(1.0, LARGEST)),
        (f"{MASK} y = Trilu<upper = 1>(m)", one_of(0.0, -LARGEST)),
        (f"{ROWS} t2 = Equal(counted, k0) y = Slice(t2, first, end, last)", one_of(1)),
        (
            f"{MASK} l = Unsqueeze(one, first) t = Unsqueeze(m, last) w = Reshape(t, last) y = Concat<axis = 0>(l, w)",
            one_of(1.0),
        ),
        (
            f"{MASK} l = Unsqueeze(one, first) t = Unsqueeze(m, last) w = Reshape(t, last) y = Concat<axis = 0>(w, l)",
            one_of(0.0, 1.0, -LARGEST),
        ),
        (f"{ROWS} t2 = Equal(counted, k0) y = Slice(t2, last, end, last)", one_of(0, 1)),
        (f"{ROWS} t2 = Equal(counted, k0) wide = Unsqueeze(t2, first) y = Gather<axis = 0>(wide, first)", one_of(1)),
        (f"{ROWS} t2 = Equal(counted, k0) y = Gather<axis = 0>(t2, first)", one_of(0, 1)),
        (f"{ROWS} t2 = Equal(counted, k0) y = Unsqueeze(t2, last)", one_of(0, 1)),
        (f"{ROWS} t2 = Equal(counted, k0) w = Unsqueeze(t2, first) y = Transpose<perm = [1, 0]>(w)", one_of(0, 1)),
    ],
)
def test_first_column(body: str, wanted: Range) -> None:
    facts, values = held(body)
    assert facts.first_column(values["y"]) == wanted


SIDE = "side = Cast<to = 1>(d)"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (f"{MASK} ends = Constant<value_ints = [0, 0, 0, 1]>() y = Pad(m, ends)", one_of(0)),
        (f"{MASK} ends = Constant<value_ints = [0, 0, 1, 1]>() y = Pad(m, ends, one)", one_of(1.0)),
        (f"{MASK} ends = Constant<value_ints = [0, 1]>() y = Pad(m, ends, one, last)", one_of(1.0)),
        (f"{MASK} ends = Constant<value_ints = [0, 1, 0, 0]>() y = Pad(m, ends, one)", one_of(0.0, 1.0, -LARGEST)),
        (f"{MASK} ends = Constant<value_ints = [0, 2, 0, -1]>() y = Pad(m, ends, one)", one_of(0.0, 1.0, -LARGEST)),
        (f"{MASK} {SIDE} y = Concat<axis = 1>(m, side)", one_of(0.0, 1.0)),
        (f"{MASK} {SIDE} y = Concat<axis = 1>(side, m)", one_of(0.0, -LARGEST)),
        (f"{MASK} {SIDE} t = Concat<axis = 1>(m, side) y = Slice(t, first, end, last)", one_of(0.0, 1.0, -LARGEST)),
        (f"{MASK} t = Sub(m, one) n = Neg(t) y = Trilu<upper = 0>(n, k1)", one_of(0.0, 1.0, LARGEST)),
        (f"{ROWS} t2 = Equal(counted, k0) y = Identity(t2)", one_of(0, 1)),
    ],
)
def test_last_column(body: str, wanted: Range) -> None:
    facts, values = held(body)
    assert facts.last_column(values["y"]) == wanted


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("t = Shape(x) y = Expand(one, t)", 1),
        ("t = Shape(x) z = ConstantOfShape(t) y = Mul(z, three)", 0),
        ("t = Equal(i, i) y = Not(t)", 0),
        ("y = Identity(around)", None),
        ("y = Clip(x, one, one)", None),
        ("y = Identity(x)", None),
        ("y = Identity(none)", None),
    ],
)
def test_fill(body: str, wanted: float | None) -> None:
    facts, values = held(body)
    assert facts.fill(values["y"]) == wanted


def test_what_a_value_is_computed_from_is_looked_at_once_however_many_ways_lead_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = []
    fact = Analysis.fact
    body = "a0 = Identity(x) " + " ".join(f"a{i + 1} = Add(a{i}, a{i})" for i in range(16)) + " y = Neg(a16)"
    _, model, values = parse(body)
    facts = Facts(model)
    monkeypatch.setattr(Analysis, "fact", lambda self, value: looked.append(value) or fact(self, value))
    assert facts.fill(values["a16"]) is None
    assert len(looked) < 100


HALVES, PAIRS = (True, False), (False, True)
ONCE = "once = Slice(x, first, threes, last)"
TWICE = f"{ONCE} t = Concat<axis = 1>(once, once)"
NEXT = f"{ONCE} column = Unsqueeze(once, last)"
TABLES = """float[2,4] halves = {1, 2, 1, 2, 3, 4, 3, 4}, float[2,4] pairs = {1, 1, 2, 2, 3, 3, 4, 4}, float[3] odd = {1, 1, 1},
float[2,4] all_same = {1, 1, 1, 1, 2, 2, 2, 2}, float[2,4] neither = {1, 2, 2, 1, 3, 4, 3, 4}, int64[1] threes = {3},
int64[3] cube = {0, 3, 2}, int64[2] flat = {0, 6}, int64[3] wide = {1, 1, 2}"""


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("y = Identity(halves)", HALVES),
        ("y = Identity(pairs)", PAIRS),
        ("y = Identity(neither)", (False, False)),
        ("y = Identity(all_same)", (True, True)),
        ("y = Identity(odd)", (False, False)),
        (f"{TWICE} y = Cos(t)", HALVES),
        (f"{TWICE} s = Sin(t) y = Mul(tenth, s)", HALVES),
        (f"{TWICE} w = Mul(t, x) y = Cos(w)", (False, False)),
        (f"{TWICE} y = Where(d, t, tenth)", HALVES),
        (f"{TWICE} w = Unsqueeze(t, first) y = Squeeze(w, first)", HALVES),
        (f"{TWICE} w = Unsqueeze(t, first) y = Transpose<perm = [1, 0, 2]>(w)", HALVES),
        (f"{TWICE} w = Unsqueeze(t, first) y = Transpose<perm = [0, 2, 1]>(w)", (False, False)),
        (f"{TWICE} y = Slice(t, k1s, end, first)", HALVES),
        (f"{TWICE} y = Slice(t, k1s, end, last)", (False, False)),
        (f"{TWICE} y = Tile(t, twice)", (True, False)),
        (f"{ONCE} y = Tile(once, twice)", HALVES),
        ("y = Concat<axis = 0>(halves, all_same)", HALVES),
        ("y = Concat<axis = 1>(pairs, all_same)", PAIRS),
        ("y = Concat<axis = 1>(halves, all_same)", (False, False)),
        (f"{NEXT} w = Tile(column, wide) y = Reshape(w, flat)", PAIRS),
        (f"{NEXT} w = Concat<axis = 2>(column, column) y = Reshape(w, flat)", PAIRS),
        (f"{NEXT} w = Expand(column, wide) r = Reshape(w, flat) y = Cos(r)", PAIRS),
        (f"{NEXT} w = Expand(column, wide) y = Identity(w)", (True, True)),
        ("e = Reshape(x, cube) y = Reshape(e, flat)", (False, False)),
        ("w = Cast<to = 1>(d) s = Shape(x) y = Expand(w, s)", (True, True)),
    ],
)
def test_repeats(body: str, wanted: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "CONSTANTS", f"{CONSTANTS}, {TABLES}, int64[1] k1s = {{1}}")
    facts, values = held(body)
    y = values["y"]
    assert (facts.repeats(y), facts.repeats(y, in_pairs=True)) == wanted


def test_many_numbers_are_an_interval_but_for_those_far_away() -> None:
    found = of_array(np.array([*range(20), -INF, LARGEST, -LARGEST]))
    assert found == Range(frozenset((-INF, LARGEST, -LARGEST)), (0.0, 19.0))
    assert of_array(np.array([0.5, math.nan])) == Range(frozenset((0.5,)), None, nan=True)
    assert of_array(np.array([2**63 - 1, -(2**63)])) == one_of(2**63 - 1, -(2**63))
    assert of_array(np.array([math.nan])) is of_array(np.zeros(0)) is of_array(np.array(["a"])) is None


def test_a_long_chain_is_followed_to_its_beginning() -> None:
    steps = " ".join(f"t{index + 1} = Neg(t{index})" for index in range(20_000))
    _, model, values = parse(f"t0 = Where(c, zero, one) {steps} y = Identity(t20000)")
    facts = Facts(model)
    assert facts.range(values["y"]) == facts.first_column(values["y"]) == one_of(0.0, 1.0)


def test_nothing_is_looked_at_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortfuse.analysis.ranges.queries.Asking.__init__", None)
    _, model, _ = parse(f"{MASK} y = Add(m, x)")
    Facts(model)


def test_answers_follow_edits() -> None:
    _, model, values = parse(f"{MASK} n = Neg(m) y = Abs(n)")
    facts = Facts(model)
    assert facts.range(values["y"]) == one_of(0.0, LARGEST)
    node = ir.node("Where", [values["c"], model.graph.initializers["one"], model.graph.initializers["two"]])
    model.graph.insert_before(values["m"].producer() or (), node)
    facts.node_added(node)
    values["m"].replace_all_uses_with(node.outputs[0])
    facts.value_replaced(values["m"], node.outputs[0])
    assert facts.range(values["y"]) == facts.first_column(values["y"]) == one_of(1.0, 2.0)


def test_answers_in_bodies_follow_edits_outside_and_come_back() -> None:
    body = f"""{MASK} k = ReduceMax<keepdims = 0>(m) t = Greater(k, one)
        y = If (t) < then_branch = a () => (p) {{ p = Neg(m) }}, else_branch = e () => (q) {{ q = Identity(m) }} >"""
    _, model, values = parse(body)
    facts = Facts(model)
    assert facts.range(values["y"]) == one_of(0.0, LARGEST, -LARGEST)
    node = ir.node("Where", [values["c"], model.graph.initializers["one"], model.graph.initializers["two"]])
    model.graph.insert_before(values["m"].producer() or (), node)
    facts.node_added(node)
    values["m"].replace_all_uses_with(node.outputs[0])
    facts.value_replaced(values["m"], node.outputs[0])
    assert facts.range(values["y"]) == one_of(1.0, 2.0, -1.0, -2.0)


def test_a_new_call_of_a_function_weakens_what_is_known_in_its_body() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "local" : 1]> g (float[2] x, float[b] w) => (y)
        { n = Shape(x) y = local.f(n) m = Shape(w) }
        <domain: "local", opset_import: ["" : 20]> f (a) => (d) { d = Neg(a) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    facts = Facts(model)
    inside = next(iter(model.functions.values())).outputs[0]
    assert facts.range(inside) == one_of(-2)
    m = next(node.outputs[0] for node in model.graph if node.outputs[0].name == "m")
    call = ir.node("f", [m], domain="local")
    model.graph.append(call)
    facts.node_added(call)
    assert facts.range(inside) != one_of(-2)


def test_answers_made_of_a_type_are_forgotten_when_that_is_taken_back() -> None:
    text = '<ir_version: 10, opset_import: ["" : 20, "custom" : 1]> g (float[n] x) => (y) { t = custom.Op(x) y = Identity(t) }'
    model = ir.from_proto(onnx.parser.parse_model(text))
    made, result = (node.outputs[0] for node in model.graph)
    facts, journal = Facts(model), list[Any]()
    facts.record(journal)
    assert facts.range(result) is None
    made.type = ir.TensorType(ir.DataType.BOOL)
    facts.type_changed(made)
    assert facts.range(result) == one_of(0, 1)
    for undo in reversed(journal):
        undo()
    assert facts.dtype(result) is None
    assert facts.range(result) is None


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMean"])
def test_sums_and_means_of_numbers_of_one_sign_keep_it(operator: str) -> None:
    facts, values = held(f"{UNIT} w = {operator}(u, last) s = Neg(u) y = {operator}(s)")
    assert facts.range(values["w"]) == between(0.0, INF, nan=True)
    assert facts.range(values["y"]) == between(-INF, 0.0, nan=True)


def test_sums_of_a_few_numbers_are_bounded() -> None:
    facts, values = held("s = Sigmoid(v) t = Abs(s) r = Reshape(t, fours) y = ReduceSum(r) w = ReduceMean(r)")
    found = facts.range(values["y"])
    assert found is not None and found.low == 0 and 4 < found.high < 4.1
