"""That verdicts of equality are of models that were exercised, and say what was not."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from small_graphs import model
from typer.testing import CliRunner

from ortfuse.cli.app import app
from ortfuse.runtime.comparison import compare
from ortfuse.verification import Trial, Verdict, verify

HEAD = '<ir_version: 10, opset_import: ["": 19]>'


def read(text: str) -> ir.Model:
    return ir.from_onnx_text(f"{HEAD} {text}")


def test_loops_that_compute_other_things_are_not_equal() -> None:
    text = """g (float[3] x, int64[1] v) => (float[3] y) <bool t = {1}, float k = {2}> { n = Squeeze(v)
        y = Loop(n, t, x) <body = b (int64 i, bool c, float[3] h) => (bool d, float[3] e) { d = Identity(c) e = Mul(h, k) }> }"""
    assert not verify(read(text), read(text.replace("{2}", "{3}"))).ok


@pytest.mark.parametrize("kind", ["int8", "int32", "int64"])
def test_absolute_values_of_integers_are_not_equal_to_them(kind: str) -> None:
    before = read(f"g ({kind}[n] q) => (float[n] y) {{ y = Cast<to = 1>(q) }}")
    assert not verify(before, read(f"g ({kind}[n] q) => (float[n] y) {{ c = Cast<to = 1>(q) y = Abs(c) }}")).ok


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ("y = Tile(x, r)", "z = Mul(x, two) y = Tile(x, r)"),
        ("f = Range(nil, n, one) y = Cast<to = 1>(f)", "f = Range(nil, n, one) g = Cast<to = 1>(f) y = Mul(g, g)"),
        ("v, i = TopK(x, r) y = Identity(v)", "a = Neg(x) b, i = TopK<largest = 0>(a, r) c = Neg(b) y = Abs(c)"),
    ],
)
def test_counts_that_are_inputs_are_of_several_values(body: str, wrong: str) -> None:
    text = "g (float[9] x, int64[1] r, int64 n) => (float[?] y) <int64 nil = {{0}}, int64 one = {{1}}, float two = {{2}}> {{ {} }}"
    wrong = wrong.replace("y = Tile(x, r)", "k = Tile(x, r) l = Abs(k) y = Add(k, l)")
    assert verify(read(text.format(body)), read(text.format(body))).ok
    assert not verify(read(text.format(body)), read(text.format(wrong))).ok


def test_a_batch_of_one_that_is_baked_in_is_compared_at_several_lengths() -> None:
    """Over a single key, a softmax is 1 whatever its scores are."""
    text = """g (float[b, s, 4] x) => (float[1, s, 4] y) <int64[3] k = {1, -1, 4}, float c = {0.5}> {
        r = Reshape(x, k) p = Transpose<perm = [0, 2, 1]>(r) m = MatMul(r, p) z = Mul(m, c) q = Softmax(z) y = MatMul(q, r) }"""
    assert verify(read(text), read(text)).state == "equal"
    assert not verify(read(text), read(text.replace("{0.5}", "{0.9}"))).ok


def test_what_never_ran_is_said() -> None:
    text = """g (float[3] x) => (float[3] y) <float k = {-1}> {
        a = Abs(x) m = ReduceMax<keepdims = 0>(a) f = Greater(m, k)
        y = If(f) <then_branch = t () => (float[3] z) { z = Neg(x) }, else_branch = e () => (float[3] r) { r = Abs(x) }> }"""
    verdict = verify(read(text), read(text))
    assert verdict.ok
    assert verdict.state == "equal as far as exercised"
    assert "not exercised: If node that produces 'y' never took its else branch" in verdict.summary()
    assert verdict.to_dict()["exercise"]["missing"] == ["If node that produces 'y' never took its else branch"]


EMPTY = "g (float[8] x) => (float[?] y) <float k = {1e30}> { f = Greater(x, k) i = NonZero(f) t = Transpose(i) y = GatherND(x, t) }"


def test_outputs_that_are_always_empty_are_not_called_equal() -> None:
    verdict = verify(
        read(EMPTY), read(EMPTY.replace("GatherND(x", "GatherND(f0").replace("{ f =", "{ f0 = Neg(x) f ="))
    )
    assert not verdict.ok
    assert verdict.state == "not compared"
    assert "--inputs" in verdict.summary()


def test_a_comparison_of_nothing_has_the_exit_code_of_what_cannot_be_used(tmp_path: Path) -> None:
    path = str(tmp_path / "m.onnx")
    ir.save(read(EMPTY), path)
    ended = CliRunner().invoke(app, ["verify", path, path])
    assert ended.exit_code == 2
    assert "NOT COMPARED" in ended.output


def test_given_inputs_are_told_to_show_little() -> None:
    m = read("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    verdict = verify(m, m, inputs=[{"x": np.zeros(4, "f4")}])
    assert "output 'y' was nearly constant" in verdict.summary()


@pytest.mark.parametrize(
    "body",
    [
        "r = RandomNormal<shape = [2, 3]>() y = Add(x, r)",
        "r = RandomUniformLike(x) y = Mul(x, r)",
        "y, mask = Dropout(x, half, train)",
        "s = Sigmoid(x) r = Bernoulli(s) y = Mul(x, r)",
    ],
)
def test_models_that_draw_random_numbers_are_compared_with_fixed_seeds(body: str) -> None:
    text = "g (float[2,3] x) => (float[2,3] y) <float half = {{0.5}}, bool train = {{1}}, float two = {{2}}> {{ {} }}"
    same = read(text.format(body))
    assert verify(same, read(text.format(body))).state == "equal"
    inner = body.replace("y, mask", "k, mask").replace("y =", "k =")
    other = read(text.format(f"{inner} y = Mul(k, two)"))
    assert verify(same, other).state == "not equal"


def test_errors_are_told_relative_to_the_outputs() -> None:
    big = "<float k = {80000.0}>"
    verdict = verify(model("y = Mul(x, k)", initializers=big), model("a = Mul(k, x) y = Identity(a)", initializers=big))
    assert "largest error 0 of the output's scale" in verdict.summary()


def test_an_error_above_the_tolerance_says_why_it_is_allowed() -> None:
    """A sum in another order may be off by as much as the original is itself."""
    x = np.ones(4, "f4")
    found = compare("y", x * np.float32(1.0003), x * np.float32(1.0001), x.astype("f8"))
    assert found.ok
    assert found.criterion == "float64"
    verdict = Verdict([Trial("s=4", False, [found])])
    assert verdict.summary().endswith(
        "output 'y': more than 0.0001 is allowed, since the error against float64 is 0.0001 of the scale, the original's 0.0003"
    )


def test_a_wrong_epsilon_is_found() -> None:
    text = "m = ReduceMean(x, last) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, last) w = Add(v, e) s = Sqrt(w) y = Div(d, s)"
    constants = "<int64[1] last = {{-1}}, float e = {{{}}}>"
    before, after = (model(text, "float[b,8] x", "float[b,8] y", constants.format(e)) for e in ("1e-5", "1.2e-5"))
    assert not verify(before, after).ok
