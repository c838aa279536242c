"""Fields of classes by their former names: given and read with one warning."""

from __future__ import annotations

import dataclasses
import warnings

import pytest

from ortfuse import Exactness, Rule, RuleTest
from ortfuse.naming import RenamedWarning, former_rules_and_passes
from ortfuse.rewrite.pattern import op, var


def test_a_rule_takes_its_test_by_the_former_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(former_rules_and_passes, "_told", set())
    test = RuleTest(shapes={"x": "b 3"})
    fields = {
        "name": "mine.abs",
        "pattern": op.Abs(op.Neg(var("x"))),
        "replace": op.Abs(var("x")),
        "source": "|-x| = |x|",
    }
    with pytest.warns(RenamedWarning, match="`proof` is now called `test`"):
        rule = Rule(**fields, exactness=Exactness.EXACT, proof=test)
    assert rule.test is test
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rule.proof is test  # told once
        assert dataclasses.replace(rule, name="mine.abs_of_neg").test is test
    with pytest.raises(TypeError, match="both 'test' and its former name 'proof'"):
        Rule(**fields, exactness=Exactness.EXACT, proof=test, test=test)
