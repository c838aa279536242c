"""That a proof finds a wrong rule: each of these is a mistake somebody could make."""

from __future__ import annotations

from typing import Any

import pytest

from ortfuse.pattern import attr, op, variables
from ortfuse.pipeline import load_catalogue
from ortfuse.proof import prove
from ortfuse.rewrite import Exactness, Proof, Rule

x, y = variables("x y")


def rule(pattern: Any, replace: Any, **keywords: Any) -> Rule:
    proof = keywords.pop("proof", Proof(shapes={"x": "b 3", "y": "b 3"}))
    exactness = keywords.pop("exactness", Exactness.ROUNDING)
    return Rule(
        name="test.rule", pattern=pattern, replace=replace, exactness=exactness, source="test", proof=proof, **keywords
    )


def test_a_right_rule_is_proved_on_instances_and_near_misses() -> None:
    report = prove(rule(op.Relu(x) + op.Relu(y), op.Max(x, 0.0) + op.Max(y, 0.0)))
    assert report.proved, report.failures
    assert report.instances >= 4
    assert report.near_misses > 0


def test_wrong_mathematics_is_found() -> None:
    report = prove(rule(op.Relu(x) + y, op.Max(x, 0.0) - y))
    assert not report.proved
    assert "off by" in report.failures[0]
    assert report.counterexamples


def test_an_exact_rule_must_give_the_same_bits() -> None:
    inexact = rule(op.Exp(op.Log(op.Abs(x))), op.Abs(x), exactness=Exactness.EXACT)
    assert any("not the same bits" in failure for failure in prove(inexact).failures)


def test_a_rule_that_forgets_an_attribute_is_found_by_a_near_miss() -> None:
    proof = Proof(shapes={"x": "3 3"}, attributes={"axis": [1]})
    forgetful = rule(op.Log(op.Softmax(x, axis=attr("axis"))), op.LogSoftmax(x, axis=1), proof=proof)
    assert any("near miss (Softmax with axis" in failure for failure in prove(forgetful).failures)


def test_a_rule_that_forgets_broadcasting_is_found_by_a_near_miss() -> None:
    careless = rule(op.ReduceSum(x + y, keepdims=0), op.ReduceSum(x, keepdims=0) + op.ReduceSum(y, keepdims=0))
    assert any("broadcast" in failure for failure in prove(careless).failures)


def test_a_guard_that_refuses_the_rules_own_pattern_is_found() -> None:
    shy = rule(op.Relu(x), op.Max(x, 0.0), guards=(lambda match: "never",))
    assert any("no instance fires" in failure for failure in prove(shy).failures)


def test_a_pattern_without_an_instance_is_not_proved() -> None:
    impossible = rule(op.MatMul(x, y), op.Gemm(x, y), proof=Proof(shapes={"x": "2 2", "y": "3 3"}))
    assert any("no instance fires" in failure for failure in prove(impossible).failures)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_constants_that_an_attribute_cannot_hold_are_refused_in_float64(dtype: str) -> None:
    rules = {r.name: r for entries in load_catalogue([]).passes().values() for r in entries}
    decomposed = rules["layernorm.decomposed"]
    proof = Proof(
        shapes={"x": "b 8", "scale": "8", "bias": "8"},
        attributes={"axes": [(-1,)]},
        scalars={"epsilon": [0.1]},
        dtypes=(dtype,),
    )
    changed = Rule(**{**{name: getattr(decomposed, name) for name in decomposed.__dataclass_fields__}, "proof": proof})
    failures = prove(changed, pairs=0).failures
    assert bool(failures) == (dtype == "float64")
    assert all("float32" in failure for failure in failures)
