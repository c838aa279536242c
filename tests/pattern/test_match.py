"""What the pattern language matches, and what it must not."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortfuse.analysis.facts import Facts
from ortfuse.errors import PatternError
from ortfuse.rewrite.pattern import (
    Match,
    Matcher,
    Miss,
    Pattern,
    attr,
    const,
    maybe,
    ms,
    op,
    opt,
    rest,
    scalar,
    variables,
)
from ortfuse.rewrite.pattern.language import bare

x, y, z = variables("x y z")


def graph(body: str, inputs: str = "float[2,3] x, float[2,3] y, float[2,3] z", initializers: str = "") -> ir.Model:
    text = f'<ir_version: 9, opset_import: ["": 18]> g ({inputs}) => (float[m,n] out) {initializers} {{ {body} }}'
    return ir.from_onnx_text(text)


def match(pattern: Pattern, model: ir.Model, extra: bool = False) -> Match | Miss:
    return Matcher(pattern).match(model.graph.outputs[0], Facts(model), extra)


def matches(pattern: Pattern, body: str, **keywords: str) -> bool:
    return isinstance(match(pattern, graph(body, **keywords)), Match)


HALF = "<float half = {0.5}, float two = {2.0}, float[1] one_of_rank_1 = {1.0}, float[1,1,1] rank_3 = {0.5}>"


@pytest.mark.parametrize(
    "body",
    [
        "t = Mul(x, y) out = Mul(t, z)",
        "t = Mul(z, x) out = Mul(y, t)",
        "t = Mul(y, z) out = Mul(t, x)",
    ],
)
def test_a_product_matches_in_any_order_and_association(body: str) -> None:
    assert matches(x * y * z, body)


@pytest.mark.parametrize(
    "body",
    [
        "t = Mul(x, half) out = Sigmoid(t)",
        "t = Mul(half, x) out = Sigmoid(t)",
        "t = Div(x, two) out = Sigmoid(t)",
        "t = Neg(x) s = Div(t, two) r = Neg(s) out = Sigmoid(r)",
    ],
)
def test_a_coefficient_matches_however_it_is_spelled(body: str) -> None:
    found = match(op.Sigmoid(0.5 * x), graph(body, initializers=HALF))
    assert isinstance(found, Match)
    assert found["x"].name == "x"


def test_another_coefficient_does_not_match() -> None:
    found = match(op.Sigmoid(0.5 * x), graph("t = Mul(x, two) out = Sigmoid(t)", initializers=HALF))
    assert isinstance(found, Miss)
    assert "2" in found.refusal.reason


def test_a_captured_coefficient_is_the_product_of_all_scalars_and_one_when_absent() -> None:
    pattern = op.Sigmoid(scalar("s") * x)
    model = graph("t = Mul(x, half) u = Mul(t, half) out = Sigmoid(u)", initializers=HALF)
    found = match(pattern, model)
    assert isinstance(found, Match)
    assert found["s"] == 0.25
    plain = match(pattern, graph("out = Sigmoid(x)"))
    assert isinstance(plain, Match)
    assert plain["s"] == 1.0


def test_a_constant_that_adds_axes_is_no_coefficient() -> None:
    assert not matches(op.Sigmoid(0.5 * x), "t = Mul(x, rank_3) out = Sigmoid(t)", initializers=HALF)


def test_differences_match_as_sums_with_signs() -> None:
    assert matches(x - y, "out = Sub(x, y)")
    assert matches(x - y, "t = Neg(y) out = Add(t, x)")
    assert matches(x - y + z, "t = Add(x, z) out = Sub(t, y)")
    found = match(x - y, graph("out = Sub(y, x)"))
    assert isinstance(found, Match)
    assert found["x"].name == "y"


def test_quotients_match_as_products_with_exponents() -> None:
    assert matches(x / op.Sqrt(y), "s = Sqrt(y) out = Div(x, s)")
    assert matches(x / op.Sqrt(y), "s = Sqrt(y) r = Reciprocal(s) out = Mul(r, x)")
    assert not matches(x / op.Sqrt(y), "s = Sqrt(y) out = Div(s, x)")
    assert not matches(x / op.Sqrt(y), "s = Sqrt(y) out = Mul(x, s)")


def test_integer_division_is_not_associative() -> None:
    inputs = "int64[2,3] x, int64[2,3] y, int64[2,3] z"
    model = ir.from_onnx_text(
        f'<ir_version: 9, opset_import: ["": 18]> g ({inputs}) => (int64[m,n] out) {{ t = Div(x, y) out = Mul(t, z) }}'
    )
    assert isinstance(match(x * z / y, model), Miss)


def test_the_same_name_must_be_the_same_value() -> None:
    assert matches(x * op.Sigmoid(x), "s = Sigmoid(x) out = Mul(s, x)")
    assert not matches(x * op.Sigmoid(x), "s = Sigmoid(x) out = Mul(s, y)")


def test_a_variable_may_be_a_whole_product_of_the_chain() -> None:
    # x stands for a*b, which the flattened product takes apart
    found = match(x * op.Sigmoid(x), graph("t = Mul(x, y) s = Sigmoid(t) out = Mul(s, t)"))
    assert isinstance(found, Match)
    assert found["x"].name == "t"


def test_a_shared_pattern_object_is_one_value() -> None:
    d = x - y
    assert matches(d * op.Sqrt(d), "d = Sub(x, y) r = Sqrt(d) out = Mul(d, r)")
    assert not matches(d * op.Sqrt(d), "d = Sub(x, y) e = Sub(x, y) r = Sqrt(e) out = Mul(d, r)")


def test_an_intermediate_used_outside_blocks_the_match() -> None:
    model = graph("s = Sigmoid(x) out = Mul(s, x)")
    model.graph.outputs.append(model.graph[0].outputs[0])
    found = match(x * op.Sigmoid(x), model)
    assert isinstance(found, Miss)
    assert "graph output" in found.refusal.reason
    other = match(op.Relu(op.Sigmoid(x)), graph("s = Sigmoid(x) t = Relu(s) out = Add(t, s)"))
    assert isinstance(other, Miss)


def test_a_node_that_may_stay_does_not_block() -> None:
    model = graph("s = Sigmoid(x) out = Relu(s)")
    model.graph.outputs.append(model.graph[0].outputs[0])
    assert isinstance(match(op.Relu(op.Sigmoid(x).kept()), model), Match)
    assert isinstance(match(op.Relu(op.Sigmoid(x)), model), Miss)


def test_optional_terms_inputs_and_nodes() -> None:
    found = match(op.Sigmoid(x) + opt(y), graph("s = Sigmoid(x) out = Add(y, s)"))
    assert isinstance(found, Match)
    assert found["y"].name == "y"
    absent = match(op.Sigmoid(x) + opt(y), graph("out = Sigmoid(x)"))
    assert isinstance(absent, Match)
    assert absent["y"] is None
    assert matches(op.Relu(maybe("Identity", op.Sigmoid(x))), "s = Sigmoid(x) i = Identity(s) out = Relu(i)")
    assert matches(op.Relu(maybe("Identity", op.Sigmoid(x))), "s = Sigmoid(x) out = Relu(s)")
    clip = op.Clip(x, opt(const("low")), opt(const("high")))
    missing = match(clip, graph("out = Clip(x)"))
    assert isinstance(missing, Match)
    assert missing["low"] is None


def test_alternatives_say_which_one_matched() -> None:
    pattern = op.Relu((op.Sigmoid(x) | op.Tanh(x)).named("activation"))
    found = match(pattern, graph("s = Tanh(x) out = Relu(s)"))
    assert isinstance(found, Match)
    assert found.choice("activation") == 1
    assert found["activation"].name == "s"


def test_backtracking_crosses_operands() -> None:
    # The first order of the inner sum binds x and y the wrong way round for the outer product.
    pattern = op.Max(op.Relu(x), op.Relu(op.Neg(x)))
    assert matches(pattern, "n = Neg(x) a = Relu(n) b = Relu(x) out = Max(a, b)")


def test_attributes_default_to_onnx_and_unmentioned_ones_must_be_default() -> None:
    assert matches(op.Softmax(x, axis=-1), "out = Softmax(x)")
    assert matches(op.Softmax(x, axis=-1), "out = Softmax<axis = 1>(x)")
    assert not matches(op.Softmax(x, axis=-1), "out = Softmax<axis = 0>(x)")
    assert not matches(op.LeakyRelu(x), "out = LeakyRelu<alpha = 0.5>(x)")
    assert matches(op.LeakyRelu(x), "out = LeakyRelu<alpha = 0.01>(x)")
    found = match(
        op.LeakyRelu(x, alpha=attr("alpha", lambda a, facts: a < 1)), graph("out = LeakyRelu<alpha = 0.25>(x)")
    )
    assert isinstance(found, Match)
    assert found["alpha"] == 0.25


def test_axes_match_as_attribute_and_as_input() -> None:
    mean = op.ReduceMean(x, axes=(-1,), keepdims=1)
    assert matches(mean, "out = ReduceMean<keepdims = 1>(x, axes)", initializers="<int64[1] axes = {1}>")
    old = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["": 13]> g (float[2,3] x) => (float[2,1] out) { out = ReduceMean<axes = [-1]>(x) }'
    )
    assert isinstance(match(mean, old), Match)


def test_variadic_inputs_are_captured_together() -> None:
    found = match(op.Concat(x, rest("others"), axis=attr("axis")), graph("out = Concat<axis = 0>(x, y, z)"))
    assert isinstance(found, Match)
    assert [value.name for value in found["others"]] == ["y", "z"]


def test_one_output_of_several() -> None:
    split = op.Split(x, axis=attr("axis"), num_outputs=attr("n"), outputs=2)
    assert matches(op.Relu(split[1]), "a, b = Split<axis = 1, num_outputs = 2>(x) out = Relu(b)")
    assert not matches(op.Relu(split[0]), "a, b = Split<axis = 1, num_outputs = 2>(x) out = Relu(b)")


def test_several_outputs_are_those_of_one_node() -> None:
    split = op.Split(x, axis=attr("axis"), num_outputs=attr("n"), outputs=2)
    difference = op.Sub(split[0], op.Relu(split[1]))
    first, second = "a, b = Split<axis = 1, num_outputs = 2>(x)", "c, d = Split<axis = 1, num_outputs = 2>(x)"
    assert matches(difference, f"{first} r = Relu(b) out = Sub(a, r)")
    assert not matches(difference, f"{first} r = Relu(a) out = Sub(b, r)")
    assert not matches(difference, f"{first} r = Relu(a) out = Sub(a, r)")
    assert not matches(difference, f"{first} {second} r = Relu(d) out = Sub(a, r)")


def test_what_is_left_over_at_the_root_are_extra_operands() -> None:
    swish = x * op.Sigmoid(x)
    body = "s = Sigmoid(x) t = Mul(s, y) out = Mul(x, t)"
    assert not matches(swish, body)
    found = match(swish, graph(body), extra=True)
    assert isinstance(found, Match)
    assert [value.name for _, value in found.extra_operands] == ["y"]


def test_patterns_print_as_formulas() -> None:
    assert str(x * 0.5 * (1 + op.Erf(x / 2))) == "0.5 * (Erf(0.5 * x) + 1) * x"


def test_a_pattern_without_operator_at_its_root_is_refused() -> None:
    with pytest.raises(PatternError, match="matches any value"):
        Matcher(x)
    with pytest.raises(PatternError, match="neither a pattern nor a number"):
        x + "one"  # type: ignore[operator]


def test_a_miss_names_the_node_that_stopped_it() -> None:
    found = match(op.Relu(op.Sigmoid(op.Tanh(x))), graph("e = Erf(x) s = Sigmoid(e) out = Relu(s)"))
    assert isinstance(found, Miss)
    assert found.matched == 2
    assert "Erf" in found.refusal.reason
    assert "Tanh" in found.refusal.reason


@pytest.mark.parametrize("near", ["1.000001", "0.9999999", "-1"])
def test_a_number_that_the_type_holds_exactly_must_be_that_number(near: str) -> None:
    assert not matches(op.Mul(x, 1.0), "out = Mul(x, near)", initializers=f"<float near = {{{near}}}>")
    assert not matches(
        op.Relu(x) * op.Neg(y),
        "r = Relu(x) t = Mul(r, near) n = Neg(y) out = Mul(t, n)",
        initializers=f"<float near = {{{near}}}>",
    )


def test_a_number_that_no_type_holds_may_be_written_with_fewer_decimals() -> None:
    assert matches(op.Erf(x / 2**0.5), "t = Div(x, root) out = Erf(t)", initializers="<float root = {1.414214}>")
    assert not matches(op.Erf(x / 2**0.5), "t = Div(x, root) out = Erf(t)", initializers="<float root = {1.4142}>")


def test_a_constant_that_may_add_axes_is_no_plain_number() -> None:
    assert matches(op.Pow(x, 2.0), "out = Pow(x, two)", initializers="<float[1,1] two = {2.0}>")
    assert not matches(op.Pow(x, 2.0), "out = Pow(x, two)", initializers="<float[1,1,1] two = {2.0}>")
    assert not matches(op.Pow(x, 2.0), "out = Pow(x, two)", inputs="float x", initializers="<float[1] two = {2.0}>")


def test_axes_of_a_slice_keep_the_order_of_its_starts() -> None:
    pattern = op.Slice(x, starts=attr("starts"), ends=attr("ends"), axes=attr("axes"))
    found = match(
        pattern,
        graph(
            "out = Slice(x, starts, ends, axes)",
            initializers="<int64[2] starts = {0, 1}, int64[2] ends = {1, 2}, int64[2] axes = {1, 0}>",
        ),
    )
    assert isinstance(found, Match)
    assert (found["starts"], found["axes"]) == ((0, 1), (1, 0))


def test_a_named_alternative_must_be_the_same_value_each_time() -> None:
    either = op.Relu(x) | op.Neg(x)
    twice = op.MatMul(either.named("part"), either.named("part"))
    assert matches(twice, "r = Relu(x) out = MatMul(r, r)")
    assert not matches(twice, "r = Relu(x) n = Neg(x) out = MatMul(r, n)")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (op.Gelu(x + y) | ms.Gelu(x + y), "Gelu(x + y) | com.microsoft.Gelu(x + y)"),
        ((x + y) * (x - y), "(x + y) * (x - y)"),
        (x + y, "x + y"),
        (op.Relu(op.Abs(x) | op.Exp(x)), "Relu(Abs(x) | Exp(x))"),
    ],
)
def test_a_pattern_reads_like_a_formula(pattern: Pattern, text: str) -> None:
    assert bare(pattern) == text
