"""Pow, Exp and Log in fewer or faster nodes: what they become, and that they stay right."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import ops, parse, rewritten, same

X = np.array([[np.nan, np.inf, -np.inf, -0.0], [0.0, 1.5, -2.0, 1e-5], [1e20, -1e20, 1e-12, 3.0]], np.float32)
NUMBERS = (
    "float one = {1}, float two = {2}, int64[1] axis = {1}, float three = {3}, float four = {4}, float five = {5}, float many = {9}, float minus = {-1}, "
    "float last = {-3}, float root = {0.5}, float inverse = {-0.5}, float half = {1.5}, float other = {2.5}, float low = {-40.0}"
)

POWERS = {
    "y = Pow(x, four)": "Mul Mul",
    "y = Pow(x, five)": "Mul Mul Mul",
    "y = Pow(x, minus)": "Reciprocal",
    "y = Pow(x, last)": "Mul Mul Reciprocal",
    "y = Pow(x, three)": "Mul Mul",
    "y = Pow(x, two)": "Mul",
    "p = Pow(x, two) m = ReduceMean(p, axis) y = Add(m, x)": "Pow ReduceMean Add",
    "y = Pow(x, many)": "Pow",
    "y = Pow(x, other)": "Pow",
    "y = Pow(x, half)": "Pow",
    "a = Abs(x) y = Pow(a, half)": "Abs Sqrt Mul",
    "a = Abs(x) y = Pow(a, inverse)": "Abs Pow",
    "a = Abs(x) b = Add(a, one) y = Pow(b, inverse)": "Abs Add Sqrt Reciprocal",
    "s = Mul(x, x) y = Mul(x, s)": "Mul Mul",
    "s = Mul(x, x) c = Mul(s, x) y = Mul(c, x)": "Mul Mul",
    "c = Pow(x, three) y = Mul(x, c)": "Mul Mul",
    "s = Mul(x, x) c = Mul(s, x) y = Add(c, s)": "Mul Mul Add",
    "a = Abs(x) s = Sqrt(a) y = Mul(s, s)": "Abs",
    "s = Sqrt(x) y = Mul(s, s)": "Sqrt Mul",
    "a = Abs(x) l = Log(a) y = Exp(l)": "Abs",
    "l = Log(x) y = Exp(l)": "Log Exp",
    "t = Tanh(x) e = Exp(t) y = Log(e)": "Tanh",
    "e = Exp(x) y = Log(e)": "Exp Log",
}


@pytest.mark.parametrize("body", POWERS)
def test_powers_in_fewer_or_faster_nodes(body: str) -> None:
    original = parse(
        f"""<ir_version: 9, opset_import: ["": 20]> g (float[n,4] x) => (float[n,4] y) <{NUMBERS}> {{ {body} }}"""
    )
    result = rewritten(original, "target_decompositions")
    assert ops(result) == POWERS[body]
    same(original, result, {"x": X})


def test_powers_of_integers_stay() -> None:
    original = parse("""<ir_version: 9, opset_import: ["": 20]> g (int64[n] x) => (int64[n] y) <int64 four = {4}>
        { y = Pow(x, four) }""")
    assert ops(rewritten(original, "target_decompositions")) == "Pow"
