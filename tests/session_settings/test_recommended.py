"""Which settings are recommended, and that those that could be seen in a result are not."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortfuse.runtime.session_settings import recommended
from ortfuse.runtime.session_settings.recommendations import DENORMALS

HEADER = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>'
MASK = "<float[1,4] mask = {0, -100, 0, -100}>"


def model(body: str, constants: str = MASK, outputs: str = "float[2,4] y") -> ir.Model:
    return ir.from_onnx_text(f"{HEADER} g (float[2,4] x) => ({outputs}) {constants} {{ {body} }}")


def test_a_mask_with_faint_exponentials_is_a_reason_to_take_subnormal_numbers_as_zero() -> None:
    found = recommended(model("s = Add(x, mask) y = Softmax(s)"))
    assert found.value(DENORMALS) == "1"
    assert "'mask'" in next(iter(found)).reason


@pytest.mark.parametrize("hidden", [0.0, -10.0, -10000.0])
def test_a_mask_without_them_is_not(hidden: float) -> None:
    constants = f"<float[1,4] mask = {{0, {hidden}, 0, {hidden}}}>"
    assert not len(recommended(model("s = Add(x, mask) y = Softmax(s)", constants)))


def test_weights_of_such_numbers_are_a_reason_too() -> None:
    assert recommended(model("y = Mul(x, mask)", "<float[1,4] mask = {1, 1e-40, 1, 1}>")).value(DENORMALS) == "1"


@pytest.mark.parametrize(
    "rest",
    [
        "y = Log(p)",
        "y = Div(x, p)",
        "y = Reciprocal(p)",
        "y = Ceil(p)",
        "y = Sign(p)",
        "z = Constant <value_float = 0.0> () b = Greater(p, z) y = Where(b, x, p)",
        "b = Cast <to = 9> (p) y = Where(b, x, p)",
        "c = Constant <value_float = 1e30> () y = Mul(p, c)",
        "e = Constant <value_float = -1.0> () y = Pow(p, e)",
    ],
)
def test_not_where_an_operator_can_tell_them_from_zero(rest: str) -> None:
    assert not len(recommended(model(f"s = Add(x, mask) p = Softmax(s) {rest}")))


@pytest.mark.parametrize(
    "rest",
    [
        "c = Constant <value_float = 0.5> () b = Greater(p, c) y = Where(b, x, p)",
        "q = Exp(p) y = Div(x, q)",
        "y = LayerNormalization(p, g)",
        "e = Constant <value_float = 2.0> () y = Pow(p, e)",
        "y = com.microsoft.BiasGelu(p, g)",
    ],
)
def test_but_where_none_can(rest: str) -> None:
    constants = "<float[1,4] mask = {0, -100, 0, -100}, float[4] g = {1, 2, 3, 4}>"
    assert recommended(model(f"s = Add(x, mask) p = Softmax(s) {rest}", constants)).value(DENORMALS) == "1"


def test_operators_of_unknown_domains_may_see_anything() -> None:
    text = HEADER.replace('"com.microsoft": 1', '"my": 1')
    found = ir.from_onnx_text(
        f"{text} g (float[2,4] x) => (float[2,4] y) {MASK} {{ s = Add(x, mask) p = Softmax(s) y = my.Thing(p) }}"
    )
    assert not len(recommended(found))
