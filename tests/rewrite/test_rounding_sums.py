"""Numbers that are added and taken off again to round what is between stay apart from other terms."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs import run
from small_models import proto_of

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.io.convert_model_objects import enter
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.magic_number_rounding import rounding_number
from ortfuse.rewrite.pattern import op, scalar, var

X = np.random.default_rng(0).uniform(-9, 9, (2, 3, 3)).astype(np.float32)
CONSTANTS = (
    "c = Constant <value = float {12582912.0}> () four = Constant <value = float {4.0}> () "
    "w = Constant <value = float[3, 3] {1.0, 0.3, 0.0, 0.0, 1.0, 0.0, 0.2, 0.0, 1.0}> () "
    "k = Constant <value = float[3, 3, 1] {1.0, 0.3, 0.0, 0.0, 1.0, 0.0, 0.2, 0.0, 1.0}> () "
    "s = Constant <value = float[3] {1.1, 1.2, 1.3}> () z = Constant <value = float[3] {0.1, 0.2, 0.3}> () "
)
BEFORE = {
    "MatMul": "q = MatMul(x, w)",
    "MatMul and Add": "p = MatMul(x, w) q = Add(p, z)",
    "Gemm": "n = Constant <value = int64[2] {-1, 3}> () f = Reshape(x, n) q = Gemm(f, w, z)",
    "Conv": "q = Conv(x, k, z)",
    "ConvTranspose": "q = ConvTranspose(x, k, z)",
    "BatchNormalization": "q = BatchNormalization(x, s, z, z, s)",
    "Mul and Add": "p = Mul(x, s) q = Add(p, z)",
    "LayerNormalization": "q = LayerNormalization(x, s, z)",
}
ROUNDED = {
    "to integers": "a = Add(q, c) y = Sub(a, c)",
    "from the other side": "a = Sub(q, c) y = Add(c, a)",
    "of the negative": "a = Sub(c, q) y = Sub(c, a)",
    "to quarters": "m = Mul(q, four) a = Add(m, c) d = Sub(a, c) y = Div(d, four)",
}


def made(body: str) -> onnx.ModelProto:
    output = "float[u, v]" if "Gemm" in body else "float[b, 3, 3]"
    return proto_of(f"g (float[b, 3, 3] x) => ({output} y) {{ {CONSTANTS} {body} }}")


@pytest.mark.parametrize("rounded", ROUNDED)
@pytest.mark.parametrize("before", BEFORE)
def test_what_is_rounded_by_a_sum_is_rounded_in_the_result(before: str, rounded: str) -> None:
    original = made(f"{BEFORE[before]} {ROUNDED[rounded]}")
    (expected,), (found,) = (run(model, {"x": X}) for model in (original, ortfuse.optimize(original).model))
    step = 0.25 if rounded == "to quarters" else 1.0
    assert np.array_equal(expected, np.round(expected / step) * step), "the model rounds"
    np.testing.assert_allclose(found, expected, atol=step / 100)


def test_offsets_of_channels_that_round_are_not_folded_through_a_split_into_heads() -> None:
    body = (
        "s = Constant <value = int64[4] {0, 0, 2, 2}> () v = Constant <value = float[2, 1, 2] {49152, 49152, 49152, 49152}> () "
        "w = Constant <value = float[4, 4] {1, 0.3, 0, 0, 0, 1, 0.5, 0, 0, 0.2, 0, 1, 0.7, 0, 1, 0.1}> () "
        "p = MatMul(x, w) r = Reshape(p, s) q = Transpose <perm = [0, 2, 1, 3]> (r) a = Add(q, v) y = Sub(a, v)"
    )
    original = proto_of(f"g (float[b, n, 4] x) => (float[b, 2, n, 2] y) {{ {body} }}")
    inputs = {"x": np.random.default_rng(0).uniform(-9, 9, (2, 3, 4)).astype(np.float32)}
    (expected,), (found,) = (run(model, inputs) for model in (original, ortfuse.optimize(original).model))
    step = 2.0**-8
    assert np.array_equal(expected, np.round(expected / step) * step), "the model rounds"
    np.testing.assert_allclose(found, expected, atol=step / 100)


@pytest.mark.parametrize(
    ("numbers", "counts"),
    [("12582912.0", True), ("-49152.0", True), ("100.0", False), ("-1e9", False), ("-3.4e38", False)],
)
def test_large_numbers_count_but_none_that_mask(numbers: str, counts: bool) -> None:
    body = f"t = Constant <value = float[2] {{{numbers}, {numbers}}}> () y = Add(x, t)"
    model = enter(proto_of(f"g (float[a, 2] x) => (float[a, 2] y) {{ {body} }}"))[0]
    assert (rounding_number(model.graph[-1], Facts(model)) is not None) == counts


def test_a_rule_of_the_user_may_take_it() -> None:
    x = var("x")
    rule = Rule(
        name="mine.round", pattern=op.Sub(op.Add(x, scalar("number")), scalar("number")), replace=op.Round(x),
        exactness=Exactness.ROUNDING, source="test", test=RuleTest(shapes={"x": "2 3"}),
    )  # fmt: skip
    result = ortfuse.optimize(made("q = Neg(x) a = Add(q, c) y = Sub(a, c)"), patterns=rule, check_user=False)
    assert "Round" in {node.op_type for node in result.model.graph.node}


def test_the_reason_is_told() -> None:
    found = ortfuse.explain(made(f"{BEFORE['Conv']} {ROUNDED['to integers']}"), ["compose_linear_maps"])
    assert "rounds what it is added to" in found.missed[0].refusal.reason
