"""Products of one input as one product: which are merged, and that parts are what they were."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import operators
from small_models import apply, floats, model_of

import ortfuse
from ortfuse.transforms import DeadCodeElimination, HorizontalMatMulFusion

WEIGHTS = (
    "float[2, 3] a = {1, 2, 3, 4, 5, 6}, float[2, 1] b = {7, 8}, float[2, 2] c = {9, 1, 2, 3},"
    " float[3] p = {1, 2, 3}, float[1] q = {4}, float[2] r = {5, 6}"
)


def text(body: str, shape: str = "n, 2") -> str:
    return f"g (float[{shape}] x, float[2] v) => (y1, y2, y3) <{WEIGHTS}> {{ {body} }}"


PLAIN = "y1 = MatMul(x, a) y2 = MatMul(x, b) y3 = MatMul(x, c)"
ADDED = "m1 = MatMul(x, a) m2 = MatMul(x, b) y1 = Add(p, m1) m3 = MatMul(x, c) y2 = Add(m2, q) y3 = Add(m3, r)"
GEMM = "y1 = Gemm(x, a, p) y2 = Gemm(x, b, q) y3 = Gemm <transB = 1> (x, c, r)"


@pytest.mark.parametrize(
    ("body", "made"),
    [
        (PLAIN, ["MatMul", "Split"]),
        (ADDED, ["MatMul", "Add", "Split"]),
        (GEMM, ["MatMul", "Add", "Split"]),
        (ADDED.replace("Add(m3, r)", "Add(m3, v)"), ["MatMul", "Add", "Split", "Add"]),
    ],
    ids=["plain", "with vectors", "Gemm", "one vector is not constant"],
)
def test_products_of_one_input_are_one_product(body: str, made: list[str]) -> None:
    inputs = {
        "x": np.round(floats(4, 2) * 8),
        "v": np.round(floats(2) * 8),
    }  # whole numbers, so that nothing is rounded
    model, counts, _ = apply(text(body), HorizontalMatMulFusion(), DeadCodeElimination(), inputs=inputs)
    assert counts[0] == 3
    assert operators(model) == made


@pytest.mark.parametrize(
    "body",
    [
        "y1 = MatMul(x, a) y2 = Relu(x) y3 = Neg(x)",
        "s = Relu(x) y1 = MatMul(x, a) y2 = MatMul(s, b) y3 = Neg(x)",
        "y1 = MatMul(x, a) y2 = MatMul(x, c) y3 = MatMul(c, x)",
        "y1 = Gemm <alpha = 2.0> (x, a) y2 = MatMul(x, b) y3 = Neg(x)",
        "y1 = Gemm <transA = 1> (x, c) y2 = MatMul(x, b) y3 = Neg(x)",
    ],
    ids=["one", "two inputs", "a weight used twice", "scaled", "transposed"],
)
def test_other_products_stay(body: str) -> None:
    _, counts, _ = apply(text(body, "2, 2"), HorizontalMatMulFusion())
    assert counts == [0]


def test_a_vector_for_each_row_is_no_vector_for_each_column() -> None:
    body = "y1 = Gemm(x, a, p) y2 = Gemm(x, c, rows) y3 = Neg(x)"
    model = text(body, "2, 2").replace("<float", "<float[2, 1] rows = {1, 2}, float")
    _, counts, _ = apply(model, HorizontalMatMulFusion())
    assert counts == [0]


def test_fewer_products_than_asked_for_stay() -> None:
    _, counts, _ = apply(text(PLAIN), HorizontalMatMulFusion(least=4))
    assert counts == [0]


def test_it_is_a_pass_that_users_can_name() -> None:
    result = ortfuse.optimize(model_of(text(PLAIN)), passes="all, horizontal_matmul_fusion, dce", verify="whole")
    assert sorted(operators(result.model)) == ["MatMul", "Split"]
