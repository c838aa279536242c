"""Patterns that look into the bodies of If, Loop and Scan."""

from __future__ import annotations

import numpy as np
import pytest
from recurrent_models import model

import ortfuse
from ortfuse import Exactness, Rule, RuleTest
from ortfuse.errors import PatternError, RuleError
from ortfuse.rewrite.pattern import Pattern, body, computed, op, rearrange, var
from ortfuse.verification.rule_tests import prove

CONSTANTS = {"w": np.ones(3, np.float32), "two": np.float32(2), "yes": np.bool_(True), "n": np.int64(3)}
h, x, w, s, e = (var(name) for name in ("h", "x", "w", "s", "e"))
total = s + e * w


def scan(text: str, before: str = "", results: str = "t, y") -> object:
    """A Scan with one state and one element in each run."""
    outputs = ", ".join(f"float[b, 3] {name}" for name in results.split(", "))
    inner = f"body = one (float[b, 3] s, float[b, 3] e) => ({outputs}) {{ {text} }}"
    return model(
        f"{before} last, Y = Scan<num_scan_inputs = 1, {inner}>(h, x)",
        "float[b, 3] h, float[t, b, 3] x",
        "float[t, b, 3] Y",
        CONSTANTS,
    )


def running(*results: Pattern) -> Pattern:
    return op.Scan(h, x, body=body("s e", *results), num_scan_inputs=1, outputs=2)[1]


def count(made: object, pattern: Pattern) -> int:
    return len(list(ortfuse.find(made, pattern)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("p = Mul(e, w) t = Add(s, p) y = Identity(t)", 1),
        ("p = Mul(w, e) t = Add(p, s) q = Mul(e, w) y = Add(s, q)", 0),
        ("p = Mul(s, w) t = Add(e, p) y = Identity(t)", 0),
        ("p = Mul(e, w) t = Sub(s, p) y = Identity(t)", 0),
        ("p = Mul(e, e) t = Add(s, p) y = Identity(t)", 0),
        ("p = Mul(e, w) q = Add(s, p) t = Tanh(q) y = Identity(t)", 0),
    ],
)
def test_the_body_of_a_scan(text: str, found: int) -> None:
    """A pattern that stands twice is one value, as everywhere; a variable is no value of the body."""
    assert count(scan(text), running(total, total)) == found


def test_what_is_computed_before_the_node_may_belong_to_the_pattern() -> None:
    inner = "p = Mul(e, k) t = Add(s, p) y = Identity(t)"
    pattern = running(s + e * op.Exp(w), op.Tanh(s) | s + e * op.Exp(w))
    assert count(scan(inner, "k = Exp(w)"), pattern) == 1
    assert count(scan(f"k = Exp(w) {inner}"), pattern) == 1


def test_data_movement_in_a_body() -> None:
    made = scan("t = Add(s, e) y = Transpose(t)")
    turned = rearrange("b c -> c b", s + e)
    assert count(made, running(s + e, turned)) == 1


def test_branches_of_an_if() -> None:
    text = "Y = If (c) <then_branch = a () => (float[b, 3] r) { r = Exp(h) }, else_branch = f () => (float[b, 3] q) { q = Mul(h, two) }>"
    made = model(text, "float[b, 3] h, bool c", "float[b, 3] Y", CONSTANTS)
    condition = var("condition")
    wanted = op.If(condition, then_branch=body("", op.Exp(h)), else_branch=body("", h * 2))
    assert count(made, wanted) == 1
    assert count(made, op.If(condition, then_branch=body("", op.Exp(h)), else_branch=body("", h * 3))) == 0


def test_the_body_of_a_loop() -> None:
    inner = (
        "body = one (int64 i, bool go, float[b, 3] s) => (bool on, float[b, 3] t) { on = Identity(go) t = Mul(s, w) }"
    )
    made = model(f"Y = Loop<{inner}>(n, yes, h)", "float[b, 3] h", "float[b, 3] Y", CONSTANTS)
    go, times, start = var("go"), var("times"), var("start")
    assert count(made, op.Loop(times, start, h, body=body("i go s", go, s * w))) == 1
    assert count(made, op.Loop(times, start, h, body=body("i s", go, s * w))) == 0


AXIS = computed("axis", lambda match: np.int64(0))
first, elements = var("first", "b n"), var("elements", "t b n")
added = var("state") + var("element")
SUM = op.Scan(first, elements, body=body("state element", added, added), num_scan_inputs=1, outputs=2)[1]


def rule(replace: Pattern, pattern: Pattern = SUM) -> Rule:
    return Rule(
        name="mine.running_sum",
        pattern=pattern,
        replace=replace,
        exactness=Exactness.ROUNDING,
        source="CumSum",
        test=RuleTest(
            shapes={"state": "b n", "element": "b n"}, never_empty={"t": "the runtime refuses a Scan of nothing"}
        ),
    )


def test_a_rule_with_a_body_is_proved_and_applied() -> None:
    running_sum = rule(first + op.CumSum(elements, AXIS))
    report = prove(running_sum)
    assert report.proved, report.failures
    made = scan("t = Add(s, e) y = Identity(t)")
    result = ortfuse.optimize(made, patterns=[running_sum], passes="canonicalize, user", verify="whole")
    assert sorted(node.op_type for node in result.model.graph.node) == ["Add", "CumSum"]


def test_a_wrong_rule_with_a_body_is_not_proved() -> None:
    assert not prove(rule(op.CumSum(elements, AXIS))).proved


def test_names_of_a_body_mean_nothing_outside() -> None:
    with pytest.raises(RuleError, match="state"):
        rule(var("state") + op.CumSum(elements, AXIS))
    with pytest.raises(RuleError, match="only patterns have bodies"):
        rule(op.Scan(first, elements, body=body("a", var("a")), num_scan_inputs=1))


def test_a_body_needs_results() -> None:
    with pytest.raises(PatternError):
        body("a b")
