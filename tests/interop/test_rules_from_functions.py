"""Rules whose sides are functions: lifted, proved, and as good as those written by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxscript
import pytest
from onnxscript import FLOAT
from onnxscript import opset20 as op
from onnxscript.values import Opset

from ortfuse.analysis.facts import Facts
from ortfuse.errors import RuleError
from ortfuse.interop import pattern_from, read_functions, rule_from
from ortfuse.ir.editor import Editor
from ortfuse.rewrite import Exactness, Rewriter, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Matcher
from ortfuse.targets import Target
from ortfuse.verification.rule_tests import prove

msft = Opset("com.microsoft", 1)
BATCH, LENGTH = "b", "s"


@onnxscript.script(default_opset=op)
def erf_gelu(x):
    return x * 0.5 * (1.0 + op.Erf(x / 1.4142135623730951))


@onnxscript.script(default_opset=op)
def gelu(x):
    return op.Gelu(x)


@onnxscript.script(default_opset=op)
def swish(x, alpha: float = 1.702):
    return x * op.Sigmoid(x * alpha)


@onnxscript.script(default_opset=op)
def quick_gelu(x, alpha: float):
    return msft.QuickGelu(x, alpha=alpha)


@onnxscript.script(default_opset=op)
def square(x):
    return x * x


@onnxscript.script(default_opset=op)
def root_mean_square(x, scale, epsilon: float = 1e-5):
    return x / op.Sqrt(op.ReduceMean(square(x), [-1]) + epsilon) * scale


@onnxscript.script(default_opset=op)
def rms_norm(x, scale, epsilon: float):
    return op.SimplifiedLayerNormalization(x, scale, axis=-1, epsilon=epsilon)


def fired(rule: Rule, text: str) -> str:
    model = ir.from_proto(onnx.parser.parse_model(text))
    Rewriter(Editor(model, Facts(model)), Target()).run([rule])
    return " ".join(node.op_type for node in model.graph if node.op_type != "Constant")


def made(pattern, replacement, *, name="test.rule", exactness=Exactness.ROUNDING, shapes="b s 8", **fields) -> Rule:
    test = fields.pop("test", RuleTest(shapes={"x": shapes}))
    return rule_from(pattern, replacement, name=name, exactness=exactness, source="test", test=test, **fields)


def test_a_rule_from_onnxscript_functions_is_proved():
    report = prove(made(erf_gelu, gelu))
    assert report.proved, report.failures
    assert report.options_covered == report.options > 4


def test_a_wrong_rule_from_functions_is_refuted():
    @onnxscript.script(default_opset=op)
    def tanh_gelu(x):
        return op.Gelu(x, approximate="tanh")

    assert not prove(made(erf_gelu, tanh_gelu), near_misses=False).proved


def test_a_lifted_pattern_matches_whatever_the_order_and_the_coefficients():
    model = """<ir_version: 8, opset_import: ["": 20]> g (float[2, 8] x) => (float[2, 8] y)
        <float half = {0.5}, float root = {0.70710678}, float one = {1.0}> {
            scaled = Mul(root, x)  e = Erf(scaled)  sum = Add(e, one)  product = Mul(sum, x)  y = Mul(half, product) }"""
    assert fired(made(erf_gelu, gelu), model) == "Gelu"


def test_an_attribute_that_a_function_computes_with_is_captured_as_a_number():
    rule = made(swish, quick_gelu)
    assert rule.test.scalars == {"alpha": [1.702]}
    model = """<ir_version: 8, opset_import: ["": 20]> g (float[2, 8] x) => (float[2, 8] y)
        <float alpha = {3.0}> { a = Mul(alpha, x)  s = Sigmoid(a)  y = Mul(x, s) }"""
    assert fired(rule, model) == "QuickGelu"
    assert prove(rule).proved


def test_functions_that_a_function_calls_and_axes_as_inputs_are_lifted():
    rule = made(root_mean_square, rms_norm, test=RuleTest(shapes={"x": "b s 8", "scale": "8"}))
    assert rule.test.scalars == {"epsilon": [1e-5]}
    report = prove(rule, near_misses=False)
    assert report.instances > 10
    assert not report.failures


def test_an_attribute_is_captured_where_a_node_has_it():
    @onnxscript.script(default_opset=op)
    def twice(x, perm: list[int], axis: int = 1):
        return op.Softmax(op.Transpose(op.Transpose(x, perm=[1, 0, 2]), perm=[1, 0, 2]), axis=axis)

    @onnxscript.script(default_opset=op)
    def once(x, axis: int):
        return op.Softmax(x, axis=axis)

    rule = made(
        twice, once, exactness=Exactness.EXACT, test=RuleTest(shapes={"x": "b 3 8"}, attributes={"axis": [0, 2]})
    )
    report = prove(rule)
    assert report.proved, report.failures


def test_plain_functions_as_those_of_a_rewriter_are_lifted():
    def pattern(op, x, bias, axis):
        return op.Softmax(x + bias, axis=axis)

    def replacement(op, x, bias, axis):
        return op.Softmax(op.Add(bias, x), axis=axis)

    rule = made(pattern, replacement, exactness=Exactness.EXACT,
                test=RuleTest(shapes={"x": "b 8", "bias": "8"}, attributes={"axis": [-1]}))  # fmt: skip
    assert str(rule.pattern) == "Softmax(x + bias, axis=axis)"


def test_annotated_shapes_are_those_of_the_variables():
    @onnxscript.script(default_opset=op)
    def twice(x: FLOAT[BATCH, LENGTH, 8], y: FLOAT[LENGTH, 8]):
        return op.Relu(op.Relu(x + y))

    @onnxscript.script(default_opset=op)
    def once(x, y):
        return op.Relu(y + x)

    rule = rule_from(twice, once, name="test.annotated", exactness=Exactness.EXACT, source="test")
    report = prove(rule)
    assert report.proved, report.failures
    model = """<ir_version: 8, opset_import: ["": 20]> g (float[2, N, 8] x, float[8] y) => (float[2, N, 8] z)
        { t = Add(x, y)  r = Relu(t)  z = Relu(r) }"""
    assert fired(rule, model.replace("N", "3")) == "Add Relu Relu"
    assert fired(rule, model.replace("N", "3").replace("float[8] y", "float[3, 8] y")) == "Add Relu"


def test_powers_match_however_they_are_spelled():
    def pattern(op, x):
        return op.Relu(op.Exp(x) ** 2)

    for step in ("p = Mul(e, e)", "p = Pow(e, two)"):
        text = f"""<ir_version: 8, opset_import: ["": 20]> g (float[2, 8] x) => (float[2, 8] y)
            <float two = {{2.0}}> {{ e = Exp(x)  {step}  y = Relu(p) }}"""
        model = ir.from_proto(onnx.parser.parse_model(text))
        assert isinstance(Matcher(pattern_from(pattern)).match(model.graph.outputs[0], Facts(model)), Match)


def test_numbers_and_powers_of_plain_functions_are_exact():
    def pattern(op, x):
        return x * 0.5 * (1 + op.Erf(x / math.sqrt(2)))

    rule = made(pattern, lambda op, x: op.Gelu(x), test=RuleTest(shapes={"x": "b 8"}, dtypes=("float32", "float64")))
    report = prove(rule)
    assert not [failure for failure in report.failures if "float64" not in failure], report.failures


def test_an_input_with_the_default_none_may_be_absent():
    def pattern(op, x, weight, bias=None):
        return op.Relu(op.MatMul(x, weight) + bias)

    with_bias, without = (f"""<ir_version: 8, opset_import: ["": 20]> g (float[2, 8] x, float[8, 8] w, float[8] b)
        => (float[2, 8] y) {{ m = MatMul(x, w)  {step}  y = Relu(s) }}""" for step in ("s = Add(b, m)", "s = Identity(m)"))  # fmt: skip
    for text in (with_bias, without.replace("s = Identity(m)  y = Relu(s)", "y = Relu(m)")):
        model = ir.from_proto(onnx.parser.parse_model(text))
        found = Matcher(pattern_from(pattern)).match(model.graph.outputs[0], Facts(model))
        assert isinstance(found, Match), found
        assert (found["bias"] is None) == ("Add" not in text)


def test_several_outputs_become_root_and_intermediates():
    def pattern(op, x, skip):
        total = x + skip
        return op.Relu(total), total

    def replacement(op, x, skip):
        total = op.Add(skip, x)
        return op.Clip(total, 0.0), total

    rule = made(pattern, replacement, test=RuleTest(shapes={"x": "b 8", "skip": "b 8"}))
    model = """<ir_version: 8, opset_import: ["": 20]> g (float[2, 8] x, float[2, 8] s)
        => (float[2, 8] y, float[2, 8] z) { t = Add(x, s)  y = Relu(t)  z = Neg(t) }"""
    assert fired(rule, model) == "Add Clip Neg"


def test_further_outputs_of_the_root_node_are_replaced_too():
    def pattern(op, x):
        first, second = op.Split(op.Neg(op.Neg(x)), _outputs=2, num_outputs=2, axis=-1)
        return first, second

    def replacement(op, x):
        return op.Split(x, _outputs=2, num_outputs=2, axis=-1)

    model = """<ir_version: 8, opset_import: ["": 20]> g (float[2, 8] x) => (float[2, 4] y, float[2, 4] z)
        { a = Neg(x)  b = Neg(a)  y, z = Split <num_outputs = 2, axis = -1> (b) }"""
    assert fired(made(pattern, replacement, exactness=Exactness.EXACT), model) == "Split"


def test_a_constant_tensor_must_have_that_content():
    kernel = np.asarray([1.0, 2.0, 1.0], np.float32)

    def pattern(op, x):
        return op.Sqrt(op.Exp(x) * kernel)

    def replacement(op, x):
        return op.Sqrt(op.Mul(kernel, op.Exp(x)))

    rule = made(pattern, replacement, shapes="b 3")
    text = """<ir_version: 8, opset_import: ["": 20]> g (float[2, 3] x) => (float[2, 3] y)
        <float[3] k = {1.0, 2.0, NUMBER}> { e = Exp(x)  m = Mul(k, e)  y = Sqrt(m) }"""
    found = [_matches(rule, text.replace("NUMBER", number)) for number in ("1.0", "1.5")]
    assert found == [True, False]


def _matches(rule: Rule, text: str) -> bool:
    model = ir.from_proto(onnx.parser.parse_model(text))
    found = rule.matcher.match(model.graph.outputs[0], Facts(model))
    return isinstance(found, Match)


def test_model_local_functions_of_a_file_are_lifted(tmp_path: Path):
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 20, "local": 1]> g (float[2, 8] x) => (float[2, 8] y)
        { y = local.Swish(x) }
        <domain: "local", opset_import: ["": 20]> Swish (x) => (y) { s = Sigmoid(x)  y = Mul(x, s) }
        <domain: "local", opset_import: ["": 20, "com.microsoft": 1]> Fused (x) => (y)
        { y = com.microsoft.QuickGelu <alpha = 1.0> (x) }""")
    onnx.save(proto, tmp_path / "rules.onnx")
    functions = read_functions(tmp_path / "rules.onnx")
    by_ir = made(functions["Swish"], functions["Fused"])
    by_proto = made(proto.functions[0], proto.functions[1])
    assert str(by_ir.pattern) == str(by_proto.pattern)
    assert prove(by_ir).proved


def test_control_flow_is_refused_by_name():
    @onnxscript.script(default_opset=op)
    def chooses(x, flag):
        if flag:
            y = op.Relu(x)
        else:
            y = op.Neg(x)
        return y

    with pytest.raises(RuleError, match=r"function chooses: If node .*control flow"):
        made(chooses, gelu)


def test_a_tensor_made_of_an_attribute_is_refused():
    @onnxscript.script(default_opset=op)
    def shifted(x, offsets: list[float]):
        return x + op.Constant(value_floats=offsets)

    with pytest.raises(RuleError, match=r"function shifted: Constant node .* attribute offsets"):
        made(shifted, gelu)


def test_a_function_that_asks_about_its_arguments_is_refused():
    def pattern(op, x):
        return op.Relu(x) if x.shape[0] > 1 else op.Neg(x)

    with pytest.raises(RuleError, match="function pattern cannot be read as a formula"):
        made(pattern, gelu)


def test_a_replacement_can_only_use_what_the_pattern_captures():
    def pattern(op, x):
        return op.Relu(op.Relu(x))

    def replacement(op, x, slope):
        return op.PRelu(x, slope)

    with pytest.raises(RuleError, match="function replacement: its input slope is none of what the pattern captures"):
        made(pattern, replacement)


def test_outputs_that_are_computed_side_by_side_are_siblings():
    def pattern(op, x):
        total = op.Abs(x)
        return op.Relu(total), total, op.Neg(x)

    def replacement(op, x):
        total = op.Abs(x)
        return op.Clip(total, 0.0), total, op.Mul(-1.0, x)

    rule = made(pattern, replacement, shapes="b 8")
    model = """<ir_version: 8, opset_import: ["": 20]> g (float[2, 8] x) => (float[2, 8] y, float[2, 8] z, float[2, 8] k)
        { a = Abs(x)  y = Relu(a)  z = Exp(a)  k = Neg(x) }"""
    assert sorted(fired(rule, model).split()) == ["Abs", "Clip", "Exp", "Mul"]
    report = prove(made(lambda op, x: (op.Relu(x), op.Neg(x)), lambda op, x: (op.Clip(x, 0.0), op.Mul(-1.0, x))))
    assert report.proved, report.failures


def test_outputs_that_share_nothing_are_refused():
    def pattern(op, x, y):
        return op.Relu(x), op.Exp(y)

    with pytest.raises(RuleError, match=r"test.rule: the sibling Exp\(y\) shares no variable with Relu\(x\)"):
        made(pattern, pattern)


def test_rules_from_functions_stand_in_a_rule_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from ortfuse.cli.app import main

    (tmp_path / "swish.py").write_text("""
import onnxscript
from onnxscript import opset20 as op
from ortfuse.interop import rule_from
from ortfuse.rewrite import Exactness, RuleTest

@onnxscript.script(default_opset=op)
def twice(x):
    return op.Relu(op.Relu(x))

@onnxscript.script(default_opset=op)
def once(x):
    return op.Relu(x)

RULES = [rule_from(twice, once, name="mine.relu", exactness=Exactness.EXACT, source="test", test=RuleTest(shapes={"x": "b 8"}))]
""")
    with pytest.raises(SystemExit) as ended:
        main(["test-rules", str(tmp_path / "swish.py")])
    assert ended.value.code == 0, capsys.readouterr()
