"""Loops and Scans do not hand on what they need not; what something depends on stays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from graphs import run
from recurrent_models import model

import ortfuse

NUMBERS = {"two": np.int64(2), "yes": np.bool_(True), "one": np.float32(1)}
INPUTS = "float[n] a, float[n] w, float[m, n] X, int64 runs, bool c"


def narrowed(text: str, outputs: str, runs: Sequence[int] = (0, 1, 3)) -> onnx.NodeProto:
    """The loop of the result, which computes the same for these numbers of runs."""
    made = model(text, INPUTS, outputs, NUMBERS)
    result = ortfuse.optimize(made, passes="licm, dce", verify="sites")
    assert result.sites is not None
    assert all(check.state == "equal" for check in result.sites)
    for count in runs:
        given = {"a": np.float32([1, np.nan]), "w": np.float32([3, -0.0]), "X": np.ones((max(count, 1), 2), np.float32)}
        given |= {"runs": np.array(count, np.int64), "c": np.array(count != 1)}
        for one, other in zip(run(made, given), run(result.model, given), strict=True):
            np.testing.assert_array_equal(one, other)
    return next(node for node in result.model.graph.node if node.op_type in ("Loop", "Scan"))


def loop(states: str, results: str, body: str, call: str) -> str:
    return (
        f"{call.split(' = ')[0]} = Loop<body = one (int64 i, bool go, {states}) => (bool on, {results}) "
        f"{{ on = Identity(go) {body} }}>({call.split(' = ')[1]})"
    )


def sizes(node: onnx.NodeProto) -> tuple[int, int]:
    return len(node.input), len(node.output)


def test_a_state_that_all_runs_hand_on() -> None:
    text = loop("float[n] s, float[n] v", "float[n] r, float[n] v", "r = Mul(s, v)", "Y, Z = runs, c, a, w")
    assert sizes(narrowed(text, "float[n] Y, float[n] Z")) == (3, 1)


@pytest.mark.parametrize(("limit", "operands"), [("runs, c", 4), ("two, yes", 3)])
def test_stacked_results_of_a_loop_that_may_not_run_keep_their_sizes(limit: str, operands: int) -> None:
    """The runtime makes up the sizes of what no run stacks by what it knows of the states."""
    body = "r = Mul(s, v) q = Identity(v)"
    text = loop("float[n] s, float[n] v", "float[n] r, float[n] v, float[n] q", body, f"Y, Z, Q = {limit}, a, w")
    assert sizes(narrowed(text, "float[n] Y, float[p, n] Q"))[0] == operands


def test_a_state_behind_an_identity_that_a_nested_body_reads() -> None:
    inner = "d = If(go)<then_branch = t () => (float[n] p) { p = Mul(s, v) }, else_branch = e () => (float[n] q) { q = Exp(v) }>"
    text = loop("float[n] s, float[n] v", "float[n] d, float[n] u", f"{inner} u = Identity(v)", "Y, Z = runs, c, a, w")
    assert sizes(narrowed(text, "float[n] Y")) == (3, 1)


def test_states_and_stacked_results_that_nothing_uses() -> None:
    body = "k = Add(j, one) r = Exp(s) t = Mul(s, j) q = Tanh(s)"
    states, results = "float[n] s, float j", "float[n] r, float k, float[n] t, float[n] q"
    text = loop(states, results, body, "Y, Z, T, Q = runs, c, a, one")
    assert sizes(narrowed(text, "float[n] Y, float[p, n] Q")) == (3, 2)


def test_a_state_that_a_result_depends_on_two_runs_later_stays() -> None:
    states, results = "float[n] s, float[n] u, float[n] v", "float[n] r, float[n] s1, float[n] u1"
    text = loop(states, results, "r = Exp(v) s1 = Identity(s) u1 = Identity(u)", "Y, Z, T = runs, c, a, w, a")
    assert sizes(narrowed(text, "float[n] Y")) == (5, 3)


def test_a_state_that_decides_when_to_end_stays() -> None:
    text = """Y, K = Loop<body = one (int64 i, bool go, float[n] s, float k) => (bool on, float[n] r, float k1) {
        k1 = Add(k, k) r = Exp(s) on = Less(k1, k9) }>(runs, c, a, one)"""
    made = text.replace("k9", "k2").replace("k1 = Add", "k2 = Neg(k) k1 = Add")
    assert sizes(narrowed(made, "float[n] Y")) == (4, 2)


def test_a_state_that_is_another_result_too_stays() -> None:
    text = loop(
        "float[n] s, float[n] v", "float[n] r, float[n] v, float[n] v", "r = Mul(s, v)", "Y, Z, T = runs, c, a, w"
    )
    made = model(text, INPUTS, "float[n] Y, float[n] Z", NUMBERS)
    (node,) = ortfuse.optimize(made, passes="licm").model.graph.node
    assert len(node.input) == 4


@pytest.mark.parametrize("used", ["float[n] Y", "float[n] Y, float[n] Z"])
def test_a_scan(used: str) -> None:
    text = """Y, Z, T = Scan<num_scan_inputs = 1, body = one (float[n] s, float[n] v, float[n] x) =>
        (float[n] r, float[n] u, float[n] t) { r = Mul(s, v) u = Identity(v) t = Add(r, x) }>(a, w, X)"""
    assert sizes(narrowed(text, used, (1, 3))) == (2, 2)
