"""Loops over sequences of open length have run where the model fails without elements; elsewhere they stay."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest
from graphs import operator_counts, run
from recurrent_models import HIDDEN, INPUTS, constants, model
from test_loops import LSTM, STATE, inputs_of, loop

LOOP = f"sx = Shape(X) n = Gather(sx, at0) {loop(LSTM, runs='n')}"
PASSES = "canonicalize, vectorize_loops, canonicalize"
NUMBERS = constants() | {
    "yes": np.bool_(True),
    "last": np.int64(-1),
    "last1": np.int64([-1]),
    "last3": np.int64([-3]),
    "far": np.int64([2**31]),
    "first": np.int64([0]),
    "nowhere": np.zeros(0, np.int64),
}


def made(body: str, outputs: str, inputs: str = "") -> onnx.ModelProto:
    return model(f"{LOOP} {body}", inputs_of(LSTM) + inputs, outputs, NUMBERS)


operators = partial(operator_counts, passes=PASSES)


TAKEN = [
    ("result = Gather(Y1, last)", f"{STATE} result", "the last result"),
    ("l = Slice(Y1, last3, far, first) f = Slice(l, first, far, first) q = Transpose(f) result = Gather<axis = 2>(q, last)", "float[a, b] result", "a part of it"),
    ("l = Slice(Y1, last1, far, first) result = Squeeze(l, first)", f"{STATE} result", "an axis of one element"),
    ("r = Neg(X) E, S = Scan<num_scan_inputs = 1, body = q (float[b, h] s, float[b, n] e) => (float[b, h] t, float[b, n] u) { t = Tanh(s) u = Exp(e) }>(first_c, r)", f"{STATE} E, {STATE} last_h", "a Scan of a sequence of the same length"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "outputs", "why"), TAKEN)
def test_what_fails_without_elements(body: str, outputs: str, why: str) -> None:
    original = made(body, outputs)
    found = operators(original, verify="whole")
    assert "LSTM" in found and "Loop" not in found, why
    nothing = {"X": np.zeros((0, 2, INPUTS), np.float32)}
    nothing |= {f"first_{name}": np.zeros((2, HIDDEN), np.float32) for name in ("h", "c")}
    with pytest.raises(Exception, match=r"out of data bounds|must be 1|indices|Invalid|dimension"):
        run(original, nothing)


def test_a_loop_behind_it_of_which_the_last_result_is_taken() -> None:
    second = "sy = Shape(Y1) k = Gather(sy, at0) A, D = Loop<body = two (int64 j, bool g, float[b, h] a) => (bool w, float[b, h] d, float[b, h] z) { w = Identity(g) v = Gather(Y1, j) d = Add(a, v) z = Tanh(v) }>(k, yes, first_h) result = Gather(D, last)"
    assert "LSTM" in operators(made(second, f"{STATE} result"), verify="whole")


@pytest.mark.parametrize(
    ("body", "outputs", "why"),
    [
        ("result = Identity(Y1)", f"float[t, b, {HIDDEN}] result", "nothing is taken"),
        ("result = Slice(Y1, last3, far, first)", f"float[p, b, {HIDDEN}] result", "a part may be empty"),
        ("result = Gather(Y1, nowhere)", f"float[p, b, {HIDDEN}] result", "no element is taken"),
        ("result = Gather<axis = 2>(Y1, last)", "float[t, b] result", "along another axis"),
        ("result = If(c)<then_branch = y () => (float[b, h] p) { p = Gather(Y1, last) }, else_branch = z () => (float[b, h] q) { q = Neg(last_h) }>", f"{STATE} result", "in a branch"),
        ("d = Gather(Y1, last) result = Neg(last_h)", f"{STATE} result", "no output depends on it"),
    ],
)  # fmt: skip
def test_what_may_not_run(body: str, outputs: str, why: str) -> None:
    original = made(body, outputs, ", bool c")
    always_empty = "nowhere" in body  # so that no run tells anything
    assert "Loop" in operators(original, verify=None if always_empty else "whole"), why
