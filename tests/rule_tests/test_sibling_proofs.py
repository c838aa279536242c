"""Proofs of rules with several results: every result is compared, and near misses let one be computed from another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, computed, const, op, siblings, var
from ortfuse.verification.rule_tests import prove
from ortfuse.verification.rule_tests.build_instances import Builder
from ortfuse.verification.rule_tests.near_misses import near_misses
from ortfuse.verification.rule_tests.rule_test_runner import element_type

x = var("x", "b s d")
QUERY, KEY = const("wq", "d h"), const("wk", "d k")


def sizes(match: Match) -> Any:
    return np.array([match.size("h"), match.size("k")], np.int64)


def joined(*order: int) -> Rule:
    parts = list(op.Split(x @ op.Concat(QUERY, KEY, axis=1), computed("sizes", sizes), axis=-1, outputs=2))
    return Rule(
        name="test.joined", pattern=siblings(x @ QUERY, x @ KEY), replace=siblings(*(parts[index] for index in order)),
        exactness=Exactness.ROUNDING, source="test",
        test=RuleTest(shapes={"d": 4, "h": 3, "k": 3}, opset=18),
    )  # fmt: skip


def test_a_right_rule_with_two_results_is_proved() -> None:
    report = prove(joined(0, 1))
    assert report.proved, report.failures
    assert report.instances > 0
    assert report.near_misses_fired > 0


def test_exchanged_results_are_found() -> None:
    report = prove(joined(1, 0))
    assert any("output 0 is off by" in failure for failure in report.failures)


@pytest.mark.parametrize("wrong", [0, 1])
def test_each_result_is_compared(wrong: int) -> None:
    right: list[Pattern] = [op.Max(x, 0.0), op.Max(op.Neg(x), 0.0)]
    right[wrong] = op.Max(x, 1.0)
    rule = Rule(
        name="test.max", pattern=siblings(op.Relu(x), op.Relu(op.Neg(x))), replace=siblings(*right),
        exactness=Exactness.EXACT, source="test", test=RuleTest(opset=18),
    )  # fmt: skip
    failures = prove(rule, pairs=0, near_misses=False).failures
    assert any(f"output {wrong} is not the same bits" in failure for failure in failures)


def test_an_instance_has_a_result_for_each_root_and_near_misses_between_them() -> None:
    instance = Builder(joined(0, 1), 0, element_type("float32"), 18).instance()
    assert [output.producer().op_type for output in instance.model.graph.outputs] == ["MatMul", "MatMul"]  # type: ignore[union-attr]
    texts = {one.text: one for one in near_misses(instance)}
    near = texts["operand 1 of output 1 is output 0"].made()
    assert near is not None
    first, second = near.model.graph.outputs
    assert second.producer().inputs[1] is first  # type: ignore[union-attr]


def test_a_result_that_is_an_input_is_proved_behind_a_node() -> None:
    rule = Rule(
        name="test.twice", pattern=siblings(op.Neg(op.Neg(x)), op.Relu(op.Neg(x))), replace=siblings(x, op.Relu(-1.0 * x)),
        exactness=Exactness.ROUNDING, source="test", test=RuleTest(opset=18),
    )  # fmt: skip
    report = prove(rule)
    assert report.proved, report.failures
