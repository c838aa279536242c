"""Reductions of reductions: what is merged, what stays two, and that it stays right."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import ops, parse, rewritten, same

AXES = "int64[1] last = {2}, int64[1] second = {1}, int64[1] first = {0}"
REDUCED = {
    "a = ReduceSum<keepdims=0>(x, last) y = ReduceSum<keepdims=0>(a, second)": "ReduceSum",
    "a = ReduceSum<keepdims=0>(x, second) y = ReduceSum<keepdims=0>(a, second)": "ReduceSum",
    "a = ReduceMean(x, last) y = ReduceMean(a, second)": "ReduceMean",
    "a = ReduceMax(x, second) y = ReduceMax(a, second)": "ReduceMax",
    "a = ReduceMin(x, last) b = ReduceMin(a, second) y = ReduceMin(b, first)": "ReduceMin",
    "a = ReduceSum(x, last) y = ReduceSum(a, first)": "ReduceSum ReduceSum",
    "a = ReduceSum(x, last) y = ReduceSum<keepdims=0>(a, second)": "ReduceSum ReduceSum",
    "a = ReduceSum(x, last) y = ReduceMean(a, second)": "ReduceSum ReduceMean",
    "n = Neg(x) a = ReduceMax(n, last) y = Neg(a)": "ReduceMin",
    "n = Neg(x) a = ReduceMin<keepdims=0>(n, last) y = Neg(a)": "ReduceMax",
}


@pytest.mark.parametrize("body", REDUCED)
def test_reductions_of_reductions(body: str) -> None:
    dims = ", ".join("klm"[: 3 - body.count("keepdims=0")])
    text = f"""<ir_version: 9, opset_import: ["": 18]> g (float[n,3,4] x) => (float[{dims}] y) <{AXES}> {{ {body} }}"""
    original = parse(text)
    result = rewritten(original, "fuse.merge_reductions")
    assert ops(result) == REDUCED[body]
    same(original, result, {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)})


DROPPED = {
    "a = ReduceSum(x, last) y = Squeeze(a, last)": "ReduceSum",
    "a = ReduceMax(x, both) y = Squeeze(a, both)": "ReduceMax",
    "q = Mul(x, x) a = ReduceSum(q, last) b = Sqrt(a) y = Squeeze(b, last)": "Mul ReduceSum Sqrt",
    "a = ReduceSum(x, both) y = Squeeze(a, last)": "ReduceSum Squeeze",
    "a = ReduceSum(x, last) b = Div(x, a) c = Squeeze(a, last) d = Unsqueeze(c, last) y = Mul(b, d)": "ReduceSum Div Mul",
}


@pytest.mark.parametrize("body", DROPPED)
def test_axes_are_dropped_by_the_reduction(body: str) -> None:
    dims = "k,l,m" if "Div" in body else "k" if "y = Squeeze(a, both)" in body else "k,l"
    original = parse(
        f"""<ir_version: 9, opset_import: ["": 18]> g (float[n,3,4] x) => (float[{dims}] y)
        <int64[1] last = {{2}}, int64[2] both = {{1, 2}}> {{ {body} }}"""
    )
    result = rewritten(original, "canonicalize")
    assert ops(result) == DROPPED[body]
    same(original, result, {"x": np.random.default_rng(0).random((2, 3, 4)).astype(np.float32)})
