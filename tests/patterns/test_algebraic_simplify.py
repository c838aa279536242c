"""Algebraic simplification after the fusions: what is simplified, what is left alone, and that it stays right."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from rewriting import ops, parse, rewritten, same

import ortfuse

X = np.array([[np.nan, np.inf, -np.inf, -0.0], [0.0, 1.5, -2.0, 3.0]], np.float32)
Y = np.array([[1.0, np.inf, 2.0, 0.0], [np.nan, -1.5, -2.0, 4.0]], np.float32)
NUMBERS = "float zero = {0.0}, float one = {1.0}, float minus = {-1.0}, float two = {2.0}, int64 nothing = {0}"

SHORTER = {
    "n = Neg(y) z = Add(n, x)": "Sub",
    "n = Neg(y) z = Sub(x, n)": "Add",
    "d = Sub(x, y) z = Neg(d)": "Sub",
    "n = Neg(x) m = Neg(y) z = Mul(n, m)": "Mul",
    "n = Neg(x) m = Neg(y) z = Div(n, m)": "Div",
    "z = Sub(zero, x)": "Neg",
    "z = Mul(minus, x)": "Neg",
    "r = Reciprocal(y) z = Mul(x, r)": "Div",
    "m = Max(x, one) z = Relu(m)": "Max",
    "a = Abs(x) z = Max(a, minus)": "Abs",
    "r = Relu(x) z = Abs(r)": "Relu",
    "s = Sigmoid(x) z = Max(s, minus)": "Sigmoid",
    "t = Tanh(x) z = Clip(t, minus, two)": "Tanh Clip",
    "m = Max(x, y) z = Max(y, m)": "Max",
    "p = Greater(x, y) q = Not(p) z = Where(q, x, y)": "Greater Where",
    "p = Greater(x, y) a = Where(p, x, one) z = Where(p, a, y)": "Greater Where",
    "p = Greater(x, y) a = Where(p, one, y) z = Where(p, x, a)": "Greater Where",
    "n = Neg(y) m = Abs(n) a = Add(n, x) z = Mul(a, m)": "Neg Abs Sub Mul",
    "t = Tanh(x) z = Relu(t)": "Tanh Relu",
    "a = Add(x, one) z = Neg(a)": "Sub",
    "n = Neg(x) z = Sub(n, two)": "Sub",
    "d = Div(x, y) z = Reciprocal(d)": "Div",
    "r = Reciprocal(y) z = Div(x, r)": "Mul",
    "m = Mul(x, two) z = Div(one, m)": "Div",
    "r = Reciprocal(x) z = Neg(r)": "Div",
    "d = Div(two, x) z = Mul(d, minus)": "Div",
    "n = Neg(x) z = Max(n, x)": "Abs",
    "p = Less(x, one) z = Where(p, one, x)": "Max",
    "p = Less(two, x) z = Where(p, two, x)": "Min",
    "p = Greater(x, one) z = Where(p, x, one)": "Greater Where",
    "n = Neg(x) m = Neg(y) k = Max(n, m) z = Neg(k)": "Min",
    "n = Neg(x) k = Min(n, two) z = Neg(k)": "Max",
    "n = Neg(x) r = Relu(n) z = Neg(r)": "Min",
    "r = Relu(x) n = Neg(x) s = Relu(n) a = Sub(r, s) z = Exp(a)": "Exp",
    "r = Relu(x) n = Neg(x) s = Relu(n) z = Add(s, r)": "Abs",
    "r = Min(x, y) s = Max(y, x) z = Add(s, r)": "Add",
    "r = Min(x, y) s = Max(y, x) z = Mul(s, r)": "Mul",
    "r = Min(x, y) s = Max(y, x) z = Sub(s, r)": "Sub Abs",
    "n = Neg(x) f = Floor(n) z = Neg(f)": "Ceil",
    "n = Neg(x) f = Tanh(n) z = Neg(f)": "Tanh",
    "n = Neg(x) z = Cos(n)": "Cos",
    "n = Neg(x) m = Mul(n, y) z = Neg(m)": "Mul",
    "n = Neg(y) m = Div(x, n) z = Neg(m)": "Div",
    "a = Abs(x) z = Mul(a, a)": "Mul",
    "a = Abs(x) b = Abs(y) z = Mul(a, b)": "Mul Abs",
    "a = Abs(x) b = Abs(y) z = Div(a, b)": "Div Abs",
}


@pytest.mark.parametrize("body", SHORTER)
def test_numbers_in_fewer_nodes(body: str) -> None:
    original = parse(
        f"""<ir_version: 9, opset_import: ["": 20]> g (float[n,4] x, float[n,4] y) => (float[n,4] z) <{NUMBERS}> {{ {body} }}"""
    )
    result = rewritten(original, "target_decompositions")
    assert ops(result) == SHORTER[body]
    same(original, result, {"x": X, "y": Y})


TRUTHS = {
    "n = Not(p) z = And(p, n)": "Shape Expand",
    "n = Not(p) z = Or(n, p)": "Shape Expand",
    "z = Xor(p, p)": "Shape Expand",
    "n = Not(p) m = Not(q) z = And(n, m)": "Or Not",
    "n = Not(p) m = Not(q) z = Or(n, m)": "And Not",
    "a = And(p, q) z = And(a, q)": "And",
    "a = And(p, q) r = Or(q, a) z = Not(r)": "Not",
    "l = Less(i, j) z = Not(l)": "GreaterOrEqual",
    "l = LessOrEqual(i, j) z = Not(l)": "Greater",
    "l = Less(x, x) z = Not(l)": "Less Not",
    "c = Cast<to=1>(p) g = Greater(c, zero) z = And(g, q)": "And",
    "c = Cast<to=1>(p) z = Less(c, one)": "Not",
    "c = Cast<to=7>(p) z = Equal(c, nothing)": "Not",
    "c = Cast<to=1>(p) z = Greater(c, two)": "Cast Greater",
}


@pytest.mark.parametrize("body", TRUTHS)
def test_truth_values_in_fewer_nodes(body: str) -> None:
    inputs = "bool[n] p, bool[n] q, int64[n] i, int64[n] j, float[n] x"
    original = parse(
        f"""<ir_version: 9, opset_import: ["": 20]> g ({inputs}) => (bool[n] z) <{NUMBERS}> {{ {body} }}"""
    )
    result = rewritten(original, "target_decompositions")
    assert ops(result) == TRUTHS[body]
    truths = np.array([True, True, False, False])
    whole = np.array([1, 2, 3, -4])
    floats = np.array([np.nan, 1, 2, 3], np.float32)
    same(original, result, {"p": truths, "q": truths[[0, 2, 1, 3]], "i": whole, "j": whole[::-1].copy(), "x": floats})


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("e = Slice(x, at, end, last) z = Concat<axis = -1>(n, e, x)", "Neg Concat"),
        ("e = Slice(x, at, end, last) z = Concat<axis = 1>(e, n)", "Neg"),
        ("e = Slice(x, at, end, last) z = Concat<axis = -1>(e, e)", "Slice"),
        ("e = Slice(x, begin, end, last) z = Concat<axis = -1>(n, e)", "Neg Slice Concat"),
    ],
)
def test_what_is_empty_is_not_joined(body: str, kinds: str) -> None:
    """As rotary embedding of a part of each head leaves it where that part is the whole head."""
    original = parse(f"""<ir_version: 9, opset_import: ["": 20]> g (float[b, 4] x) => (float[b, k] z)
        <int64[1] begin = {{2}}, int64[1] at = {{4}}, int64[1] end = {{99}}, int64[1] last = {{-1}}> {{ n = Neg(x) {body} }}""")
    result = ortfuse.optimize(original.clone(), passes="canonicalize").model
    assert ops(result) == kinds
    same(original, result, {"x": X})


def test_a_concat_of_opset_1_that_names_no_axis_is_left_alone() -> None:
    model = onnx.parser.parse_model("""<ir_version: 3, opset_import: ["" : 1]>
        g (float[2,3] x, float[2,0] y) => (float[2,3] z) { z = Concat(x, y) }""")
    result = ortfuse.optimize(model, loaded=False)
    assert [node.op_type for node in result.model.graph.node] == ["Concat"]
    assert not result.report.failures
