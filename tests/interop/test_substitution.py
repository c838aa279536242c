"""Substitution: pairs of models as rules, what is free in them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import operators

import ortfuse
from ortfuse.errors import OptionError, RuleError
from ortfuse.interop.substitution import RuleTestError
from ortfuse.verification.rule_tests import prove

SWISH = "g (float[n, m] x) => (float[n, m] y) { s = Sigmoid(x)  y = Mul(s, x) }"
QUICK = "g (float[n, m] x) => (float[n, m] y) { y = com.microsoft.QuickGelu <alpha = 1.0> (x) }"
TWO = "g (float[N, 8] x, float16[N, 8] h) => (float[N, 8] y, float16[N, 8] k)"


def model(text: str, opset: int = 20) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]> {text}')


def test_a_pair_is_proved_and_applied_where_it_fits_and_nothing_else_is_touched() -> None:
    given = model(f"{TWO} {{ a = Identity(x)  s = Sigmoid(a)  y = Mul(a, s)  t = Sigmoid(h)  k = Mul(h, t) }}")
    done = ortfuse.substitute(given, model(SWISH), model(QUICK), verify="whole")
    assert operators(done.result) == ["Identity", "QuickGelu", "Sigmoid", "Mul"]
    assert done.ok and done.count == 1 and done.rule_test is not None and done.rule_test.proved
    (miss,) = done.explanation.missed
    assert (miss.site, miss.refusal.code) == ("k", "dtype")


def test_a_pair_that_is_not_the_same_is_refused_unless_the_result_is_checked() -> None:
    given = model("g (float[N, 8] x) => (float[N, 8] y) { s = Sigmoid(x)  y = Mul(s, x) }")
    other = model(QUICK.replace("1.0", "1.702"))
    with pytest.raises(RuleTestError, match=r"substitute.g fails its rule test: .* is off by") as found:
        ortfuse.substitute(given, model(SWISH), other)
    assert found.value.report.failures
    with pytest.raises(OptionError, match="has to be checked"):
        ortfuse.substitute(given, model(SWISH), other, untested=True)
    with pytest.raises(ortfuse.WrongResultError):
        ortfuse.substitute(given, model(SWISH), other, untested=True, verify="whole")
    done = ortfuse.substitute(given, model(SWISH), other, untested=True, verify="sites")
    assert not done.ok and operators(done.result) == ["Sigmoid", "Mul"], "undone at its site"


def test_nothing_is_written_where_nothing_is_found(tmp_path: Path) -> None:
    given = model("g (float[N, 8] x) => (float[N, 8] y) { y = Relu(x) }")
    done = ortfuse.substitute(given, model(SWISH), model(QUICK), output=tmp_path / "out.onnx")
    assert not done.ok
    assert done.explanation.absent == {"substitute.g": "the model has no Sigmoid, which the pattern needs"}
    assert not (tmp_path / "out.onnx").exists()


def test_initializers_are_fixed_or_free() -> None:
    find = """g (float[n, 3] x) => (float[n, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {1, 2}>
        { m = MatMul(x, w)  y = Add(m, b) }"""
    replace = """g (float[n, 3] x) => (float[n, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {1, 2}>
        { y = Gemm(x, w, b) }"""
    given = find.replace("[n,", "[N,")
    other = given.replace("w = {1, 2", "w = {7, 2")
    assert operators(ortfuse.substitute(model(given), model(find), model(replace)).result) == ["Gemm"]
    assert not ortfuse.substitute(model(other), model(find), model(replace)).ok
    assert operators(ortfuse.substitute(model(other), model(find), model(replace), free=["w", "b"]).result) == ["Gemm"]


def test_an_initializer_with_an_input_is_free_in_its_contents_and_named_sizes() -> None:
    find = """g (float[n, k] x, float[k, m] w) => (float[n, m] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>
        { h = MatMul(x, w)  y = Relu(h) }"""
    replace = """g (float[n, k] x, float[k, m] w) => (float[n, m] y) { h = Gemm(x, w)  y = Relu(h) }"""
    text = "g (float[N, 2] x) => (float[N, 1] y) <float[2, 1] w = {8, 9}> { h = MatMul(x, w)  y = Relu(h) }"
    assert operators(ortfuse.substitute(model(text), model(find), model(replace)).result) == ["Gemm", "Relu"]
    at_run_time = text.replace("x) =>", "x, float[2, 1] w) =>").replace("<float[2, 1] w = {8, 9}>", "")
    assert not ortfuse.substitute(model(at_run_time), model(find), model(replace)).ok


NORM = """g (float[n, 8] x, float[8] scale) => (float[n, 8] y) <float eps = {1e-5}, float two = {2.0}, int64[1] axes = {-1}>
    { p = Pow(x, two)  m = ReduceMean(p, axes)  e = Add(m, eps)  r = Sqrt(e)  d = Div(x, r)  y = Mul(d, scale) }"""
RMS = """g (float[n, 8] x, float[8] scale) => (float[n, 8] y)
    { y = SimplifiedLayerNormalization <axis = -1, epsilon = 1e-5> (x, scale) }"""


def test_a_free_number_of_one_model_is_an_attribute_of_the_other() -> None:
    rule = ortfuse.rule_from_models(model(NORM), model(RMS), free=["eps", "y.epsilon=eps"])
    assert rule.test.scalars == {"eps": [pytest.approx(1e-5)]}
    other = NORM.replace("1e-5", "1e-3").replace("[n,", "[N,")
    done = ortfuse.substitute(model(other), model(NORM), model(RMS), free=["eps", "y.epsilon=eps"],
                              untested=True, verify="whole")  # fmt: skip
    assert operators(done.result) == ["SimplifiedLayerNormalization"]
    assert done.result.model.graph.node[0].attribute[1].f == pytest.approx(1e-3)


def test_free_attributes_are_the_same_in_both_and_named_in_the_file() -> None:
    find = model("g (float[n, m, 4] x) => (float[n, m, 4] y) { a = Relu(x)  b = Relu(a)  y = Softmax <axis = 1> (b) }")
    replace = model("g (float[n, m, 4] x) => (float[n, m, 4] y) { a = Relu(x)  y = Softmax <axis = 1> (a) }")
    given = model("g (float[2, 3, 4] x) => (float[2, 3, 4] y) { a = Relu(x)  b = Relu(a)  y = Softmax <axis = 2> (b) }")
    assert not ortfuse.substitute(given, find, replace).ok
    assert operators(ortfuse.substitute(given, find, replace, free=["y.axis"]).result) == ["Relu", "Softmax"]
    for one in (find, replace):
        onnx.helper.set_model_props(one, {"ortfuse.free": "y.axis"})
    assert operators(ortfuse.substitute(given, find, replace).result) == ["Relu", "Softmax"]


def test_a_free_attribute_that_the_replacement_ignores_is_not_proved() -> None:
    find = model("g (float[n, m, 4] x) => (float[n, m, 4] y) { a = Relu(x)  b = Relu(a)  y = Softmax <axis = 1> (b) }")
    replace = model("g (float[n, m, 4] x) => (float[n, m, 4] z) { a = Relu(x)  z = Softmax <axis = 1> (a) }")
    rule = ortfuse.rule_from_models(find, replace, free=["y.axis"])
    assert not prove(rule).proved


def test_replacements_are_written_as_the_opset_of_the_model_has_them() -> None:
    find = "g (float[n, 8] x) => (float[n, 1] y) { a = Abs(x)  b = Abs(a)  y = ReduceMean <axes = [-1]> (b) }"
    replace = "g (float[n, 8] x) => (float[n, 1] y) { a = Abs(x)  y = ReduceMean <axes = [-1]> (a) }"
    newer = """g (float[N, 8] x) => (float[N, 1] y) <int64[1] axes = {-1}>
        { a = Abs(x)  b = Abs(a)  y = ReduceMean(b, axes) }"""
    for given, opset in ((newer, 20), (find.replace("[n,", "[N,"), 17)):
        done = ortfuse.substitute(model(given, opset), model(find, 17), model(replace, 17), verify="whole")
        assert operators(done.result) == ["Abs", "ReduceMean"]
        assert done.result.model.opset_import[0].version == opset


def test_several_outputs_on_one_path() -> None:
    find = "g (float[n, 8] x, float[n, 8] s) => (float[n, 8] sum, float[n, 8] y) { sum = Add(x, s)  y = Abs(sum) }"
    replace = "g (float[n, 8] s, float[n, 8] x) => (float[n, 8] y, float[n, 8] sum) { sum = Add(s, x)  y = Max(sum, n) n = Neg(sum) }"
    replace = replace.replace("y = Max(sum, n) n = Neg(sum)", "n = Neg(sum)  y = Max(sum, n)")
    given = (
        "g (float[N, 8] x, float[N, 8] s) => (float[N, 8] y, float[N, 8] z) { t = Add(x, s)  y = Abs(t)  z = Exp(t) }"
    )
    done = ortfuse.substitute(model(given), model(find), model(replace), verify="whole")
    assert sorted(operators(done.result)) == ["Add", "Exp", "Max", "Neg"]


def test_several_outputs_side_by_side() -> None:
    head = "g (float[n, d] x, float[d, 4] a, float[d, 3] b) => (float[n, 4] q, float[n, 3] k)"
    find = f"{head} {{ q = MatMul(x, a)  k = MatMul(x, b) }}"
    replace = f"{head} <int64[2] sizes = {{4, 3}}> {{ w = Concat<axis = 1>(a, b)  p = MatMul(x, w)  q, k = Split<axis = 1>(p, sizes) }}"
    given = (
        "g (float[N, 8] x, float[8, 4] a, float[8, 3] b) => (float[N, 3] y, float[N, 4] z) "
        "{ r = Relu(x)  y = MatMul(r, b)  t = MatMul(r, a)  z = Exp(t) }"
    )
    done = ortfuse.substitute(model(given), model(find), model(replace), verify="whole")
    assert sorted(operators(done.result)) == ["Concat", "Exp", "MatMul", "Relu", "Split"]
    exchanged = replace.replace("q, k = Split", "k, q = Split").replace("(a, b) ", "(b, a) ")
    with pytest.raises(RuleTestError):
        ortfuse.substitute(model(given), model(find), model(exchanged))


@pytest.mark.parametrize(
    ("find", "replace", "words"),
    [
        (SWISH, QUICK.replace("n, m] x", "n, m] v, float[n] z").replace("(x)", "(v)"), r"inputs of g \(v, z\) are not those of g \(x\)"),
        (SWISH, SWISH.replace("=> (float[n, m] y)", "=> (float[n, m] y, float[n, m] s)"), r"outputs of g \(y, s\) are not"),
        (SWISH, QUICK.replace("float[n, m] x", "float16[n, m] x"), "'x' is FLOAT16 in g and FLOAT in g"),
        (SWISH, QUICK.replace("float[n, m] y", "float[n, m, 1] y"), "'y' has the shape .* a replacement keeps the shapes"),
        ("g (float[n] x, float[n] z) => (float[n] x2, float[n] y) { x2 = Relu(x)  y = Neg(z) }",
         "g (float[n] x, float[n] z) => (float[n] x2, float[n] y) { x2 = Relu(x)  y = Neg(z) }", "shares no variable"),
    ],
)  # fmt: skip
def test_pairs_that_do_not_go_together_are_refused(find: str, replace: str, words: str) -> None:
    with pytest.raises(RuleError, match=words):
        ortfuse.rule_from_models(model(find), model(replace))


def test_inputs_without_shapes_and_unknown_names_are_refused() -> None:
    bare = model(SWISH)
    bare.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(RuleError, match="x has no shape, so that nothing can be tried"):
        ortfuse.rule_from_models(bare, model(QUICK))
    with pytest.raises(RuleError, match=r"y\.alfa: neither g nor g has such an initializer or attribute"):
        ortfuse.rule_from_models(model(SWISH), model(QUICK), free=["y.alfa"])
    with pytest.raises(RuleError, match="weight: neither g nor g has such an initializer or attribute"):
        ortfuse.rule_from_models(model(SWISH), model(QUICK), free=["weight"])
    nameless = model(SWISH)
    nameless.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    with pytest.raises(RuleError, match="a dimension of 'x' has neither a size nor a name"):
        ortfuse.rule_from_models(nameless, model(QUICK))


def test_a_large_fixed_constant_says_what_to_do() -> None:
    find = ir.from_proto(model("g (float[n, 300] x, float[300, 300] w) => (float[n, 300] y) { y = MatMul(x, w) }"))
    weight = find.graph.inputs[1]
    find.graph.inputs.remove(weight)
    weight.const_value = ir.tensor(np.ones((300, 300), np.float32), name="w")
    find.graph.register_initializer(weight)
    with pytest.raises(RuleError, match="the constant w is too large for a pattern; make it an input, or free"):
        ortfuse.rule_from_models(find, find)


def test_rules_as_objects_take_part_in_an_optimisation() -> None:
    rule = ortfuse.rule_from_models(model(SWISH), model(QUICK), name="mine.swish")
    given = model("g (float[N, 8] x) => (float[N, 8] y) { s = Sigmoid(x)  y = Mul(x, s) }")
    result = ortfuse.optimize(given, patterns=[rule], passes="canonicalize, user")
    assert result.report.families() == {"mine": 1}
    assert result.options.to_dict()["patterns"] == ["mine.swish"]
    assert [entry.name for entry in result.report.passes][1] == "fuse.given"


def test_the_command_writes_reports_and_says_no(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from ortfuse.cli.app import app

    given = "g (float[N, 8] x) => (float[N, 8] y) { s = Sigmoid(x)  y = Mul(x, s) }"
    wrong = QUICK.replace("1.0", "2.0")
    for name, text in (("model", given), ("find", SWISH), ("replace", QUICK), ("wrong", wrong)):
        onnx.save(model(text), tmp_path / f"{name}.onnx")

    def run(other: str, *more: str) -> tuple[int, str]:
        files = ["--find", str(tmp_path / "find.onnx"), "--replace", str(tmp_path / f"{other}.onnx")]
        ran = CliRunner().invoke(app, ["substitute", str(tmp_path / "model.onnx"), *files, *more])
        return ran.exit_code, ran.output

    code, text = run("replace", "-o", str(tmp_path / "out.onnx"), "--verify", "--json", str(tmp_path / "out.json"))
    assert code == 0, text
    assert "substitute.find: passed on" in text and "verified: equal" in text
    assert [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node] == ["QuickGelu"]
    assert json.loads((tmp_path / "out.json").read_text())["substituted"] == 1
    code, text = run("wrong", "-o", str(tmp_path / "other.onnx"))
    assert code == 1 and "FAILED" in text and not (tmp_path / "other.onnx").exists()
    code, text = run("wrong", "--untested")
    assert code == 2 and "--untested: a pair without a rule test has to be checked: add --verify" in text
    code, text = run("wrong", "--untested", "--verify")
    assert code == 1 and "NOT EQUAL" in text
    onnx.save(model(given.replace("Sigmoid", "Tanh")), tmp_path / "model.onnx")
    code, text = run("replace", "-o", str(tmp_path / "other.onnx"))
    assert code == 1 and "substituted nowhere; nothing was written" in text and "-o RESULT" not in text
    assert not (tmp_path / "other.onnx").exists()


def test_a_replacement_that_holds_what_is_looked_for_is_made_once() -> None:
    find = model("g (float[n, m] x) => (float[n, m] y) { y = Relu(x) }")
    replace = model("g (float[n, m] x) => (float[n, m] y) { a = Relu(x)  y = Relu(a) }")
    given = model("g (float[N, 8] x) => (float[N, 8] y) { a = Relu(x)  b = Exp(a)  y = Relu(b) }")
    done = ortfuse.substitute(given, find, replace, verify="whole")
    assert done.count == 2
    assert operators(done.result) == ["Relu", "Relu", "Exp", "Relu", "Relu"]
    assert not done.explanation.missed, "what the rule has made itself is no miss"


def test_a_pair_that_takes_nodes_away_goes_on_until_nothing_is_left() -> None:
    find = model("g (float[n, m] x) => (float[n, m] y) { a = Relu(x)  y = Relu(a) }")
    replace = model("g (float[n, m] x) => (float[n, m] y) { y = Relu(x) }")
    given = model("g (float[N, 8] x) => (float[N, 8] y) { a = Relu(x)  b = Relu(a)  c = Relu(b)  y = Relu(c) }")
    assert operators(ortfuse.substitute(given, find, replace).result) == ["Relu"]


def test_indices_of_the_instances_exist() -> None:
    find = model("g (float[k, m] t, int64[n] i) => (float[n, m] y) { a = Gather(t, i)  b = Abs(a)  y = Abs(b) }")
    replace = model("g (float[k, m] t, int64[n] i) => (float[n, m] y) { a = Gather(t, i)  y = Abs(a) }")
    given = model("g (float[10, 8] t, int64[N] i) => (float[N, 8] y) { a = Gather(t, i)  b = Abs(a)  y = Abs(b) }")
    assert operators(ortfuse.substitute(given, find, replace).result) == ["Gather", "Abs"]


def test_the_canonical_form_first_if_it_is_asked_for() -> None:
    given = model(
        "g (float[N, 8] x) => (float[N, 8] y) { i = Identity(x)  d = Dropout(i)  s = Sigmoid(d)  y = Mul(s, i) }"
    )
    assert not ortfuse.substitute(given, model(SWISH), model(QUICK)).ok
    assert operators(ortfuse.substitute(given, model(SWISH), model(QUICK), passes="canonicalize, user").result) == [
        "QuickGelu"
    ]


def test_a_single_operator_that_nearly_fits_is_reported() -> None:
    find = model("g (float[n, m] x) => (float[n, m] y) { y = Relu(x) }")
    replace = model("g (float[n, m] x) => (float[n, m] y) <float zero = {0}> { y = Max(x, zero) }")
    given = model("g (float16[N, 8] x) => (float16[N, 8] y) { y = Relu(x) }")
    (miss,) = ortfuse.substitute(given, find, replace).explanation.missed
    assert (miss.site, miss.refusal.code) == ("y", "dtype")


def test_a_softmax_means_what_it_means_at_the_opset_of_its_model() -> None:
    head = '<ir_version: 8, opset_import: ["": {}]> g (float[b,3,n] x) => (float[b,3,n] y) {{ {} }}'
    softmax = "y = Softmax<axis = 1>(x)"
    moved = "t = Transpose<perm = [0, 2, 1]>(x) s = Softmax<axis = 2>(t) y = Transpose<perm = [0, 2, 1]>(s)"
    old, new = (onnx.parser.parse_model(head.format(opset, softmax)) for opset in (11, 13))
    rewritten = onnx.parser.parse_model(head.format(13, moved))
    assert ortfuse.substitute(new, new, rewritten, verify="whole").count == 1
    assert ortfuse.substitute(old, new, rewritten).count == 0


def test_constants_that_are_written_as_numbers_are_float32() -> None:
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[b,n] x) => (float[b,n] y) {{ {} }}'
    swish = onnx.parser.parse_model(head.format("s = Sigmoid(x) y = Mul(x, s)"))
    spelled = onnx.parser.parse_model(
        head.format("n = Neg(x) e = Exp(n) o = Constant<value_float = 1.0>() d = Add(e, o) y = Div(x, d)")
    )
    assert ortfuse.substitute(swish, swish, spelled, verify="whole").count == 1


def test_integers_have_no_reciprocals_to_be_tried() -> None:
    find = model("g (int64[n] x) => (int64[n] y) { a = Add(x, x)  y = Neg(a) }")
    replace = model("g (int64[n] x) => (int64[n] y) <int64 k = {-2}> { y = Mul(x, k) }")
    given = model("g (int64[N] x) => (int64[N] y) { a = Add(x, x)  y = Neg(a) }")
    assert operators(ortfuse.substitute(given, find, replace, verify="whole").result) == ["Mul"]


SPLITS = {
    "equal before opset 18": ("a, b = Split <axis = 1> (x)", 17),
    "equal": ("a, b = Split <axis = 1, num_outputs = 2> (x)", 20),
    "of sizes": ("a, b = Split <axis = -1> (x, sizes)", 17),
}
GATED = "g (float[n, 8] x) => (float[n, 4] y) <int64[2] sizes = {{4, 4}}> {{ {}  s = Sigmoid(b)  y = Mul(a, s) }}"
SLICED = """g (float[n, 8] x) => (float[n, 4] y) <int64[1] no = {0}, int64[1] half = {4}, int64[1] end = {8}, int64[1] one = {1}> {
    a = Slice(x, no, half, one)  b = Slice(x, half, end, one)  s = Sigmoid(b)  y = Mul(a, s) }"""


@pytest.mark.parametrize("sought", SPLITS)
@pytest.mark.parametrize("there", SPLITS)
def test_a_split_is_found_in_whatever_spelling(sought: str, there: str) -> None:
    split, opset = SPLITS[there]
    given = model(f"g (float[N, 8] i) => (float[N, 4] k) <int64[2] sizes = {{4, 4}}> {{ x = Sin(i)  {split}  s = Sigmoid(b) "
                  "y = Mul(a, s)  k = Cos(y) }", opset)  # fmt: skip
    text, version = SPLITS[sought]
    done = ortfuse.substitute(given, model(GATED.format(text), version), model(SLICED, 17), verify="whole")
    assert done.ok and done.rule_test is not None and done.rule_test.proved
    assert operators(done.result) == ["Sin", "Slice", "Slice", "Sigmoid", "Mul", "Cos"]


@pytest.mark.parametrize(
    ("split", "opset"),
    [
        ("a, b = Split <axis = 1> (x, others)", 17),
        ("a, b, c = Split <axis = 1> (x, three)", 20),
        ("a, b, c = Split <axis = 1> (x)", 17),
        ("a, b = Split <axis = 1> (x, given)", 20),
    ],
)
@pytest.mark.parametrize("sought", SPLITS)
def test_a_split_into_other_parts_is_not_the_same(sought: str, split: str, opset: int) -> None:
    text, version = SPLITS[sought]
    given = model(f"g (float[N, 12] x, int64[2] given) => (float[N, k] y) <int64[2] others = {{3, 9}}, int64[3] three = {{4, 4, 4}}> "
                  f"{{ {split}  s = Sigmoid(b)  y = Mul(a, s) }}", opset)  # fmt: skip
    find = GATED.format(text).replace("[n, 8]", "[n, 12]").replace("[n, 4]", "[n, k]").replace("{4, 4}", "{6, 6}")
    assert not ortfuse.substitute(given, model(find, version), model(find, version)).ok


def test_sizes_computed_on_the_way_are_integers_in_instances_too() -> None:
    text = """g (float[{batch}, m] x) => (float[{batch}, k] y) {{ h = Sigmoid(x)  s = Shape(h)  i = Constant <value_int = 1> ()
        w = Gather(s, i)  z = Constant <value_ints = [0]> ()  o = Constant <value_ints = [1]> ()  t = Constant <value_ints = [2]> ()
        p = Add(w, o)  e = Div(p, t)  y = Slice(h, z, e, o) }}"""
    done = ortfuse.substitute(
        model(text.format(batch="N")), model(text.format(batch="n")), model(text.format(batch="n"))
    )
    assert done.rule_test is not None and done.rule_test.proved and done.count == 1
