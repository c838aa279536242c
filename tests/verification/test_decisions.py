"""That decisions between tied numbers may come out either way, and no others."""

from __future__ import annotations

import numpy as np
import pytest
from small_graphs import model

from ortfuse.verification import Verdict, verify

X = np.array([[1.0, 1.0000001, 0.3], [0.2, 0.9, 0.1]], np.float32)


def compared(
    body: str, outputs: str, factors: str, x: np.ndarray = X, inputs: str = "float[2,3] x", rest: str = ""
) -> Verdict:
    """The verdict on a model that multiplies `x` by ones against the same with other factors."""
    one, other = (
        model(f"s = Mul(x, w) {body}", inputs, outputs, f"<float[3] w = {{{w}}}{rest}>") for w in ("1, 1, 1", factors)
    )
    return verify(one, other, inputs=[{"x": x}])


TIED = "1.000001, 1, 1"

BODIES = {
    "the index": ("y = ArgMax<axis = 1>(s)", "int64[2,1] y", ""),
    "the index, without its axis": ("y = ArgMax<axis = 1, keepdims = 0>(s)", "int64[2] y", ""),
    "what it selects": ("i = ArgMax<axis = 1, keepdims = 0>(s) y = Gather(t, i)", "float[2] y", ", float[3] t = {5, 6, 7}"),
    "the best two": ("v, y = TopK<axis = 1>(s, k)", "int64[2,2] y", ", int64[1] k = {2}"),
    "a comparison": ("a = Gather<axis = 1>(s, n) b = Gather<axis = 1>(s, m) y = Greater(a, b)", "bool[2] y",
                     ", int64 n = {0}, int64 m = {1}"),
    "what is counted": ("c = Greater(s, one) n = NonZero(c) y = Cast<to = 1>(n)", "float[2,k] y", ", float one = {1.0}"),
}  # fmt: skip


@pytest.mark.parametrize("case", BODIES)
def test_a_decision_between_tied_numbers_may_come_out_either_way(case: str) -> None:
    body, outputs, rest = BODIES[case]
    verdict = compared(body, outputs, TIED, rest=rest)
    assert verdict.state == "equal within the model's own sensitivity", verdict.summary()
    assert "with the original's decisions it is equal" in verdict.excused["y"].reason


@pytest.mark.parametrize("case", BODIES)
def test_a_decision_between_others_may_not(case: str) -> None:
    body, outputs, rest = BODIES[case]
    verdict = compared(body, outputs, "1.5, 0.5, 1", rest=rest)
    assert verdict.state == "not equal"
    assert "decides otherwise, and from other numbers" in verdict.summary()


def test_what_comes_after_a_tie_still_has_to_be_equal() -> None:
    body = "i = ArgMax<axis = 1, keepdims = 0>(s) y = Gather(t, i)"
    one = model(
        f"s = Mul(x, w) {body}", "float[2,3] x", "float[2] y", "<float[3] w = {1, 1, 1}, float[3] t = {5, 6, 7}>"
    )
    other = model(
        f"s = Mul(x, w) {body}", "float[2,3] x", "float[2] y", f"<float[3] w = {{{TIED}}}, float[3] t = {{5, 6.1, 7}}>"
    )
    verdict = verify(one, other, inputs=[{"x": X}])
    assert verdict.state == "not equal"
    assert "6.0999" in verdict.summary()


def quantised(factors: str, x: np.ndarray) -> Verdict:
    body = "q = QuantizeLinear(s, scale, zero) y = DequantizeLinear(q, scale, zero)"
    return compared(body, "float[n,3] y", factors, x, "float[n,3] x", ", float scale = {0.1}, uint8 zero = {128}")


def test_one_step_of_a_quantised_number_is_rounding() -> None:
    x = np.linspace(-3, 3, 300, dtype=np.float32).reshape(100, 3)
    x[7, 0] = 0.25
    verdict = quantised("1.000001, 1, 1", x)
    assert verdict.state == "equal within the model's own sensitivity"
    assert "1 of 300 quantised numbers by one step" in verdict.excused["y"].reason


def test_many_steps_or_larger_ones_are_not() -> None:
    x = np.linspace(-3, 3, 300, dtype=np.float32).reshape(100, 3)
    assert quantised("1.03, 1, 1", x).state == "not equal"
    assert quantised("1, 1, 1.5", x).state == "not equal"


def suppressed(factors: str, scores: list[float], least: float = 0.25) -> Verdict:
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.9], [5, 5, 6, 6]]], np.float32)
    body = "y = NonMaxSuppression(b, s, most, overlap, least)"
    limits = f", int64[1] most = {{5}}, float[1] overlap = {{0.5}}, float[1] least = {{{least}}}"
    one, other = (
        model(
            f"s = Mul(x, w) {body}", "float[1,1,3] x, float[1,3,4] b", "int64[k,3] y", f"<float[3] w = {{{w}}}{limits}>"
        )
        for w in ("1, 1, 1", factors)
    )
    return verify(one, other, inputs=[{"x": np.array([[scores]], np.float32), "b": boxes}])


def test_boxes_are_kept_as_a_set_up_to_near_thresholds() -> None:
    tied = suppressed("1.000001, 1, 1", [0.8, 0.8000001, 0.5])
    assert tied.state == "equal within the model's own sensitivity"
    assert "boxes next to a threshold" in tied.excused["y"].reason
    near = suppressed("1, 1, 1.000001", [0.8, 0.7, 0.25])
    assert near.state == "equal within the model's own sensitivity"
    assert suppressed("1.000001, 1, 1", [0.8, 0.7, 0.8000001]).state == "equal within the model's own sensitivity"


def test_boxes_that_should_be_kept_are_missed() -> None:
    assert suppressed("1, 1, 0.1", [0.8, 0.7, 0.5]).state == "not equal"
    assert suppressed("0.5, 1, 1", [0.8, 0.7, 0.5]).state == "not equal"


def test_another_operator_is_not_excused() -> None:
    one, other = (model(f"y = {kind}<axis = 1>(x)", "float[2,3] x", "int64[2,1] y") for kind in ("ArgMax", "ArgMin"))
    assert verify(one, other, inputs=[{"x": X}]).state == "not equal"
