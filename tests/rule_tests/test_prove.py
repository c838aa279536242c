"""That a rule test finds a wrong rule: each of these is a mistake somebody could make."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from crashing import runtime_that

from ortfuse.errors import RuleError
from ortfuse.ir.refusal import Refusal
from ortfuse.pipeline import load_catalogue
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, attr, computed, const, op, opt, scalar, var, variables
from ortfuse.verification.rule_tests import prove
from ortfuse.verification.rule_tests.run_instance import disagreement

x, y = variables("x y")


def rule(pattern: Any, replace: Any, **keywords: Any) -> Rule:
    test = keywords.pop("test", RuleTest(shapes={"x": "b 3", "y": "b 3"}))
    exactness = keywords.pop("exactness", Exactness.ROUNDING)
    return Rule(
        name="test.rule", pattern=pattern, replace=replace, exactness=exactness, source="test", test=test, **keywords
    )


def test_a_right_rule_is_proved_on_instances_and_near_misses() -> None:
    report = prove(rule(op.Relu(x) + op.Relu(y), op.Max(x, 0.0) + op.Max(y, 0.0)))
    assert report.proved, report.failures
    assert report.instances >= 4
    assert report.near_misses > 0


def test_a_replacement_on_which_the_runtime_crashes_is_a_failure_of_the_rule() -> None:
    with runtime_that("run", "Softsign"):
        report = prove(rule(op.Tanh(x), op.Softsign(x)), pairs=0, near_misses=False)  # each crash costs a process
    assert "the runtime cannot execute the replacement: ONNX Runtime crashes" in report.failures[0]


def test_wrong_mathematics_is_found() -> None:
    report = prove(rule(op.Relu(x) + y, op.Max(x, 0.0) - y))
    assert not report.proved
    assert "off by" in report.failures[0]
    assert report.counterexamples


@pytest.mark.parametrize("step, offset, right", [(1.0, 0.5, True), (0.0, 0.5, False), (1.0, 1.5, False)])
def test_a_result_may_be_a_step_beside_at_a_tie_where_the_rule_says_so(step: float, offset: float, right: bool) -> None:
    tie = Variation(fixed={"x": np.array([[0.5, 1.2, 2.2]], np.float32)}, sizes={"b": 1})
    test = RuleTest(shapes={"x": "b 3"}, step=step, counterexamples={"tie": tie})
    assert prove(rule(op.Round(op.Abs(x)), op.Floor(op.Abs(x) + offset), test=test)).proved == right


def test_an_exact_rule_must_give_the_same_bits() -> None:
    inexact = rule(op.Exp(op.Log(op.Abs(x))), op.Abs(x), exactness=Exactness.EXACT)
    assert any("not the same bits" in failure for failure in prove(inexact).failures)


def test_a_rule_that_forgets_an_attribute_is_found_by_a_near_miss() -> None:
    test = RuleTest(shapes={"x": "3 3"}, attributes={"axis": [1]})
    forgetful = rule(op.Log(op.Softmax(x, axis=attr("axis"))), op.LogSoftmax(x, axis=1), test=test)
    assert any("near miss (Softmax with axis" in failure for failure in prove(forgetful).failures)


def test_a_rule_that_forgets_broadcasting_is_found_by_a_near_miss() -> None:
    careless = rule(op.ReduceSum(x + y, keepdims=0), op.ReduceSum(x, keepdims=0) + op.ReduceSum(y, keepdims=0))
    assert any("broadcast" in failure for failure in prove(careless).failures)


def test_a_rule_that_forgets_a_factor_is_found_where_the_proof_has_none() -> None:
    test = RuleTest(shapes={"x": "b 3"}, scalars={"factor": [1.0]}, followed_by="Neg")
    careless = rule(scalar("factor") * op.Relu(x), op.Max(x, 0.0), test=test)  # not a Relu: that would match again
    assert any("doubled" in failure for failure in prove(careless).failures)


def test_a_rule_that_forgets_where_slices_begin_is_found() -> None:
    parts = [op.Slice(x, starts=attr(f"start_{part}"), ends=attr(f"end_{part}"), axes=(1,)) for part in "ab"]
    ends = {"start_a": [(0,)], "end_a": [(2,)], "start_b": [(2,)], "end_b": [(4,)]}
    careless = rule(op.Concat(*parts, axis=1), op.Neg(op.Neg(x)), test=RuleTest(shapes={"x": "b 4"}, attributes=ends))
    failures = prove(careless).failures
    assert any("Slice from 1 on" in failure for failure in failures)
    assert any("Slice 2 from 0 on" in failure for failure in failures)


def test_a_rule_that_forgets_what_two_parameters_have_in_common_is_found() -> None:
    test = RuleTest(shapes={"x": "3 3"}, attributes={"axes": [(1,)]})
    axes, last = attr("axes"), computed("last", lambda match: np.array([1]))
    spread = op.ReduceMax(x, axes=axes, keepdims=0) - op.ReduceMin(x, axes=axes, keepdims=0)
    careless = rule(op.Relu(spread), op.ReduceMax(x, last, keepdims=0) - op.ReduceMin(x, last, keepdims=0), test=test)
    assert any("all 2 [1] are [0]" in failure for failure in prove(careless).failures)


def test_a_guard_that_refuses_the_rules_own_pattern_is_found() -> None:
    shy = rule(op.Relu(x), op.Max(x, 0.0), guards=(lambda match: match.refuse("left_out", "root", found="never"),))
    assert any("no instance fires" in failure for failure in prove(shy).failures)


def test_a_pattern_without_an_instance_is_not_proved() -> None:
    impossible = rule(op.MatMul(x, y), op.Gemm(x, y), test=RuleTest(shapes={"x": "2 2", "y": "3 3"}))
    assert any("no instance fires" in failure for failure in prove(impossible).failures)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_constants_that_an_attribute_cannot_hold_are_refused_in_float64(dtype: str) -> None:
    rules = {r.name: r for entries in load_catalogue([]).passes().values() for r in entries}
    decomposed = rules["layernorm.from_decomposed_form"]
    test = RuleTest(
        shapes={"x": "b 8", "scale": "8", "bias": "8"},
        attributes={"axes": [(-1,)]},
        scalars={"epsilon": [0.1]},
        dtypes=(dtype,),
    )
    changed = Rule(**{**{name: getattr(decomposed, name) for name in decomposed.__dataclass_fields__}, "test": test})
    failures = prove(changed, pairs=0).failures
    assert bool(failures) == (dtype == "float64")
    assert all("float32" in failure for failure in failures)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([1.0, np.inf], [1.0, 2.0]),
        ([1.0, 2.0], [1.0, np.inf]),
        ([np.inf, 1.0], [-np.inf, 1.0]),
        ([np.nan, 1.0], [1.0, 1.0]),
    ],
)
def test_infinities_and_nan_on_one_side_disagree(before: list[float], after: list[float]) -> None:
    old, new = np.array(before, np.float32), np.array(after, np.float32)
    assert disagreement([old], [new], None, bit_equal=False) is not None
    assert disagreement([old], [old], None, bit_equal=False) is None


def test_tiny_results_are_compared_by_their_own_scale() -> None:
    tiny = np.array([1e-9, -2e-9], np.float32)
    assert "off by" in (disagreement([tiny], [tiny * np.float32(1.01)], None, bit_equal=False) or "")


def test_numbers_of_rank_0_are_compared_as_the_runtime_returns_them() -> None:
    one: Any = np.float32(1)
    assert disagreement([one], [one], [one], bit_equal=False) is None
    assert "off by" in (disagreement([one], [one + one], [one], bit_equal=False) or "")


def test_zeros_of_either_sign_are_other_bits() -> None:
    zero = np.zeros(1, np.float32)
    assert disagreement([zero], [-zero], None, bit_equal=True) is not None
    assert disagreement([zero], [-zero], None, bit_equal=False) is None


def test_an_option_that_no_instance_can_have_is_a_failure_unless_declared() -> None:
    clip = op.Clip(x, opt(var("low")))
    test = RuleTest(shapes={"x": "b 3"})
    failures = prove(rule(op.Relu(clip), op.Max(clip, 0.0), test=test)).failures
    declared = dataclasses.replace(test, uncovered={"low: present": "not tried"})
    assert failures == ["no instance covers low: present"]
    assert "low: present" not in " ".join(prove(rule(op.Relu(clip), op.Max(clip, 0.0), test=declared)).failures)


def test_each_option_has_an_instance() -> None:
    inner = (op.Relu(x) | op.Abs(x)) + opt(y)
    report = prove(rule(op.Relu(op.Relu(inner)), op.Relu(inner), exactness=Exactness.EXACT))
    assert report.options_covered == report.options > 8
    assert report.pairs_covered > 0


def test_declared_counterexamples_are_tried_and_must_run() -> None:
    careless = op.Mul(op.Relu(x), scalar("factor")), op.Relu(op.Mul(x, scalar("factor")))
    variation = {"a negative factor": Variation(scalars={"factor": -2.0})}
    test = RuleTest(shapes={"x": "b 3"}, scalars={"factor": [0.5]}, counterexamples=variation)
    failures = prove(rule(*careless, test=test)).failures
    assert any("counterexample 'a negative factor'" in failure for failure in failures)
    broken = dataclasses.replace(test, counterexamples={"nonsense": Variation(shapes={"x": "b"}, opset=5)})
    right = op.Relu(op.Relu(x)), op.Relu(x)
    assert not prove(rule(*right, test=broken)).proved


def test_a_misspelt_option_of_a_counterexample_is_an_error() -> None:
    test = RuleTest(shapes={"x": "b 3"}, counterexamples={"typo": Variation(options={"masq": "absent"})})
    with pytest.raises(RuleError, match="masq"):
        prove(rule(op.Relu(x), op.Max(x, 0.0), test=test))


def test_what_a_rule_raises_is_a_failure_with_a_counterexample() -> None:
    def careless(match: Match) -> Refusal | None:
        return None if match.shape("x")[0] else match.refuse("shape", "x")  # type: ignore[index]

    report = prove(rule(op.Relu(x), op.Max(x, 0.0), guards=(careless,)))
    assert any("raises" in failure and "TypeError" in failure for failure in report.failures)
    assert report.counterexamples


def test_a_guard_that_takes_unknown_for_equal_is_found() -> None:
    def same_sizes(match: Match) -> Refusal | None:
        first, second = match.shape("x"), match.shape("y")
        return None if first is None or second is None else match.unless_same_shape("x", "y")

    test = RuleTest(shapes={"x": "b 3", "y": "b 3"})
    hopeful = rule(op.Mul(op.Relu(x), op.Sub(y, y)), op.Sub(x, x), guards=(same_sizes,), test=test)
    assert any("unknown rank" in failure for failure in prove(hopeful).failures)


def test_sizes_that_a_rule_takes_to_be_positive_are_declared() -> None:
    shape = op.Reshape(x, computed("shape", lambda match: np.array([0, -1])))
    divided = rule(op.Neg(op.Neg(x)), shape, test=RuleTest(shapes={"x": "b 3"}), exactness=Exactness.EXACT)
    assert any("b = 0" in failure for failure in prove(divided).failures)


def test_an_operator_or_attribute_that_no_opset_has_is_named() -> None:
    with pytest.raises(RuleError, match="has the operator Rleu of its pattern; correct the name"):
        prove(rule(op.Rleu(x), op.Neg(x)))
    with pytest.raises(RuleError, match=r"has an operator Relu with the attributes of its pattern \(slope\)"):
        prove(rule(op.Relu(x, slope=1), op.Neg(x)))


@pytest.mark.parametrize(
    "test",
    [
        RuleTest(shapes={"x": "b d", "w": "d"}),
        RuleTest(shapes={"x": "b d", "w": "d"}, constants={"w": "positive"}),
        RuleTest(shapes={"x": "b d", "w": "d"}, constants={"w": [1.0, 2.0, 3.0]}),
        RuleTest(shapes={"x": "b d", "w": "d", "d": 4}),
    ],
)
def test_sizes_of_constants_are_numbers_wherever_they_stand(test: RuleTest) -> None:
    w = const("w")
    report = prove(rule(op.Neg(x) * w, op.Neg(x * w), test=test), pairs=0, near_misses=False)
    assert report.proved, report.failures


def test_sizes_of_constants_that_the_pattern_names_are_numbers() -> None:
    w, given = const("w", "d"), var("x", "b d")
    report = prove(rule(op.Neg(given) * w, op.Neg(given * w), test=RuleTest()), pairs=0, near_misses=False)
    assert report.proved, report.failures


def test_numbers_of_a_constant_that_do_not_fit_its_shape_are_told() -> None:
    test = RuleTest(shapes={"x": "b d", "w": "d", "d": 4}, constants={"w": [1.0, 2.0, 3.0]})
    with pytest.raises(RuleError, match=r"gives 3 numbers for the constant w, of shape \[4\]"):
        prove(rule(op.Neg(x) * const("w"), op.Neg(x * const("w")), test=test), pairs=0)
