"""Sigmoid and tanh in every spelling: what becomes of them, and what is left alone for numbers that overflow."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import ops, parse, rewritten, same

X = np.array([[np.nan, np.inf, -np.inf, -0.0], [0.0, 1.5, -100.0, 100.0]], np.float32)
NUMBERS = "float one = {1.0}, float two = {2.0}, float half = {0.5}, float minus = {-1.0}, float low = {-9.0}, float high = {9.0}"
LIMITED = "c = Clip(x, low, high) e = Exp(c)"

FOUND = {
    "n = Neg(x) e = Exp(n) d = Add(e, one) y = Reciprocal(d)": "Sigmoid",
    "n = Mul(x, minus) e = Exp(n) d = Add(one, e) y = Div(one, d)": "Sigmoid",
    "e = Exp(x) d = Add(e, one) y = Div(one, d)": "Neg Sigmoid",
    "e = Exp(x) d = Add(e, one) r = Reciprocal(d) y = Log(r)": "Exp Add Reciprocal Log",
    "e = Exp(x) d = Add(e, one) r = Reciprocal(d) s = ReduceSum(r) y = Div(r, s)": "Exp Add Reciprocal ReduceSum Div",
    "e = Exp(x) d = Add(e, one) r = Reciprocal(d) s = ReduceSum(r) t = Add(s, one) y = Div(r, t)": "Neg Sigmoid ReduceSum Add Div",
    "d = Mul(x, two) s = Sigmoid(d) t = Mul(s, two) y = Sub(t, one)": "Tanh",
    "s = Sigmoid(x) t = Mul(s, two) y = Sub(one, t)": "Mul Tanh",
    "e = Exp(x) d = Add(e, one) y = Div(e, d)": "Exp Add Div",
    f"{LIMITED} d = Add(e, one) y = Div(e, d)": "Clip Exp Add Div",
    f"{LIMITED} n = Neg(c) f = Exp(n) a = Sub(e, f) b = Add(e, f) y = Div(a, b)": "Clip Tanh",
    f"{LIMITED} a = Sub(e, one) b = Add(e, one) y = Div(a, b)": "Clip Mul Tanh",
    "t = Mul(x, minus) e = Exp(t) a = Sub(one, e) b = Add(e, one) y = Div(a, b)": "Mul Exp Sub Add Div",
}


@pytest.mark.parametrize("body", FOUND)
def test_spellings_of_sigmoid_and_tanh(body: str) -> None:
    original = parse(
        f"""<ir_version: 9, opset_import: ["": 20]> g (float[n,4] x) => (float[n,4] y) <{NUMBERS}> {{ {body} }}"""
    )
    result = rewritten(original, "fuse.activation")
    assert ops(result) == FOUND[body]
    same(original, result, {"x": X})


def test_a_quotient_of_exponentials_is_a_tanh_on_request() -> None:
    original = parse(f"""<ir_version: 9, opset_import: ["": 20]> g (float[n,4] x) => (float[n,4] y) <{NUMBERS}>
        {{ e = Exp(x) n = Neg(x) f = Exp(n) a = Sub(e, f) b = Add(e, f) y = Div(a, b) }}""")
    assert ops(rewritten(original, "fuse.activation")) == ops(original)
    result = rewritten(original, "fuse.activation", approximate=True)
    assert ops(result) == "Tanh"
    same(original, result, {"x": np.linspace(-5, 5, 8, dtype=np.float32).reshape(2, 4)})
