"""Passes of onnx_ir and rules of onnxscript in our pipelines."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx_ir.passes import common
from onnxscript.rewriter import pattern
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


def parse(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


def run(passes: Sequence[Any] | str, text: str) -> Result:
    return optimize(parse(text), passes=passes)


def ops(model: ir.Model) -> str:
    return " ".join(node.op_type for node in model.graph)


def test_a_rule_set_of_onnxscript_runs_in_a_pipeline():
    rules = fuse_hardswish_rules()
    result = ortfuse.optimize(parse(HARD_SWISH), passes=["canonicalize", rules, "dce"])
    assert ops(result.model) == "HardSwish"
    counts = {found.name: found.changes for found in result.report.passes}
    assert counts["onnxscript.RewriteRuleSet"] > 0


def test_a_single_rule_of_onnxscript_is_called_by_its_name():
    result = ortfuse.optimize(parse(TWICE), passes=[successive_relu_rule])
    assert ops(result.model) == "Relu Neg Exp"
    assert result.report.passes[0].name.startswith("onnxscript.")


def test_a_pass_of_onnx_ir_runs_in_a_pipeline():
    result = ortfuse.optimize(parse(HARD_SWISH), passes=[common.IdentityEliminationPass(), fuse_hardswish_rules()])
    assert ops(result.model) == "HardSwish"
    assert result.report.passes[0].name == "onnx_ir.IdentityEliminationPass"
    assert result.report.passes[0].changes > 0


def test_a_pass_that_changes_nothing_counts_no_changes():
    manager = PassManager(["fixpoint(dce)", common.IdentityEliminationPass(), successive_relu_rule])
    model = parse(TWICE)
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

    original = parse(TWICE)
    result = ortfuse.optimize(original, passes=[Renamed(), "dce"])
    assert ops(result.model) == "Abs Relu Relu Neg Exp"
    assert ops(original) == "Relu Relu Neg Exp"
    assert result.report.passes[0].changes > 0


def test_a_pass_of_another_package_can_have_a_name_in_texts():
    register_pass(common.IdentityEliminationPass(), name="test_no_identity")
    try:
        assert "Identity" not in ops(ortfuse.optimize(parse(HARD_SWISH), passes="test_no_identity, dce").model)
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
        PassManager([Broken()]).run(parse(TWICE))


def test_facts_are_learned_anew_after_a_pass_of_another_package():
    seen = []

    @dataclasses.dataclass(frozen=True)
    class Look:
        name: str = "look"

        def run(self, context: ortfuse.Context) -> int:
            seen.extend(context.facts.shape(node.outputs[0]) for node in context.model.graph)
            return 0

    PassManager([fuse_hardswish_rules(), Look()]).run(parse(HARD_SWISH))
    assert seen[-1] == (2, 8)


def relu_of_negative(op, x):
    return op.Relu(op.Neg(x))


def test_pass_names_are_names():
    rule = pattern.RewriteRule(relu_of_negative, lambda op, x: op.Relu(op.Neg(x)), name="mine")
    assert str(PassManager([rule, "dce"])) == "onnxscript.mine, dce"
