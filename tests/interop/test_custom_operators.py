"""Operators of custom domains: produced by rules, known to target, facts, rule tests and sessions, and written into models."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.defs import OpSchema

import ortfuse
from ortfuse import PassManager, RuleTest, register_operators
from ortfuse.analysis.facts import Facts
from ortfuse.analysis.transfer.value_fact import Fact
from ortfuse.errors import TargetError
from ortfuse.rewrite import Exactness, Rule
from ortfuse.rewrite.pattern import OpBuilder
from ortfuse.targets import Target, custom_operators
from ortfuse.transforms import RulePass
from ortfuse.verification.rule_tests import prove

mine = OpBuilder("test.mine")
x, y = ortfuse.variables("x y")
op = ortfuse.op

BODY = onnx.parser.parse_function("""
<domain: "test.mine", opset_import: ["": 18]> ReluSum (a, b) => (c) { s = Add(a, b)  c = Relu(s) }""")
MODEL = """<ir_version: 8, opset_import: ["": 18]> g (float[batch, 8] p, float[8] q) => (float[batch, 8] r)
    { s = Add(p, q)  t = Relu(s)  r = Neg(t) }"""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = dict(custom_operators._registered)
    yield
    custom_operators._registered.clear()
    custom_operators._registered.update(before)


def schema(name: str, domain: str = "test.mine", version: int = 1, outputs: int = 1) -> OpSchema:
    return OpSchema(
        name,
        domain,
        version,
        inputs=[OpSchema.FormalParameter("a", "T"), OpSchema.FormalParameter("b", "T")],
        outputs=[OpSchema.FormalParameter(f"c{number}", "T") for number in range(outputs)],
        type_constraints=[("T", ["tensor(float)"], "")],
    )


def relu_sum() -> Rule:
    return Rule(name="mine.relu_sum", pattern=op.Relu(x + y), replace=mine.ReluSum(x, y), exactness=Exactness.EXACT,
                source="test", test=RuleTest(shapes={"x": "b 8", "y": "8"}))  # fmt: skip


def optimised(rule: Rule, text: str = MODEL) -> ir.Model:
    model = ir.from_proto(onnx.parser.parse_model(text))
    PassManager([RulePass("mine", (rule,))]).run(model)
    return model


def test_an_operator_that_nobody_knows_is_not_legal():
    assert "knows no operator test.mine.ReluSum" in str(Target().refusal("test.mine", "ReluSum", 1, ["float32"] * 2))


def test_an_operator_without_a_library_is_written_as_a_function_of_the_model():
    register_operators(bodies=[BODY])
    model = optimised(relu_sum())
    assert [node.op_type for node in model.graph] == ["ReluSum", "Neg"]
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {"p": -np.ones((2, 8), np.float32), "q": np.arange(8, dtype=np.float32)})[0]
    np.testing.assert_array_equal(found[0], -np.maximum(np.arange(8) - 1, 0))


def test_a_rule_that_makes_one_is_proved_and_a_wrong_one_is_not():
    register_operators(bodies=[BODY])
    report = prove(relu_sum())
    assert report.proved, report.failures
    wrong = Rule(name="mine.wrong", pattern=op.Abs(x + y), replace=mine.ReluSum(x, y), exactness=Exactness.EXACT,
                 source="test", test=RuleTest(shapes={"x": "b 8", "y": "8"}))  # fmt: skip
    assert not prove(wrong).proved


def test_a_rule_may_look_for_custom_operators():
    register_operators(bodies=[BODY])
    back = Rule(name="mine.back", pattern=mine.ReluSum(x, y), replace=op.Relu(x + y), exactness=Exactness.EXACT,
                source="test", test=RuleTest(shapes={"x": "b 8", "y": "8"}))  # fmt: skip
    report = prove(back)
    assert report.proved, report.failures


def test_the_results_of_a_body_are_known():
    register_operators(bodies=[BODY])
    model = ir.from_proto(onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18, "test.mine": 1]> g (float[n, 8] p, float[8] q) => (r)
        { r = test.mine.ReluSum(p, q) }"""))  # fmt: skip
    facts = Facts(model)
    assert str(facts.shape(model.graph.outputs[0])) == str(facts.shape(model.graph.inputs[0]))
    assert facts.dtype(model.graph.outputs[0]) == ir.DataType.FLOAT


def test_rewrites_are_checked_where_they_happen():
    register_operators(bodies=[BODY])
    result = ortfuse.optimize(onnx.parser.parse_model(MODEL), passes=[RulePass("mine", (relu_sum(),))], verify="sites")
    assert result.sites is not None
    assert [(check.rule, check.state) for check in result.sites] == [("mine.relu_sum", "equal")]


def test_the_schema_says_which_types_an_operator_takes(tmp_path: Path):
    (tmp_path / "kernels.so").touch()
    register_operators([schema("ReluSum")], library=tmp_path / "kernels.so")
    target = Target()
    assert target.supports("test.mine", "ReluSum", 1, ["float32", "float32"], ["float32"])
    assert "does not take double" in str(target.refusal("test.mine", "ReluSum", 1, ["float64", "float64"]))
    assert "takes at most 2 inputs" in str(target.refusal("test.mine", "ReluSum", 1, ["float32"] * 3))


def test_element_types_follow_from_the_schema_and_shapes_from_a_function(tmp_path: Path):
    (tmp_path / "kernels.so").touch()
    text = """<ir_version: 8, opset_import: ["": 18, "test.mine": 1]> g (float[n, 8] p) => (r)
        { r = test.mine.Known(p, p) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    result = model.graph.outputs[0]
    register_operators([schema("Known")], library=tmp_path / "kernels.so")
    facts = Facts(model)
    assert (facts.dtype(result), facts.shape(result)) == (ir.DataType.FLOAT, None)
    register_operators(
        [schema("Known")], library=tmp_path / "kernels.so", infer={"Known": lambda op: Fact(op.dtype(), op.shape())}
    )
    assert Facts(model).rank(result) == 2


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"schemas": [schema("Lone")]}, "give the library that has a kernel for it, or a function"),
        ({"schemas": [schema("Newer", version=2)], "library": __file__}, "custom domains are imported at version 1"),
        ({"schemas": [schema("Relu", domain="")], "library": __file__}, "needs a domain of its own"),
        ({"schemas": [schema("ReluSum")], "library": "/nowhere.so"}, "no such library"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(keywords, words):
    with pytest.raises(TargetError, match=words):
        register_operators(**keywords)


def test_kernels_of_a_library_are_run():
    extensions = pytest.importorskip("onnxruntime_extensions")
    contrib = OpBuilder("ai.onnx.contrib")
    declared = OpSchema(
        "NegPos",
        "ai.onnx.contrib",
        1,
        inputs=[OpSchema.FormalParameter("x", "tensor(float)")],
        outputs=[OpSchema.FormalParameter(name, "tensor(float)") for name in ("negative", "positive")],
    )
    register_operators([declared], library=extensions.get_library_path(),
                       infer={"NegPos": lambda op: (Fact(op.dtype(), op.shape()),) * 2})  # fmt: skip
    rule = Rule(name="mine.positive", pattern=op.Relu(x), replace=contrib.NegPos(x, outputs=2)[1],
                exactness=Exactness.ROUNDING, source="test", test=RuleTest(shapes={"x": "b 8"}))  # fmt: skip
    report = prove(rule)
    assert report.instances > 0
    assert not [failure for failure in report.failures if not failure.startswith("near miss")], report.failures
    model = optimised(rule)
    assert "NegPos" in [node.op_type for node in model.graph]
    assert not model.functions
    assert ortfuse.verify(onnx.parser.parse_model(MODEL), model).ok


def test_a_model_with_operators_of_a_library_is_optimised_loaded_and_compared(tmp_path: Path) -> None:
    extensions = pytest.importorskip("onnxruntime_extensions")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.contrib" : 1]> g (float[b, 4] x) => (float[b, 4] y)'
        "{ s = Sigmoid(x) m = Mul(x, s) n, y = ai.onnx.contrib.NegPos(m) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    arguments = ["optimize", tmp_path / "m.onnx", "-o", tmp_path / "o.onnx", "--verify"]
    arguments += ["--custom-ops", extensions.get_library_path()]
    # In a process of its own: libraries stay known to a process.
    code = "import sys; from ortfuse.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "equal on" in done.stdout
    assert [node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node] == ["QuickGelu", "NegPos"]


def test_a_library_that_is_not_there() -> None:
    with pytest.raises(TargetError, match="no such library"):
        ortfuse.optimize(onnx.parser.parse_model(MODEL), custom_ops="/nowhere.so")
