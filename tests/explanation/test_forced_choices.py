"""A forced choice is followed, or the result says at which sites it was not, and why."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import graphs
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.verification.explanation import ForcedOutcome

GOLDEN = Path(__file__).parents[2] / "golden" / "models"
MULTI_HEAD = "com.microsoft.MultiHeadAttention"
SWISH = "s = Sigmoid(x) y = Mul(x, s)"


model = partial(graphs.model, inputs="float[b,64] x", outputs="float[b,64] y", opset=20, ir_version=10)


def pinned(body: str | Path, name: str, operator: str, **options: Any) -> tuple[ortfuse.Result, ForcedOutcome]:
    result = ortfuse.optimize(body if isinstance(body, Path) else model(body), force={name: operator}, **options)
    (outcome,) = result.forced
    return result, outcome


def test_the_rules_that_make_a_forced_operator_go_before_the_others_of_the_family() -> None:
    result, outcome = pinned(GOLDEN / "bert.eager.ts.onnx", "attention", MULTI_HEAD)
    assert [node.op_type for node in result.model.graph].count("MultiHeadAttention") == 2
    assert (len(outcome.followed), outcome.not_followed, outcome.absent) == (2, {}, "")
    assert "attention=com.microsoft.MultiHeadAttention: followed at 2 sites" in outcome.lines()[0]


def test_a_site_that_became_something_else_is_reported_with_the_reasons() -> None:
    result, outcome = pinned(GOLDEN / "bert.sdpa.ts.onnx", "attention", MULTI_HEAD)
    assert outcome.followed == ()
    assert len(outcome.not_followed) == 2
    for why in outcome.not_followed.values():
        assert why.startswith("attention.") and " made it Attention: attention.to_multi_head_attention: " in why
        assert "attention.unmasked_attention_op_to_multi_head_attention: Attention" in why
    assert all("NOT followed at 1 site" in line for line in outcome.lines())
    assert result.to_dict()["forced"][0]["not_followed"] == dict(outcome.not_followed)


def test_only_rules_that_the_pipeline_runs_go_first() -> None:
    _, outcome = pinned(GOLDEN / "bert.eager.ts.onnx", "attention", MULTI_HEAD, passes="canonicalize, fuse.attention")
    assert outcome.followed == ()
    assert all(
        "the pipeline does not run fuse.multi_head_attention, with attention.to_multi_head_attention" in why
        for why in outcome.not_followed.values()
    )


def test_a_site_that_no_rule_may_rewrite_is_reported() -> None:
    _, outcome = pinned("s = Sigmoid(x) t = Mul(x, s) y = Add(t, s)", "swish", "QuickGelu")
    (line,) = outcome.lines()
    assert "NOT followed at 1 site (t): left as it was: 's' is also used by" in line


def test_a_forced_choice_to_none_is_followed_wherever_a_rule_would_have_been_applied() -> None:
    result, outcome = pinned(SWISH, "swish", "none")
    assert [node.op_type for node in result.model.graph] == ["Sigmoid", "Mul"]
    assert (outcome.followed, outcome.absent) == (("y",), "")


@pytest.mark.parametrize("operator", ["QuickGelu", "none"])
def test_a_forced_choice_without_a_site_says_so(operator: str) -> None:
    _, outcome = pinned("y = Abs(x)", "swish", operator)
    assert (outcome.followed, dict(outcome.not_followed)) == ((), {})
    assert outcome.lines()[0].startswith(f"forced swish={operator}: ")
    assert outcome.absent


def test_a_forced_choice_on_an_approximation_says_what_would_allow_it(tmp_path: Path) -> None:
    rules = tmp_path / "near.py"
    rules.write_text("""from ortfuse.rewrite.pattern import op, var
from ortfuse.rewrite import Exactness, RuleTest, Rule
x = var("x")
RULES = [Rule(name="near.tanh", pattern=op.Erf(x), replace=op.Tanh(x), exactness=Exactness.APPROXIMATE, source="test",
              test=RuleTest(shapes={"x": "b 8"}))]
""")
    options = {"patterns": rules, "passes": "user"}
    assert "--approximate allows it" in pinned("y = Erf(x)", "near", "Tanh", **options)[1].absent
    assert pinned("y = Erf(x)", "near", "Tanh", approximate=True, **options)[1].followed == ("y",)


def test_a_rewrite_that_was_undone_is_no_followed_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    from ortfuse.ir.refusal import refuse
    from ortfuse.verification import SiteChecks

    monkeypatch.setattr(SiteChecks, "objection", lambda self, edit: refuse("not_equal", None, found="it was wrong"))
    _, outcome = pinned(SWISH, "swish", "QuickGelu", verify="sites", passes="fuse.activation")
    assert outcome.followed == ()
    assert outcome.not_followed == {"y": "left as it was: it was wrong"}


def test_the_command_line_prints_what_became_of_pins(tmp_path: Path) -> None:
    ir.save(model(SWISH), tmp_path / "m.onnx")
    found = CliRunner().invoke(app, ["optimize", str(tmp_path / "m.onnx"), "--force", "swish=none"])
    assert "forced swish=none: followed at 1 site (y)" in found.output
