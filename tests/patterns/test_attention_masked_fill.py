"""Scores of attention that a finite number replaces: right for fully masked rows and low scores, or left alone with a reason."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from attention_models import INPUTS, model, scores_to_result
from graphs import operators, run

import ortfuse

KEEP = f"{INPUTS}, bool[b,1,1,t] keep"
UNIT = "qn = LpNormalization<axis = -1>(q) kn = LpNormalization<axis = -1>(k) kt2 = Transpose<perm = [0, 1, 3, 2]>(kn) qk = MatMul(qn, kt2)"
CHOSEN = "masked = Where(keep, scores, filler)"
HIDDEN = "hide = Not(keep) masked = Where(hide, filler, scores)"
PLAIN = "qk = MatMul(q, kt)"


def _graph(product: str, filled: str, filler: float, inputs: str = KEEP, **more: float) -> ir.Model:
    return model(f"{product} scores = Mul(qk, half) {filled} {scores_to_result()}", inputs, filler=filler, **more)


def _agree(before: ir.Model, after: ir.Model, size: float) -> None:
    """Compare on scores of this size, with queries that see no key at all."""
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.standard_normal((2, 2, count, 4)).astype(np.float32) for name, count in (("q", 3), ("k", 5), ("v", 5))
    }
    inputs["q"] *= size
    keep = rng.random((2, 1, 1, 5)) < 0.5
    keep[0] = False
    for one, other in zip(run(before, {**inputs, "keep": keep}), run(after, {**inputs, "keep": keep}), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("filler", [-150.0, -1000.0, -1e4, -65504.0, -1e9])
@pytest.mark.parametrize("filled", [CHOSEN, HIDDEN], ids=["kept", "hidden"])
def test_a_filler_that_no_bounded_score_reaches_becomes_a_mask(filler: float, filled: str) -> None:
    before = _graph(UNIT, filled, filler)
    after = ortfuse.optimize(before).model
    assert "Attention" in operators(after) and "Softmax" not in operators(after)
    _agree(before, after, 1.0)


def test_capped_scores_and_scores_with_a_bounded_bias_are_above_the_filler() -> None:
    capped = "s1 = Div(qk, cap) s2 = Tanh(s1) s3 = Mul(s2, cap) masked = Where(keep, s3, filler)"
    biased = "small = Tanh(bias) sum = Add(scores, small) masked = Where(keep, sum, filler)"
    first = model(f"{PLAIN} {capped} {scores_to_result()}", KEEP, filler=-1000.0, cap=30.0)
    second = _graph(UNIT, biased, -1000.0, f"{KEEP}, float[1,2,s,t] bias")
    for before in (first, second):
        assert "Attention" in operators(ortfuse.optimize(before, verify="whole").model)
    _agree(first, ortfuse.optimize(first).model, 1e4)


def test_scores_times_a_mask_plus_a_filler_are_chosen_by_the_mask() -> None:
    filled = "m = Cast<to = 1>(keep) one = Constant<value_float = 1.0>() n = Sub(one, m) a = Mul(scores, m) c = Mul(n, filler) masked = Add(a, c)"
    before = _graph(UNIT, filled, -1e4)
    after = ortfuse.optimize(before).model
    assert "Attention" in operators(after)
    _agree(before, after, 1.0)


@pytest.mark.parametrize("filler", [-1000.0, -1e4, -65504.0])
def test_a_filler_that_scores_may_reach_is_left_with_the_reason_and_remedies(filler: float) -> None:
    before = _graph(PLAIN, HIDDEN, filler)
    result = ortfuse.optimize(before, explain=["attention"])
    assert "Attention" not in operators(result.model)
    _agree(before, result.model, 1e5)
    (miss,) = result.explanation.missed
    assert "MatMul" not in miss.refusal.reason
    assert "low enough to hide every key that it replaces" in miss.refusal.reason
    assert f"above {filler + 104:g}" in miss.refusal.remedy and "--assume fills-hide" in miss.refusal.remedy


def test_a_filler_is_taken_to_hide_keys_if_the_user_says_so() -> None:
    before = _graph(PLAIN, HIDDEN, -1000.0)
    result = ortfuse.optimize(before, assume="fills-hide")
    assert "Attention" in operators(result.model)
    assert any("--assume fills-hide" in note for note in result.report.notes)
    _agree(before, result.model, 10.0)
    assert "Attention" not in operators(ortfuse.optimize(_graph(PLAIN, HIDDEN, -10.0), assume="fills-hide").model)


def test_a_filler_to_which_something_is_added_is_left() -> None:
    """A query whose kept keys are all hidden by the second mask weighs the keys that the first one hides."""
    filled = f"{CHOSEN.replace('masked', 'first')} masked = Add(first, padding)"
    before = _graph(UNIT, filled, -1e4, f"{KEEP}, float[b,1,1,t] padding")
    after = ortfuse.optimize(before).model
    inputs = {name: np.random.default_rng(0).standard_normal((1, 2, 3, 4)).astype(np.float32) for name in "qkv"}
    keep, padding = np.array([[[[True, False, False]]]]), np.array([[[[-1e4, 0.0, -1e4]]]], np.float32)
    for one, other in zip(
        *(run(each, {**inputs, "keep": keep, "padding": padding}) for each in (before, after)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_bias_that_may_hide_kept_keys_leaves_the_filler() -> None:
    biased = "sum = Add(scores, bias) masked = Where(keep, sum, filler)"
    before = _graph(UNIT, biased, -1e4, f"{KEEP}, float[1,2,s,t] bias")
    assert "Attention" not in operators(ortfuse.optimize(before).model)
