"""That rule tests notice a rule which lacks one of its conditions; `benchmarks.trust.rule_tests` tries every condition."""

from __future__ import annotations

import pytest

from ortfuse.ir.refusal import Refusal
from ortfuse.pipeline import load_catalogue
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, attr, const, op, var
from ortfuse.verification.rule_tests.mutation_testing import Mutant, Score, counterexample, mutants

SAMPLE = (
    "noop.cast without guard keeps_dtype",
    "noop.data_movement without guard keeps_elements",
    "noop.data_movement without check of attribute steps",
    "noop.data_movement without check of attribute perm",
    "linear.gemm_between_reshapes without guard only_last_axis_is_multiplied",
    "layernorm.add_to_skip_layer_normalization without dimension ...lead",
    "where.true_condition without guard _keeps_axes",
    "leaky_relu.from_where_or_max_min without guard maximum_is_leaky",
    "rotary.rotate_half without guard holds_angles_twice",
)
"""Losses that are noticed soon, or in one spelling alone; trying every condition takes minutes."""

RULES = {rule.name: rule for rule in load_catalogue([]).rules()}


def keeps_shape(match: Match) -> Refusal | None:
    return match.unless_same_shape("root", "x")


def guarded(**redundant: str) -> Rule:
    zero = const("zero", lambda value, facts: facts.is_const(value) and not facts.const(value).any(), "zero")
    return Rule(
        name="test.rule", pattern=op.Add(op.Softmax(var("x"), axis=attr("axis", lambda axis, facts: axis == 1)), zero),
        replace=op.Softmax(var("x"), axis=1), guards=(keeps_shape,), exactness=Exactness.ROUNDING, source="test",
        test=RuleTest(
            shapes={"x": "b 3", "zero": "3"}, attributes={"axis": [1]}, constants={"zero": [0.0] * 3}, redundant=redundant
        ),
    )  # fmt: skip


def test_a_rule_has_a_mutant_for_each_guard_check_and_constant() -> None:
    assert {mutant.condition for mutant in mutants(guarded())} == {
        "guard keeps_shape", "check of zero", "demand that zero is constant", "check of attribute axis",
    }  # fmt: skip


def test_the_loss_of_a_check_is_noticed_and_the_rule_itself_is_not_changed() -> None:
    rule = guarded()
    lost = {mutant.condition: counterexample(mutant) for mutant in mutants(rule)}
    assert lost["check of zero"]
    assert lost["check of attribute axis"]
    assert counterexample(Mutant(rule, "nothing", rule)) is None


def test_a_condition_that_is_called_redundant_does_not_count_unless_it_is_noticed() -> None:
    rule = guarded(**{"check of *": "tried here"})
    score = Score()
    found = {mutant.condition: mutant for mutant in mutants(rule)}
    score.add(found["check of zero"], True)
    score.add(found["check of attribute axis"], False)
    assert (score.noticed, score.redundant, score.unnoticed) == (1, 1, [])
    assert score.stale == ["test.rule without check of zero"]
    assert score.share == 1.0


@pytest.mark.rule_test
@pytest.mark.parametrize("name", SAMPLE)
def test_the_loss_of_a_condition_is_noticed_by_the_proofs_of_the_catalogue(name: str) -> None:
    (lost,) = [mutant for mutant in mutants(RULES[name.partition(" ")[0]]) if mutant.name == name]
    assert counterexample(lost) is not None


def test_an_equality_that_operators_imply_is_counted_apart_if_its_loss_was_tried() -> None:
    rule = guarded()
    size = Mutant(rule, "dimension d", rule, is_shared_size=True)
    tried, untried = Score(), Score()
    tried.add(size, False, acted=3)
    untried.add(size, False)
    assert (tried.implied, tried.unnoticed, tried.share) == (["test.rule without dimension d"], [], 1.0)
    assert (untried.implied, untried.unnoticed) == ([], ["test.rule without dimension d"])
