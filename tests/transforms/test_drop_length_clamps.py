"""Lengths clamped at a bound: which minima are the length itself."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import operators
from small_models import apply, model_of

import ortfuse
from ortfuse.transforms import DropLengthClamps

HEAD = """agraph (float[b, s, 6] x, float[s, 6] w) => (float[b, n, 6] y)
    <int64[1] bound = {BOUND}, int64[1] one = {1}, int64[1] two = {2}, int64[1] six = {6}, int64[1] zero = {0}> {
        n = Shape(x) first = Gather(n, zero) length = Gather(n, one) cut = Min(bound, length)
        target = Concat <axis = 0> (first, cut, six) seen = Reshape <allowzero = 1> (x, target) """
SUM = "y = Add(seen, w) }"


def text(body: str, bound: int = 8) -> str:
    return HEAD.replace("BOUND", str(bound)) + body


def inputs(length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal((2, length, 6), np.float32), "w": rng.standard_normal((length, 6), np.float32)}


@pytest.mark.parametrize("length", [1, 5, 8])
def test_a_length_that_must_not_be_cut_is_the_length(length: int) -> None:
    model, counts, _ = apply(text(SUM), DropLengthClamps(), inputs=inputs(length))
    assert counts == [1]
    assert "Min" not in operators(model)


@pytest.mark.parametrize(
    "body",
    [
        "y = Relu(seen) }",
        "unused = Add(seen, w) y = Relu(seen) }",
        "part = Slice(w, zero, cut, zero) y = Add(seen, part) }",
        "c = Greater(bound, length) y = If(c) <then_branch = t () => (float[b, m, 6] r) { r = Add(seen, w) },"
        " else_branch = e () => (float[b, m, 6] q) { q = Relu(seen) }> }",
    ],
    ids=["nothing else", "for nothing", "cut as well", "now and then"],
)
def test_a_length_that_may_be_cut_stays_cut(body: str) -> None:
    model, counts, _ = apply(text(body), DropLengthClamps())
    assert counts == [0]
    assert "Min" in operators(model)


def test_a_length_cut_at_one_stays_cut() -> None:
    """Of size 1 an operand is broadcast, and the whole length is no error."""
    _, counts, _ = apply(text(SUM, bound=1), DropLengthClamps())
    assert counts == [0]


CACHE = """agraph (float[b, p, 6] past, float[b, s, 6] x, float[8, 1] table) => (float[b, n, 6] y, int64[1] z)
    <int64[1] bound = {8}, int64[1] other = {OTHER}, int64[1] one = {1}, int64[1] times = {TIMES}, int64[1] zero = {0}> {
        whole = Concat <axis = 1> (past, x) n = Shape(whole) m = Shape(past)
        all = Gather(n, one) old = Gather(m, one) length = Mul(old, times)
        cut = Min(bound, all) first = Min(other, length)
        part = Slice(table, zero, cut, zero) y = Add(whole, part) z = Neg(first) }"""


@pytest.mark.parametrize(
    ("other", "times", "count"),
    [(8, 1, 2), (9, 1, 2), (7, 1, 1), (8, 2, 1)],
    ids=["the same bound", "a larger bound", "a smaller bound", "a longer length"],
)
def test_a_length_is_as_short_as_one_that_is_no_shorter(other: int, times: int, count: int) -> None:
    """Where past + new is at most 8, past is; it may be cut at 7, and twice as much may be cut at 8."""
    text = CACHE.replace("OTHER", str(other)).replace("TIMES", str(times))
    rng = np.random.default_rng(0)
    sizes = {"past": (2, 4, 6), "x": (2, 3, 6), "table": (8, 1)}
    given = {name: rng.standard_normal(size, np.float32) for name, size in sizes.items()}
    model, counts, _ = apply(text, DropLengthClamps(), inputs=given)
    assert counts == [count]
    assert operators(model).count("Min") == 2 - count


def test_the_target_of_the_view_is_constant_then() -> None:
    result = ortfuse.optimize(model_of(text(SUM)))
    assert operators(result.model) == ["Add"]
