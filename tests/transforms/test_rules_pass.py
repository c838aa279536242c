from __future__ import annotations

import dataclasses

import numpy as np
from graphs import operators, run
from small_models import apply, floats

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, op, var
from ortfuse.transforms import RulePass

x = var("x")


def _rule(name: str, pattern: object, replace: object, exactness: Exactness = Exactness.EXACT) -> Rule:
    return Rule(
        name=name,
        pattern=pattern,
        replace=replace,
        exactness=exactness,
        source="test",
        test=RuleTest(shapes={"x": "2"}),
    )  # type: ignore[arg-type]


NEGATIONS = _rule("test.neg_neg", op.Neg(op.Neg(x)), x)
ROUGH = _rule("test.rough", op.Tanh(x), op.Softsign(x), Exactness.APPROXIMATE)
TWICE = _rule("test.twice", op.Abs(x), op.Mul(x, 2.0), Exactness.APPROXIMATE)
TEXT = "agraph (float[2] x) => (float[2] y) { a = Neg(x) \n b = Neg(a) \n y = Tanh(b) }"


def test_rules_are_applied_and_counted() -> None:
    model, counts, context = apply(TEXT, RulePass("test", (NEGATIONS, ROUGH)), inputs={"x": floats(2)})
    assert (operators(model), counts, context.log.hits()) == (["Tanh"], [1], {"test.neg_neg": 1})


def test_approximations_run_only_when_asked_for() -> None:
    made = RulePass("test", (NEGATIONS, ROUGH))
    assert made.selected(approximate=False) == [NEGATIONS]
    assert made.selected(approximate=True) == [NEGATIONS, ROUGH]


def test_rules_can_be_left_out() -> None:
    assert apply(TEXT, RulePass("test", (NEGATIONS,), without="test.neg_neg other"))[1] == [0]


def test_a_pass_whose_rules_are_all_left_out_says_so() -> None:
    _, _, context = apply(TEXT, RulePass("test", (NEGATIONS,), without="test.neg_neg"))
    assert list(context.notes) == ["test did nothing: all of its rules are left out by name"]
    _, _, context = apply(TEXT, RulePass("test", (ROUGH, NEGATIONS), without="test.neg_neg"))
    (note,) = context.notes
    assert "approximations are not allowed, and test.rough is one" in note
    assert not apply(TEXT, RulePass("test", (ROUGH, NEGATIONS)))[2].notes


def _fails(match: Match) -> Refusal | None:
    raise KeyError("a mistake")


def test_a_rule_that_fails_is_left_out_by_itself() -> None:
    broken = dataclasses.replace(_rule("test.broken", op.Neg(x), op.Mul(x, -1.0)), guards=(_fails,))
    model, counts, context = apply(TEXT, RulePass("test", (broken, NEGATIONS)), inputs={"x": floats(2)})
    assert (operators(model), counts, context.without) == (["Tanh"], [1], {"test.broken"})
    (text,) = context.failures
    assert "rule test.broken fails" in text and "a mistake" in text and "report it" in text


def test_constants_of_a_replacement_in_a_function_are_nodes() -> None:
    text = """agraph (float[2] x) => (float[2] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 20]> f (a) => (b) { b = Abs(a) }"""
    model, _, context = apply(text)
    context.approximate = True
    assert RulePass("test", (TWICE,)).run(context) == 1
    assert operators(model) == ["f", "Constant", "Mul"]
    np.testing.assert_array_equal(run(model, {"x": np.ones(2, np.float32)})[0], [2, 2])
