"""Passes of onnx_ir and rules of onnxscript in our pipelines."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from graphs import parsed
from onnx_ir.passes import common
from onnxscript.rewriter import _DEFAULT_REWRITE_RULES, RewriteRuleSet, pattern
from onnxscript.rewriter.rules.common import fuse_hardswish_rules, successive_relu_rule

import ortfuse
from ortfuse import PassManager, Result, optimize, register_pass
from ortfuse.errors import PipelineError
from ortfuse.pipeline import registry

HARD_SWISH = """<ir_version: 8, opset_import: ["": 20]> g (float[2, 8] x) => (float[2, 8] y)
    <float three = {3.0}, float zero = {0.0}, float six = {6.0}> {
        i = Identity(x)  a = Add(i, three)  c = Clip(a, zero, six)  m = Mul(i, c)  y = Div(m, six) }"""
TWICE = """<ir_version: 8, opset_import: ["": 20]> g (float[2, 8] x) => (float[2, 8] y, float[2, 8] z)
    { a = Relu(x)  b = Relu(a)  y = Neg(b)  z = Exp(x) }"""


def run(passes: Sequence[Any] | str, text: str) -> Result:
    return optimize(parsed(text), passes=passes)


def ops(model: ir.Model) -> str:
    return " ".join(node.op_type for node in model.graph)


def test_a_rule_set_of_onnxscript_runs_in_a_pipeline():
    rules = fuse_hardswish_rules()
    result = ortfuse.optimize(parsed(HARD_SWISH), passes=["canonicalize", rules, "dce"])
    assert ops(result.model) == "HardSwish"
    counts = {found.name: found.changes for found in result.report.passes}
    assert counts["onnxscript.RewriteRuleSet"] > 0


def test_a_single_rule_of_onnxscript_is_called_by_its_name():
    result = ortfuse.optimize(parsed(TWICE), passes=[successive_relu_rule])
    assert ops(result.model) == "Relu Neg Exp"
    assert result.report.passes[0].name.startswith("onnxscript.")


def test_a_pass_of_onnx_ir_runs_in_a_pipeline():
    result = ortfuse.optimize(parsed(HARD_SWISH), passes=[common.IdentityEliminationPass(), fuse_hardswish_rules()])
    assert ops(result.model) == "HardSwish"
    assert result.report.passes[0].name == "onnx_ir.IdentityEliminationPass"
    assert result.report.passes[0].changes > 0


def test_a_pass_that_changes_nothing_counts_no_changes():
    manager = PassManager(["fixpoint(dce)", common.IdentityEliminationPass(), successive_relu_rule])
    model = parsed(TWICE)
    manager.run(model)
    assert [found.changes for found in manager.run(model).passes][1:3] == [0, 0]


def test_a_functional_pass_returns_another_model():
    class Renamed(ir.passes.FunctionalPass):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            other = model.clone()
            node = next(iter(other.graph))
            other.graph.insert_before(node, made := ir.node("Abs", [other.graph.inputs[0]]))
            node.replace_input_with(0, made.outputs[0])
            return ir.passes.PassResult(other, True)

    original = parsed(TWICE)
    result = ortfuse.optimize(original, passes=[Renamed(), "dce"], check_user=False)
    assert ops(result.model) == "Abs Relu Relu Neg Exp"
    assert ops(original) == "Relu Relu Neg Exp"
    assert result.report.passes[0].changes > 0


def test_a_pass_of_another_package_can_have_a_name_in_texts():
    register_pass(common.IdentityEliminationPass(), name="test_no_identity")
    try:
        assert "Identity" not in ops(ortfuse.optimize(parsed(HARD_SWISH), passes="test_no_identity, dce").model)
        with pytest.raises(PipelineError, match="it has none"):
            PassManager("test_no_identity{x=1}")
    finally:
        del registry._registered["test_no_identity"]
    with pytest.raises(PipelineError, match="taken by ortfuse"):
        register_pass(common.IdentityEliminationPass(), name="dce")


def test_what_a_pass_raises_names_it():
    class Broken(ir.passes.InPlacePass):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            raise ValueError("no luck")

    with pytest.raises(PipelineError, match=r"pass test_foreign_passes.Broken fails: ValueError: no luck"):
        PassManager([Broken()]).run(parsed(TWICE))


def test_facts_are_learned_anew_after_a_pass_of_another_package():
    seen = []

    @dataclasses.dataclass(frozen=True)
    class Look:
        name: str = "look"

        def run(self, context: ortfuse.Context) -> int:
            seen.extend(context.facts.shape(node.outputs[0]) for node in context.model.graph)
            return 0

    PassManager([fuse_hardswish_rules(), Look()]).run(parsed(HARD_SWISH))
    assert seen[-1] == (2, 8)


def relu_of_negative(op, x):
    return op.Relu(op.Neg(x))


def test_pass_names_are_names():
    rule = pattern.RewriteRule(relu_of_negative, lambda op, x: op.Relu(op.Neg(x)), name="mine")
    assert str(PassManager([rule, "dce"])) == "onnxscript.mine, dce"


# Checked where they change something.

ADDED = """<ir_version: 8, opset_import: ["": 20]> g (float[2, 8] x) => (float[2, 8] y, float[2, 8] z)
    { a = Abs(x)  b = Exp(a)  y = Neg(b)  c = Sqrt(a)  d = Relu(c)  e = Relu(d)  z = Neg(e) }"""


def checks(passes: Sequence[Any], text: str) -> tuple[str, list[tuple[str, str, str]]]:
    result = optimize(parsed(text), passes=passes, verify="sites")
    assert result.sites is not None
    return ops(result.model), [(check.rule, check.site, check.state) for check in result.sites]


def test_the_edits_of_a_rule_set_are_checked():
    found, seen = checks([fuse_hardswish_rules()], HARD_SWISH.replace("i = Identity(x)", "i = Neg(x)"))
    assert found == "Neg HardSwish"
    assert seen == [("onnxscript.RewriteRuleSet", "y", "equal")]


def test_the_edits_of_a_pass_of_onnx_ir_are_checked():
    found, seen = checks([common.CommonSubexpressionEliminationPass()], """<ir_version: 8, opset_import: ["": 20]>
        g (float[2, 8] x) => (float[2, 8] y) { a = Exp(x)  b = Exp(x)  c = Neg(b)  y = Add(a, c) }""")  # fmt: skip
    assert found == "Exp Neg Add"
    assert [state for *_, state in seen] == ["equal"]


def test_a_wrong_rule_is_caught_and_undone_and_right_ones_stay():
    def wrong(op, x):
        return op.Neg(op.Exp(x))

    wrong_rule = pattern.RewriteRule(wrong, lambda op, x: op.Abs(op.Exp(x)), name="wrong")
    rules = pattern.RewriteRuleSet([wrong_rule, successive_relu_rule])
    assert "Abs Exp Abs" in ops(optimize(parsed(ADDED), passes=[rules], check_user=False).model)
    assert "Abs Exp Neg" in ops(optimize(parsed(ADDED), passes=[rules]).model)
    found, seen = checks([rules], ADDED)
    assert found == "Abs Exp Neg Sqrt Relu Neg"
    assert sorted(state for *_, state in seen) == ["equal", "undone"]
    assert ("onnxscript.RewriteRuleSet", "y", "undone") in seen


def test_a_wrong_constant_is_caught():
    class Doubles(ir.passes.InPlacePass):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            value = model.graph.initializers["three"]
            value.const_value = ir.tensor([6.0], name="three")
            return ir.passes.PassResult(model, True)

    text = """<ir_version: 8, opset_import: ["": 20]> g (float[2, 8] x) => (float[2, 8] y)
        <float[1] three = {3.0}> { a = Add(x, three)  y = Neg(a) }"""
    result = optimize(parsed(text), passes=[Doubles()], verify="sites")
    assert [check.state for check in result.sites or ()] == ["undone"]
    assert [value.const_value.numpy().tolist() for value in result.model.graph.initializers.values()] == [[3.0]]


def test_constants_that_take_the_place_of_nodes_are_checked():
    found, seen = checks([common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)],
        """<ir_version: 8, opset_import: ["": 20]> g (float[2, 8] x) => (float[2, 8] y)
        { c = Constant <value = float {2.0}> ()  y = Mul(x, c) }""")  # fmt: skip
    assert found == "Mul"
    assert [state for *_, state in seen] == ["equal"]


def test_what_is_not_one_of_regions_is_let_through_and_said():
    class Newer(ir.passes.InPlacePass):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            model.graph.opset_imports[""] = 21
            return ir.passes.PassResult(model, True)

    result = optimize(parsed(TWICE), passes=[Newer()], verify="sites")
    assert result.model.graph.opset_imports[""] == 21
    assert any("the opset of ai.onnx is another" in note for note in result.report.notes)


def test_their_own_passes_and_rules_on_an_exported_model_are_all_checked():
    file = Path(__file__).parents[2] / "golden/models/bert.sdpa.ts.onnx"
    passes = [common.IdentityEliminationPass(), common.LiftConstantsToInitializersPass(lift_all_constants=True),
              RewriteRuleSet(_DEFAULT_REWRITE_RULES), "dce"]  # fmt: skip
    result = optimize(file, passes=passes, verify="sites")
    assert {check.state for check in result.sites or ()} == {"equal"}
    assert ortfuse.verify(file, result.model).ok
