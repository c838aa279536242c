"""Proofs of rules whose patterns say what shapes their values have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, computed, op, opt, rearrange, var
from ortfuse.verification.rule_tests import prove
from ortfuse.verification.rule_tests.mutation_testing import counterexample, mutants


def rule(pattern: Any, replace: Any, **keywords: Any) -> Rule:
    test = keywords.pop("test", RuleTest())
    return Rule(
        name="test.rule", pattern=pattern, replace=replace, exactness=Exactness.ROUNDING, source="test", test=test,
        **keywords,
    )  # fmt: skip


x = var("x", "b s (h d)")
SPLIT = "b s (h d) -> b h s d"


def test_shapes_that_the_pattern_says_need_not_be_in_the_proof() -> None:
    report = prove(rule(op.Relu(rearrange(SPLIT, x)), rearrange(SPLIT, op.Relu(x))), pairs=2)
    assert report.proved, report.failures
    assert report.instances > 2


def test_every_shape_that_the_pattern_allows_is_tried() -> None:
    y = var("y", "b? s? d")
    report = prove(rule(op.Exp(op.Add(var("x", "b s d"), y)), op.Mul(op.Exp(var("x")), op.Exp(y))), pairs=2)
    assert report.proved, report.failures
    assert report.options_covered == report.options


def test_repetitions_and_parts_are_built_and_matched() -> None:
    repeated = rearrange("b h s d -> b (h g) s d", var("x", "b h s d"))
    report = prove(
        rule(op.Relu(repeated), op.Max(repeated_by_hand(), 0.0), test=RuleTest(shapes={"s": 5, "d": 4})), pairs=2
    )
    assert report.proved, report.failures
    whole = var("x", "b d")
    halves = op.Concat(op.Neg(whole[..., "r":]), whole[..., :"r"], axis=-1)
    made = op.Concat(op.Neg(whole[..., "r":]), whole[..., :"r"], axis=-1)
    report = prove(rule(op.Relu(halves), op.Max(made, 0.0), test=RuleTest(shapes={"d": 6, "r": 2})), pairs=2)
    assert report.proved, report.failures


def repeated_by_hand() -> Any:
    def sizes(name: str, numbers: Callable[[Match], list[Any]]) -> Any:
        return computed(name, lambda match: np.asarray(numbers(match)))

    wider = op.Unsqueeze(var("x"), sizes("axis", lambda match: [2]))
    longer = op.Expand(wider, sizes("times", lambda match: [1, 1, match.size("g"), 1, 1]))
    return op.Reshape(
        longer, sizes("merged", lambda match: [0, match.dim("g") * match.dim("h"), match.size("s"), match.size("d")])
    )


def test_the_loss_of_a_dimension_is_noticed() -> None:
    # A product of sums is no sum of products where the second operand broadcasts the first.
    careful = rule(
        op.ReduceSum(op.Add(var("x", "b s"), var("y", "b s")), keepdims=0),
        op.Add(op.ReduceSum(var("x"), keepdims=0), op.ReduceSum(var("y"), keepdims=0)),
    )
    found = {mutant.condition: mutant for mutant in mutants(careful)}
    assert set(found) == {"dimension b", "dimension s"}
    assert all(counterexample(mutant) for mutant in found.values())


def test_a_replacement_that_is_built_is_proved_like_any() -> None:
    def build(match: Match) -> Any:
        return op.Add(x, var("y")) if match["y"] is not None else x

    pattern = op.Relu(op.Identity(x)) + opt(var("y", "b s (h d)"))
    report = prove(rule(pattern, lambda match: op.Relu(x) + opt(var("y")), makes=("Relu", "Add")), pairs=2)
    assert report.proved, report.failures
    assert not prove(rule(pattern, build, makes=("Add",)), pairs=2).proved
