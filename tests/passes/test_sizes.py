"""Sizes that are computed in different ways are one value."""

from __future__ import annotations

from small_models import apply

from ortfuse.passes import CommonSubexpressions, DeadCode


def test_the_same_symbolic_sizes_are_merged_and_others_are_not() -> None:
    text = """agraph (float[b, s] x, float[s, b] w) => (int64[1] p, int64[1] q, int64[1] r)
        <int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}> {
            n = Shape(x) m = Shape(w) a = Gather(n, one) k = Shape <start = 0, end = 1> (w) o = Gather(m, one)
            p = Mul(a, two) q = Mul(k, three) r = Neg(o) }"""
    model, counts, _ = apply(text, CommonSubexpressions())
    assert counts == [1]
    sizes = [node.inputs[0].name for node in model.graph if node.op_type in ("Neg", "Mul")]
    assert sizes == ["a", "a", "o"]


def test_sizes_of_what_lies_between_are_read_from_what_comes_first() -> None:
    text = """agraph (float[b, s, 4] x, float[4, 8] w) => (int64[1] p, int64 q, float[b, s, s] t)
        <int64[1] two = {2}, int64[1] three = {3}, int64 one = {1}> {
            y = MatMul(x, w) z = Transpose <perm = [0, 2, 1]> (y) t = MatMul(y, z)
            n = Shape(t) m = Slice(n, two, three) p = Neg(m) k = Gather(n, one) q = Neg(k) }"""
    model, _, _ = apply(text, CommonSubexpressions(), DeadCode())
    assert {node.inputs[0].name for node in model.graph if node.op_type == "Shape"} == {"x"}


def test_parts_of_a_shape_stay_where_another_use_of_it_does() -> None:
    text = """agraph (float[b, s, 4] x, float[4, 8] w, float[u] r) => (int64 q, float t)
        <int64 one = {1}> {
            y = MatMul(x, w) z = Transpose <perm = [0, 2, 1]> (y) v = MatMul(y, z)
            n = Shape(v) t = Expand(r, n) k = Gather(n, one) q = Neg(k) }"""
    model, _, _ = apply(text, CommonSubexpressions())
    assert [node.inputs[0].name for node in model.graph if node.op_type == "Shape"] == ["v"]
