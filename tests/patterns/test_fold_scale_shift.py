"""Chains of Mul and Add with constants: which are folded, which are not, and that they stay right."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from rewriting import composed, ops, parse, same

CONSTANTS = {
    "two": "float two = {2.0}", "half": "float[1] half = {0.5}", "one": "float one = {1.0}", "pixel": "float pixel = {127.5}",
    "scale": "float[3,1] scale = {0.5, -0.25, 2.0}", "shift": "float[1,3,1] shift = {1.0, 0.0, -3.0}",
    "huge": "float huge = {1e30}", "magic": "float magic = {12582912.0}", "zero": "float zero = {0.0}",
}  # fmt: skip


def model(body: str) -> ir.Model:
    words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    constants = ", ".join(text for name, text in CONSTANTS.items() if name in words)
    return parse(
        f'<ir_version: 9, opset_import: ["": 20]> g (float[n,3,2] x) => (float[n,3,2] y) <{constants}> {{ {body} }}'
    )


COMBINED = {
    "a = Mul(x, two) b = Add(a, one) y = Mul(b, half)": "Add",
    "a = Mul(x, scale) y = Div(a, two)": "Mul",
    "a = Neg(x) y = Mul(scale, a)": "Mul",
    "a = Add(x, shift) y = Sub(a, one)": "Add",
    "a = Sub(one, x) y = Sub(a, shift)": "Sub",
    "a = Sub(one, x) y = Sub(two, a)": "Add",
    "a = Mul(x, two) b = Mul(a, half) y = Add(a, b)": "Mul",
    "a = Sub(x, pixel) b = Div(a, pixel) y = Add(shift, b)": "Mul Add",
    "a = Mul(x, two) b = Add(a, one) c = Mul(b, scale) d = Sub(c, shift) e = Neg(d) y = Div(e, two)": "Mul Add",
}


@pytest.mark.parametrize("body", COMBINED)
def test_a_chain_of_constants_is_one_product_and_one_sum(body: str) -> None:
    original = model(body)
    result = composed(original)
    assert ops(result) == COMBINED[body]
    for number in (0.3, -7.0, 127.4, 1e-20, 1e20, np.inf, np.nan):
        same(original, result, {"x": np.full((2, 3, 2), number, np.float32)})


LEFT_ALONE = {
    "one product and one sum": "a = Mul(x, two) y = Add(a, one)",
    "a sum scaled once": "a = Add(x, one) y = Mul(a, scale)",
    "a product that overflows": "a = Mul(x, huge) y = Div(a, huge)",
    "a product with zero": "a = Mul(x, zero) y = Mul(a, two)",
    "a quotient of infinity": "a = Div(x, zero) y = Mul(a, two)",
    "rounding to integers": "a = Add(x, magic) y = Sub(a, magic)",
    "a shift by more than x may be": "a = Sub(x, magic) b = Mul(a, two) y = Add(b, one)",
    "an infinity from itself": "a = Mul(x, two) b = Mul(a, scale) y = Add(a, b)",
    "used again": "a = Mul(x, two) b = Mul(a, scale) y = Max(a, b)",
    "a bucket of positions": "a = Div(x, two) b = Mul(a, scale) c = Add(b, x) d = Floor(c) y = Relu(d)",
    "the inverse of x": "a = Div(two, x) y = Mul(a, two)",
}


@pytest.mark.parametrize("reason", LEFT_ALONE)
def test_near_miss_is_left_alone(reason: str) -> None:
    original = model(LEFT_ALONE[reason])
    assert ops(composed(original)) == ops(original)


def test_constants_of_different_axes_are_not_multiplied_out() -> None:
    original = parse("""<ir_version: 9, opset_import: ["": 20]> g (float[n,3,2] x) => (float[n,3,2] y)
        <float[3,1] rows = {1.0, 2.0, 3.0}, float[2] columns = {1.0, 2.0}> { a = Mul(x, rows) y = Mul(a, columns) }""")
    assert ops(composed(original)) == "Mul Mul"


def test_half_precision_keeps_what_would_overflow() -> None:
    body = "a = Mul(x, two) b = Add(a, pixel) y = Mul(b, two)"
    assert ops(composed(model(body))) == "Mul Add"
    original = parse("""<ir_version: 9, opset_import: ["": 20]> g (float16[n] x) => (float16[n] y)
        <float two = {2.0}, float pixel = {127.5}> {
            t = Cast<to=10>(two) p = Cast<to=10>(pixel) a = Mul(x, t) b = Add(a, p) y = Mul(b, t) }""")
    assert ops(composed(original)).endswith("Mul Add Mul")
