"""Operators that a forced choice or a rule of the user's own makes stay, whatever else the pipeline does, and sites are counted in the result."""

from __future__ import annotations

from typing import Any

import pytest
from graphs import operators
from onnxscript.rewriter import pattern
from small_models import model_of

import ortfuse
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import ms, op, var
from ortfuse.transforms import Context

x, skip, gamma = var("x"), var("skip"), var("gamma")
NORM = """agraph (float[n, 4, 8] x, float[n, 4, 8] s) => (float[n, 4, 8] y) <float[8] g = {1, 2, 3, 4, 5, 6, 7, 8}> {
    a = Add(x, s) l = LayerNormalization<axis = -1>(a, g) y = Tanh(l) }"""
SKIP = "com.microsoft.SkipLayerNormalization"


def rule(name: str, sought: Any, made: Any, **fields: Any) -> Rule:
    shapes = {"x": "b s 8", "skip": "b s 8", "gamma": "8"}
    return Rule(name=name, pattern=sought, replace=made, exactness=Exactness.ROUNDING, source="test",
                test=RuleTest(shapes=shapes), **fields)  # fmt: skip


FUSED = rule(
    "mine.skip",
    op.LayerNormalization(x + skip, gamma, epsilon=1e-5),
    ms.SkipLayerNormalization(x, skip, gamma, epsilon=1e-5),
)
"""Makes what `layernorm.decompose_skip_layernorm` takes apart again."""


@pytest.mark.parametrize("name", ["layernorm.add_to_skip_layer_normalization", "layernorm"])
def test_what_a_pin_asks_for_stays(name: str) -> None:
    result = ortfuse.optimize(model_of(NORM), force={name: SKIP})
    assert operators(result) == ["SkipLayerNormalization", "Tanh"]
    assert [pin.followed for pin in result.forced] == [("l",)]


@pytest.mark.parametrize(
    "passes",
    [
        "canonicalize, user, target_decompositions, fuse.*, canonicalize, dce",
        "fixpoint(user, target_decompositions), dce",
    ],
)
def test_what_a_rule_of_the_users_own_makes_stays(passes: str) -> None:
    result = ortfuse.optimize(model_of(NORM), passes=passes, patterns=FUSED)
    assert operators(result) == ["SkipLayerNormalization", "Tanh"]
    assert result.report.families() == {"mine": 1}
    refused = result.report.log.refused["layernorm.decompose_skip_layernorm", "l"]
    assert str(refused).endswith("stays, since your rule mine.skip made it")


def test_what_the_users_rule_spells_out_is_not_fused_again() -> None:
    spelled = rule("mine.spelled", op.Gelu(x), x * 0.5 * (1 + op.Erf(x / 2**0.5)))
    text = "agraph (float[n, 8] x) => (float[n, 8] y) { y = Gelu(x) }"
    result = ortfuse.optimize(model_of(text), passes="user, canonicalize, fuse.*, dce", patterns=spelled)
    assert "Erf" in operators(result)
    assert "Gelu" not in operators(result)


def test_what_only_prepares_a_model_for_other_rules_may_be_fused() -> None:
    """A rule of the pass `canonicalize` brings the model to the form that others look for."""
    from ortfuse.pipeline import discover_rule_files

    spelled = rule("mine.prepared", op.Swish(x), x * op.Sigmoid(x))
    text = '<ir_version: 10, opset_import: ["" : 24]> agraph (float[n, 8] x) => (float[n, 8] y) { t = Tanh(x) y = Swish(t) }'
    file = discover_rule_files.RuleFile("canonicalize", (spelled,), "a package", "package")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discover_rule_files, "_from_packages", lambda: [file])
        assert "QuickGelu" in operators(ortfuse.optimize(model_of(text), passes="canonicalize, fuse.activation, dce"))


def test_a_second_rule_of_the_users_own_may_go_on_from_the_first() -> None:
    second = rule("mine.second", op.Tanh(ms.SkipLayerNormalization(x, skip, gamma, epsilon=1e-5)),
                  op.Tanh(op.LayerNormalization(op.Sum(x, skip), gamma, epsilon=1e-5)))  # fmt: skip
    result = ortfuse.optimize(
        model_of(NORM), passes="canonicalize, user, dce", patterns=[FUSED, second], check_user=False
    )
    assert "mine.second" in result.report.log.hits()


def test_what_nothing_needs_any_more_goes_all_the_same_and_is_not_counted() -> None:
    class Cut:
        name = "cut"

        def run(self, context: Context) -> int:
            node = next(node for node in context.model.graph if node.op_type == "Tanh")
            if node.inputs[0] is context.model.graph.inputs[0]:
                return 0
            node.replace_input_with(0, context.model.graph.inputs[0])
            context.editor.renew_facts()
            return 1

    result = ortfuse.optimize(model_of(NORM), passes=["user", Cut(), "dce"], patterns=FUSED, check_user=False)
    assert operators(result) == ["Tanh"]
    assert result.report.log.hits() == {"mine.skip": 1}
    assert result.report.families() == {}


def test_constants_are_folded_and_moves_merged_around_what_stays() -> None:
    moved = rule(
        "mine.moved", op.Softplus(x), op.Transpose(op.Softsign(op.Transpose(x, perm=(0, 2, 1))), perm=(0, 2, 1))
    )
    text = """agraph (float[n, 4, 8] x) => (float[n, 8, 4] y) {
        t = Softplus(x) y = Transpose<perm = [0, 2, 1]>(t) }"""
    result = ortfuse.optimize(model_of(text), passes="user, canonicalize, dce", patterns=moved, check_user=False)
    assert operators(result) == ["Transpose", "Softsign"]


def test_a_site_that_a_later_pass_takes_apart_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the mark, as among rules that come with ortfuse."""
    from ortfuse.pipeline.manager import PassManager

    monkeypatch.setattr(PassManager, "_keeps", lambda *given: {})
    result = ortfuse.optimize(model_of(NORM), passes="canonicalize, user, target_decompositions, dce", patterns=FUSED)
    assert "SkipLayerNormalization" not in operators(result)
    assert result.report.families() == {}
    assert result.report.log.lost == {"mine.skip": 1}


@pytest.mark.parametrize("checked", [False, True])
def test_what_a_rule_of_onnxscript_makes_stays(checked: bool) -> None:
    def sought(op: Any, x: Any, s: Any, g: Any) -> Any:
        return op.LayerNormalization(op.Add(x, s), g, axis=-1)

    def made(op: Any, x: Any, s: Any, g: Any) -> Any:
        return op.SkipLayerNormalization(x, s, g, epsilon=1e-5, _domain="com.microsoft")

    passes = [pattern.RewriteRule(sought, made, name="theirs"), "target_decompositions, dce"]
    result = ortfuse.optimize(model_of(NORM), passes=passes, check_user=checked)
    assert operators(result) == ["SkipLayerNormalization", "Tanh"]


def test_another_run_has_pins_of_its_own() -> None:
    first = ortfuse.optimize(model_of(NORM), force={"layernorm.add_to_skip_layer_normalization": SKIP})
    assert "SkipLayerNormalization" not in operators(ortfuse.optimize(first.model))


def test_a_fused_site_that_became_part_of_a_larger_one_is_counted() -> None:
    text = """agraph (float[n, 8] x) => (float[n, 8] y) <float[8] b = {1, 2, 3, 4, 5, 6, 7, 8}> {
        h = Add(x, b) half = Constant<value = float {0.5}>() one = Constant<value = float {1.0}>()
        root = Constant<value = float {1.4142135}>()
        d = Div(h, root) e = Erf(d) p = Add(e, one) m = Mul(h, p) y = Mul(m, half) }"""
    result = ortfuse.optimize(model_of(text))
    assert operators(result) == ["BiasGelu"]
    assert result.report.families() == {"gelu": 1}
