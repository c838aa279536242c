"""The table of algebra: its language, its exactness on special numbers, and the instances of the rules that it replaced."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from rewriting import parse

from ortfuse.analysis.facts import Facts
from ortfuse.errors import RuleError
from ortfuse.ir.editor import Editor
from ortfuse.pipeline import load_catalogue
from ortfuse.rewrite import Rewriter, Rule
from ortfuse.targets import Target
from ortfuse.verification import Session

load_catalogue([])
formula = importlib.import_module("ortfuse.patterns.algebra._formula")
table = importlib.import_module("ortfuse.patterns.algebra._identity")
IDENTITIES: list[Rule] = [
    rule
    for file in ("canonical_identities", "simplifying_identities")
    for rule in importlib.import_module(f"ortfuse.patterns.algebra.{file}").RULES
]
FORMER = json.loads((Path(__file__).parent / "former_algebra.json").read_text())
"""Instances that were built from the rule tests of the rules that became lines, with the operators that these rules left."""

NUMBERS = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.0, 0.25, 3.0])


def simplified(model: ir.Model, rules: list[Rule]) -> ir.Model:
    copy = model.clone()
    Rewriter(Editor(copy, Facts(copy)), Target()).run(rules)
    return copy


def inputs(model: ir.Model, seed: int) -> dict[str, np.ndarray]:
    """Special numbers, integers at the ends of their type, and both booleans, in shapes whose symbols are 4."""
    random, found = np.random.default_rng(seed), {}
    for value in model.graph.inputs:
        shape = [dim if isinstance(dim, int) else 4 for dim in value.shape or ()]
        dtype = value.dtype.numpy()
        if dtype.kind in "iu":
            ends = np.iinfo(dtype)
            choice = np.array([ends.min, ends.min + 1, 0, 1, 2, 3, ends.max - 1, ends.max], dtype)
        else:
            choice = np.array([False, True]) if dtype.kind == "b" else NUMBERS.astype(dtype)
        found[value.name] = random.choice(choice, shape)
    return found


def results(model: ir.Model, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(Session(model, optimise=False, threads=1).run(given).values())


@pytest.mark.parametrize("name", FORMER)
def test_instances_of_a_former_rule_become_as_few_operators_and_the_same_numbers(name: str) -> None:
    for text, left in FORMER[name]:
        original = parse(text)
        result = simplified(original, IDENTITIES)
        kinds = Counter(node.op_type for node in result.graph if node.op_type not in ("Constant", "Identity"))
        assert kinds.total() <= len(left.split()), f"{text}: {dict(kinds)} instead of {left}"
    given = inputs(original, 0)
    for old, new in zip(results(original, given), results(result, given), strict=True):
        np.testing.assert_allclose(new, old, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "name", [rule.name for rule in IDENTITIES if table.DECLARED[rule.name] is not table.ROUNDED and rule.name in FORMER]
)
def test_what_is_the_same_but_for_the_sign_of_a_zero_is_equal_on_special_numbers(name: str) -> None:
    (rule,) = [rule for rule in IDENTITIES if rule.name == name]
    original = parse(FORMER[name][0][0])
    result = simplified(original, [rule])
    for seed in range(3):
        given = inputs(original, seed)
        for old, new in zip(results(original, given), results(result, given), strict=True):
            np.testing.assert_array_equal(new, old)


FORMULAS = {
    "x + -y -> x - y": ("Add(x, Neg(y))", "Sub(x, y)"),
    "~(x < y) -> x >= y": ("Not(Less(x, y) | Greater(y, x))", "GreaterOrEqual(x, y)"),
    "-(x + a) -> -a - x": ("Neg(Add(x, a))", "Sub(-a, x)"),
    "cast(cast(x, t), u) -> cast(x, u)": ("Cast(Cast(x, to=t), to=u)", "Cast(x, to=u)"),
    "p & p or p | p -> p": ("(And(p, p) | Or(p, p))", "p"),
    "x - x -> 0": ("Sub(x, x)", "Expand(0, Shape(x))"),
}


@pytest.mark.parametrize("text", FORMULAS)
def test_an_identity_is_read_into_a_pattern_and_a_replacement(text: str) -> None:
    made = formula.Formula(text)
    assert (str(made.pattern), str(made.replacement)) == FORMULAS[text]


@pytest.mark.parametrize("text", ["x + y", "x @ y -> x", "x + y -> frobnicate(x)"])
def test_a_text_that_is_no_identity_is_refused(text: str) -> None:
    with pytest.raises(RuleError, match="identit"):
        made = formula.Formula(text)
        assert made.pattern is not made.replacement


def test_the_condition_of_a_line_decides_what_its_rule_test_tries() -> None:
    (rule,) = table.identity("test.max", "max(x, k) -> x", table.BUT_ZEROS, when="x >= k")
    assert set(rule.test.scalars["k"]) == {0.0, 0.125, -1.0}
    assert "k is 0.5" in rule.test.counterexamples
    assert "special numbers" in rule.test.counterexamples


def test_what_is_used_elsewhere_may_stay_where_one_operator_takes_the_place_of_another() -> None:
    assert formula.Formula("x + -y -> x - y").kept
    assert not formula.Formula("x * reciprocal(y) -> x / y").kept
    assert not formula.Formula("~p & ~q -> ~(p | q)").kept
