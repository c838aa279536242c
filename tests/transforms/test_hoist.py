"""What does not depend on a body is computed before it; what a body computes itself, or may not compute at all, stays."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from recurrent_models import model

import ortfuse

PASSES = "canonicalize"
NUMBERS = {"two": np.int64(2), "yes": np.bool_(True), "one": np.float32(1), "at0": np.int64(0), "zero": [0]}


def inside_and_outside(made: onnx.ModelProto) -> tuple[list[str], list[str]]:
    """The operators of the bodies and of the main graph of the result, which computes the same."""
    result = ortfuse.optimize(made, passes=PASSES, verify="whole").model
    outside = list(result.graph.node)
    inner = [
        one for node in outside for attribute in node.attribute if attribute.HasField("g") for one in attribute.g.node
    ]
    return sorted(node.op_type for node in inner), sorted(node.op_type for node in outside)


def branches(then: str, otherwise: str) -> onnx.ModelProto:
    text = f"Y = If (c) <then_branch = a () => (float[n] r) {{ {then} }}, else_branch = b () => (float[n] q) {{ {otherwise} }}>"
    return model(text, "float[n] x, bool c", "float[n] Y", NUMBERS)


def test_what_both_branches_compute() -> None:
    made = branches("e1 = Exp(x) t = Tanh(e1) r = Neg(t)", "e2 = Exp(x) u = Tanh(e2) q = Abs(u)")
    assert inside_and_outside(made) == (["Abs", "Neg"], ["Exp", "If", "Tanh"])


def test_what_both_branches_return() -> None:
    made = branches("e1 = Exp(x) r = Tanh(e1)", "q = Exp(x)")
    assert inside_and_outside(made) == (["Identity", "Tanh"], ["Exp", "If"])


def test_what_one_branch_computes_stays() -> None:
    made = branches("e1 = Exp(x) r = Neg(e1)", "e2 = Cos(x) q = Neg(e2)")
    assert inside_and_outside(made) == (["Cos", "Exp", "Neg", "Neg"], ["If"])


def test_random_numbers_stay() -> None:
    text = "e{0} = RandomNormalLike(x) z{0} = Mul(e{0}, x) {1} = Sub(z{0}, z{0})"
    result = ortfuse.optimize(branches(text.format(1, "r"), text.format(2, "q")), passes="licm")
    assert [node.op_type for node in result.model.graph.node] == ["If"]


def loop(body: str, limit: str, go: str = "yes", more: str = "") -> onnx.ModelProto:
    inner = (
        f"body = one (int64 i, bool on, float[2, 2] s) => (bool next, float[2, 2] t) {{ next = Identity(on) {body} }}"
    )
    inputs = "float[2, 2] x, float[2, 2] y, float[2, n] z, int64 runs, bool c"
    return model(f"{more} Y = Loop<{inner}>({limit}, {go}, x)", inputs, "float[2, 2] Y", NUMBERS)


@pytest.mark.parametrize(
    ("body", "limit", "go", "kept", "why"),
    [
        ("e = Exp(y) d = Add(s, e) t = Tanh(d)", "two", "yes", 2, "the loop runs"),
        ("e = MatMul(y, y) d = Add(s, e) t = Tanh(d)", "two", "yes", 2, "the loop runs"),
        ("e = Exp(y) d = Add(s, e) t = Tanh(d)", "runs", "yes", 2, "it cannot fail"),
        ("e = Mul(x, y) d = Add(s, e) t = Tanh(d)", "runs", "c", 2, "it cannot fail"),
        ("e = MatMul(y, z) d = Add(s, e) t = Tanh(d)", "runs", "yes", 3, "it may fail, and may not run"),
        ("e = MatMul(y, y) d = Add(s, e) t = Tanh(d)", "two", "c", 3, "the condition may be false"),
        ("e = Mul(s, y) d = Add(s, e) t = Tanh(d)", "two", "yes", 3, "it depends on the state"),
    ],
)
def test_what_is_the_same_in_all_runs(body: str, limit: str, go: str, kept: int, why: str) -> None:
    inside, _ = inside_and_outside(loop(body, limit, go))
    assert len([kind for kind in inside if kind != "Identity"]) == kept, why


def test_it_leaves_several_bodies() -> None:
    inner = """t = Scan<num_scan_inputs = 1, body = two (float[2] g, float[2] v) => (float[2] h, float[2] w) {
        e = Exp(y) k = ReduceSum<keepdims = 0>(e, zero) h = Add(g, k) p = Mul(v, k) w = Tanh(p) }>(row, s)"""
    body = f"row = Gather(s, at0) last, {inner}"
    _, outside = inside_and_outside(loop(body, "two"))
    assert outside == ["Exp", "Loop", "ReduceSum"]
