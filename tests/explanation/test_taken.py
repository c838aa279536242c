"""A rule that was asked for and did not get a site is told why: its cost, or the rule that took it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import op, var

GOLDEN = Path(__file__).parents[2] / "golden" / "models"
x = var("x")
MODEL = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
    g (float[b,8] x) => (float[b,8] y) { e = Exp(x) t = Tanh(e) n = Neg(t) f = Exp(n) s = Tanh(f) y = Neg(s) }""")


def rule(name: str, pattern: Any, made: Any) -> Rule:
    return Rule(name=name, pattern=pattern, replace=made, exactness=Exactness.ROUNDING, source="test",
                test=RuleTest(shapes={"x": "b 8"}))  # fmt: skip


def test_sites_that_cost_decided_against_are_told_although_their_nodes_are_others_now() -> None:
    found = ortfuse.explain(GOLDEN / "roberta.eager.dynamo.onnx", "layernorm.add_to_skip_layer_normalization")
    left = next(one for one in found.lost if one.reason)
    assert left.rule == "layernorm.add_to_skip_layer_normalization"
    assert len(left.sites) == 5
    assert "slower than what it replaces" in left.text()
    assert "--force layernorm=com.microsoft.SkipLayerNormalization takes it whatever it costs" in left.text()
    assert dict(left.lost_to) == {"ort.block_skip_layer_normalization_fusion": 5}
    assert "layernorm.add_to_skip_layer_normalization" not in found.absent


def test_each_site_that_cost_decided_against_is_told_once() -> None:
    path = GOLDEN / "gpt2_cache.sdpa.dynamo.onnx"
    choices = [
        one
        for one in ortfuse.optimize(path).report.choices
        if one.rule == "layernorm.add_to_skip_layer_normalization" and not one.applied
    ]
    found = ortfuse.explain(path, "layernorm.add_to_skip_layer_normalization")
    told = [miss.site for miss in found.missed] + [site for one in found.lost for site in one.sites]
    assert {site for choice in choices for site in choice.sites} <= set(told)
    assert len(told) == len(set(told))


def test_the_rule_that_took_the_sites_is_named() -> None:
    first = rule("first.larger", op.Neg(op.Tanh(op.Exp(x))), op.Softsign(x))
    second = rule("second.smaller", op.Tanh(op.Exp(x)), op.Sigmoid(x))
    found = ortfuse.explain(MODEL, "second.smaller", passes="user", patterns=[first, second], check_user=False)
    assert [(one.rule, len(one.sites), dict(one.lost_to)) for one in found.lost] == [
        ("second.smaller", 2, {"first.larger": 2})
    ]
    assert found.absent == {}
    assert found.to_dict()["lost"][0]["lost_to"] == {"first.larger": 2}


def test_a_site_that_is_none_is_not_said_to_be_taken() -> None:
    found = ortfuse.explain(GOLDEN / "convnext.ts.onnx", "layernorm.from_decomposed_form")
    assert found.lost == ()
    assert "no site comes near" in found.absent["layernorm.from_decomposed_form"]


def test_of_two_rules_of_a_family_the_one_without_a_site_says_why() -> None:
    found = ortfuse.explain(
        GOLDEN / "bert.sdpa.ts.onnx", ["gelu.from_erf_form", "gelu.from_tanh_form", "gelu.add_bias_to_bias_gelu"]
    )
    assert "gelu.add_bias_to_bias_gelu" in {site.rule for site in found.fused}
    assert "gelu.from_tanh_form" in found.absent


def test_the_command_says_what_is_alike_once() -> None:
    done = CliRunner().invoke(
        app, ["explain", str(GOLDEN / "bert.sdpa.ts.onnx"), "--rule", "layernorm.add_to_skip_layer_normalization"]
    )
    text = " ".join(done.output.split())
    assert "layernorm.add_to_skip_layer_normalization at 4 sites" in text
    assert text.count("would match if it were faster here") == 1
    done = CliRunner().invoke(app, ["explain", str(GOLDEN / "gpt2.sdpa.ts.onnx"), "--rule", "reduction"])
    assert " ".join(done.output.split()).count("the model has no ReduceMean, which the pattern needs") == 1
