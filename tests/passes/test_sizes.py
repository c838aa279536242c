"""Sizes that are computed in different ways are one value."""

from __future__ import annotations

from small_models import apply

from ortfuse.passes import CommonSubexpressions


def test_the_same_symbolic_sizes_are_merged_and_others_are_not() -> None:
    text = """agraph (float[b, s] x, float[s, b] w) => (int64[1] p, int64[1] q, int64[1] r)
        <int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}> {
            n = Shape(x) m = Shape(w) a = Gather(n, one) k = Shape <start = 0, end = 1> (w) o = Gather(m, one)
            p = Mul(a, two) q = Mul(k, three) r = Neg(o) }"""
    model, counts, _ = apply(text, CommonSubexpressions())
    assert counts == [1]
    sizes = [node.inputs[0].name for node in model.graph if node.op_type in ("Neg", "Mul")]
    assert sizes == ["a", "a", "o"]
