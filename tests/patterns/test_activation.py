"""Activations: which spellings are found, which are not, and what happens at infinity, NaN and where exp overflows."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from rewriting import both, ops, parse, rewritten, same

import ortfuse

SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0]
    + [sign * size for size in (1e-40, 1e-30, 1e-8, 0.5, 1, 2.999, 3, 6, 17, 19, 20, 21, 50) for sign in (1, -1)]
    + [sign * size for size in (88, 89, 100, 104, 1e3, 1e10, 1e20, 1e30) for sign in (1, -1)],
    np.float32,
)

NUMBERS = {
    "zero": "0.0", "one": "1.0", "half": "0.5", "two": "2.0", "three": "3.0", "six": "6.0", "minus": "-1.0", "low": "-0.25",
    "sixth": "0.16666667", "quarter": "0.25", "twenty": "20.0", "quick": "1.702", "root": "0.70710678",
    "first": "0.79788456", "third": "0.044715", "both": "0.035677408", "twice": "1.5957691", "lowest": "-3.4028235e38",
}  # fmt: skip


def model(body: str, dtype: str = "float", opset: int = 20) -> ir.Model:
    constants = ", ".join(
        f"{dtype} {name} = {{{number}}}" for name, number in NUMBERS.items() if name in body.split("=", 1)[1]
    )
    return parse(
        f'<ir_version: 9, opset_import: ["": {opset}]> g ({dtype}[n] x) => ({dtype}[n] y) <{constants}> {{ {body} }}'
    )


FOUND = {
    # hard sigmoid and hard swish
    "a = Add(x, three) b = Clip(a, zero, six) y = Div(b, six)": "HardSigmoid",
    "a = Add(x, three) b = Clip(a, zero, six) c = Mul(x, b) y = Div(c, six)": "HardSigmoid Mul",
    "a = Add(x, three) b = Clip(a, zero, six) c = Mul(b, sixth) y = Mul(x, c)": "HardSigmoid Mul",
    "a = Add(three, x) b = Relu(a) c = Min(b, six) d = Mul(x, c) y = Div(d, six)": "HardSigmoid Mul",
    "a = Add(x, three) b = Max(a, zero) c = Min(six, b) d = Div(x, six) y = Mul(d, c)": "HardSigmoid Mul",
    "a = Div(x, six) b = Add(a, half) c = Clip(b, zero, one) y = Mul(x, c)": "HardSigmoid Mul",
    "a = Mul(x, low) b = Min(a, one) y = Max(b, zero)": "HardSigmoid",
    # softplus, softsign
    "a = Softplus(x) b = Greater(x, twenty) y = Where(b, x, a)": "Softplus",
    "h = Mul(x, half) a = Softplus(h) b = Greater(h, twenty) c = Div(a, half) y = Where(b, x, c)": "Mul Softplus Mul",
    "a = Abs(x) b = Add(a, one) y = Div(x, b)": "Softsign",
    # swish
    "a = Neg(x) b = Exp(a) c = Add(one, b) y = Div(x, c)": "QuickGelu",
    "m = Mul(x, quick) a = Neg(m) b = Exp(a) c = Add(b, one) d = Reciprocal(c) y = Mul(d, x)": "QuickGelu",
    "t = Tanh(x) a = Neg(x) b = Exp(a) c = Add(one, b) d = Div(x, c) y = Mul(d, t)": "Tanh QuickGelu Mul",
    # GELU
    "a = Mul(x, root) b = Erf(a) c = Add(one, b) d = Mul(half, x) y = Mul(c, d)": "Gelu",
    "a = Mul(x, x) b = Mul(a, third) c = Add(b, one) d = Mul(x, first) e = Mul(d, c) f = Tanh(e) g = Add(f, one)"
    " h = Mul(x, half) y = Mul(h, g)": "Gelu",
    "a = Mul(x, both) b = Mul(a, x) c = Mul(b, x) d = Mul(x, first) e = Add(d, c) f = Tanh(e) g = Add(f, one)"
    " h = Mul(x, half) y = Mul(g, h)": "Gelu",
    "a = Pow(x, three) b = Mul(a, third) c = Add(b, x) d = Mul(c, twice) e = Sigmoid(d) y = Mul(e, x)": "Gelu",
    # leaky ReLU and PReLU
    "a = Mul(x, quarter) b = Greater(x, zero) y = Where(b, x, a)": "LeakyRelu",
    "a = Mul(x, quarter) b = GreaterOrEqual(zero, x) y = Where(b, a, x)": "LeakyRelu",
    "a = Mul(quarter, x) b = Less(x, zero) c = Not(b) y = Where(c, x, a)": "LeakyRelu",
    "a = Mul(x, low) b = Less(x, zero) y = Where(b, a, x)": "LeakyRelu",
    "a = Mul(x, quarter) y = Max(a, x)": "LeakyRelu",
    "a = Max(x, zero) b = Min(x, zero) c = Mul(b, quarter) y = Add(a, c)": "LeakyRelu",
    "a = Relu(x) b = Neg(x) c = Relu(b) d = Mul(c, quarter) y = Sub(a, d)": "LeakyRelu",
    "a = Relu(x) b = Neg(x) c = Relu(b) d = Mul(c, low) y = Add(d, a)": "LeakyRelu",
    # ELU, CELU, SELU
    "a = Exp(x) b = Sub(a, one) c = Mul(b, half) d = Greater(x, zero) y = Where(d, x, c)": "Elu",
    "a = Min(x, zero) e = Exp(a) b = Sub(e, one) d = Greater(x, zero) y = Where(d, x, b)": "Elu",
    "g = Greater(x, zero) a = Where(g, zero, x) e = Exp(a) b = Sub(e, one) y = Where(g, x, b)": "Elu",
    "a = Exp(x) b = Sub(a, one) c = Mul(half, b) d = Min(zero, c) e = Relu(x) y = Add(d, e)": "Elu",
    "m = Min(x, zero) a = Exp(m) b = Sub(a, one) c = Mul(half, b) e = Max(x, zero) y = Add(c, e)": "Elu",
    "h = Div(x, half) a = Exp(h) b = Sub(a, one) c = Mul(b, half) d = Less(x, zero) y = Where(d, c, x)": "Celu",
    "h = Div(x, half) a = Elu(h) y = Mul(a, half)": "Celu",
    "a = Exp(x) b = Sub(a, one) c = Mul(half, b) d = Less(x, zero) e = Where(d, c, x) y = Mul(e, two)": "Selu",
    "t = Mul(x, two) a = Exp(x) b = Sub(a, one) c = Mul(half, b) d = Greater(x, zero) y = Where(d, t, c)": "Selu",
    "a = Greater(x, half) y = Where(a, x, zero)": "ThresholdedRelu",
    # clips
    "a = Max(x, zero) y = Min(a, six)": "Clip",
    "a = Min(x, six) y = Max(zero, a)": "Clip",
    "a = Relu(x) y = Clip(a, , six)": "Clip",
    "a = Relu(x) y = Relu(a)": "Relu",
    "a = Clip(x, low, three) y = Clip(a, zero, six)": "Clip",
    "a = Clip(x, low) y = Clip(a, , six)": "Clip",
    "a = Clip(x, low) y = Relu(a)": "Clip",
    "a = Clip(x, zero, one) y = Clip(a, three, six)": "Clip",
    "a = Clip(x, lowest, six) y = Min(a, lowest)": "Clip",
    "y = Max(zero, x)": "Relu",
}


FOUND_BY_NAME = {
    "a = Exp(x) b = Add(a, one) c = Log(b) d = Tanh(c) y = Mul(x, d)": "Softplus Tanh Mul",
    "a = Relu(x) b = Abs(x) c = Neg(b) d = Exp(c) e = Add(one, d) f = Log(e) y = Add(a, f)": "Softplus",
}
"""Spellings of Softplus, which is fused where it is asked for by name: its kernel is slower."""


@pytest.mark.parametrize(
    ("body", "by"),
    [*((body, "fuse.activation") for body in FOUND), *((body, "contrib.softplus") for body in FOUND_BY_NAME)],
)
def test_spelling_becomes_the_operator_and_stays_right_at_special_values(body: str, by: str) -> None:
    original = model(body)
    result = rewritten(original, by)
    assert ops(result) == {**FOUND, **FOUND_BY_NAME}[body]
    same(original, result, {"x": SPECIAL})
    for value in SPECIAL:  # the kernels' code for what is left over by vectors
        same(original, result, {"x": value.reshape(1)})


LEFT_ALONE = {
    "another height": "a = Add(x, three) b = Clip(a, zero, six) y = Div(b, three)",
    "another lower bound": "a = Add(x, three) b = Clip(a, low, six) y = Div(b, six)",
    "no upper bound": "a = Add(x, three) b = Clip(a, zero) y = Div(b, six)",
    "exp overflows where Softplus does not": "a = Exp(x) b = Add(a, one) y = Log(b)",
    "another number under the logarithm": "a = Exp(x) b = Add(a, two) c = Log(b) y = Tanh(c)",
    "a threshold where softplus is not yet linear": "a = Softplus(x) b = Greater(x, three) y = Where(b, x, a)",
    "a beta that could overflow": (
        "h = Mul(x, two) a = Softplus(h) b = Greater(h, twenty) c = Div(a, two) y = Where(b, x, c)"
    ),
    "x minus its size": "a = Abs(x) b = Sub(a, one) y = Div(x, b)",
    "another sign in the exponent": "a = Exp(x) b = Add(a, one) y = Div(x, b)",
    "sigmoid alone, whose kernel is 0 below -18": "a = Neg(x) b = Exp(a) c = Add(a, one) y = Div(one, c)",
    "a slope above 1 in a maximum": "a = Mul(x, two) y = Max(a, x)",
    "a negative slope in a maximum": "a = Mul(x, low) y = Max(a, x)",
    "another threshold": "a = Mul(x, quarter) b = Greater(x, one) y = Where(b, x, a)",
    "the branches exchanged": "a = Mul(x, quarter) b = Greater(x, zero) y = Where(b, a, x)",
    "NaN that stays NaN": "a = LessOrEqual(x, half) y = Where(a, zero, x)",
    "an exponential without - 1": "a = Exp(x) c = Mul(a, half) d = Greater(x, zero) y = Where(d, x, c)",
    "another steepness": (
        "h = Div(x, six) a = Exp(h) b = Sub(a, one) c = Mul(b, half) d = Less(x, zero) y = Where(d, c, x)"
    ),
    "a negative weight": "a = Exp(x) b = Sub(a, one) c = Mul(low, b) d = Min(zero, c) e = Relu(x) y = Add(d, e)",
    "bounds out of order": "a = Clip(x, six, three) y = Clip(a, zero, six)",
    "a plain Clip to 0 ... 1": "a = Clip(x, zero, one) y = Mul(a, x)",
    "one bound": "y = Max(x, half)",
}


@pytest.mark.parametrize("reason", LEFT_ALONE)
def test_near_miss_is_left_alone(reason: str) -> None:
    original = model(LEFT_ALONE[reason])
    for by in ("fuse.activation", "contrib.softplus"):
        assert ops(rewritten(original, by)) == ops(original)


def test_log_exp_becomes_softplus_only_when_other_results_are_allowed() -> None:
    original = model("a = Exp(x) b = Add(a, one) y = Log(b)")
    result = rewritten(original, "fuse.activation", approximate=True)
    assert ops(result) == "Softplus"
    assert [float(array[0]) for array in both(original, result, {"x": np.array([100], np.float32)})] == [np.inf, 100]


@pytest.mark.parametrize(
    "body",
    ["a = Exp(x) b = Add(a, one) c = Log(b) d = Tanh(c) e = Neg(c) f = Mul(x, d) y = Add(e, f)", "a = Relu(x) b = Relu(a) y = Add(a, b)"],
)  # fmt: skip
def test_an_intermediate_that_is_used_again_stays(body: str) -> None:
    original = model(body)
    assert ops(rewritten(original, "fuse.activation")) == ops(original)


def test_a_constant_that_adds_an_axis_is_no_plain_bound() -> None:
    text = '<ir_version: 9, opset_import: ["": 18]> g (float x) => (float[1] y) <float[1] zero = {0.0}> { y = Max(x, zero) }'
    assert ops(rewritten(parse(text), "fuse.activation")) == "Max"


@pytest.mark.parametrize(
    "body",
    [
        "a = Add(x, three) b = Clip(a, zero, six) y = Div(b, six)",
        "a = Mul(x, quarter) b = Greater(x, zero) y = Where(b, x, a)",
        "a = Exp(x) b = Sub(a, one) c = Mul(b, half) d = Greater(x, zero) y = Where(d, x, c)",
        "a = Abs(x) b = Add(a, one) y = Div(x, b)",
    ],
)
def test_a_type_without_kernel_is_left_alone(body: str) -> None:
    original = model(body, "double")
    assert ops(rewritten(original, "fuse.activation")) == ops(original)


@pytest.mark.parametrize(
    "body",
    [
        "a = Greater(x, zero) b = Mul(slope, x) y = Where(a, x, b)",
        "a = Relu(x) b = Neg(x) c = Relu(b) d = Mul(slope, c) y = Add(a, d)",
        "a = Relu(x) b = Neg(x) c = Relu(b) d = Mul(slope, c) y = Sub(a, d)",
        "a = Relu(x) b = Min(x, zero) c = Mul(slope, b) y = Add(a, c)",
    ],
)
def test_a_slope_for_each_channel_becomes_prelu(body: str) -> None:
    original = parse(f"""<ir_version: 9, opset_import: ["": 18]> g (float[n,3,2] x) => (float[n,3,2] y)
        <float[3,1] slope = {{0.5, -0.25, 2.0}}, float zero = {{0.0}}> {{ {body} }}""")
    result = rewritten(original, "fuse.activation")
    assert ops(result) == "PRelu"
    same(original, result, {"x": SPECIAL[:18].reshape(3, 3, 2)})


def test_an_infinite_slope_is_left_alone() -> None:
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[n,2] x) => (float[n,2] y)
        <float[2] slope = {0.5, 0.25}, float zero = {0.0}> { a = Greater(x, zero) b = Mul(slope, x) y = Where(a, x, b) }"""
    original = parse(text)
    original.graph.initializers["slope"].const_value = ir.tensor(np.array([0.5, np.inf], np.float32), name="slope")
    assert ops(rewritten(original, "fuse.activation")) == "Greater Mul Where"


def test_clips_with_bounds_as_attributes_are_left_to_their_opset() -> None:
    text = """<ir_version: 6, opset_import: ["": 9]> g (float[n] x) => (float[n] y) {
        a = Relu(x) y = Clip<min = 0.0, max = 6.0>(a) }"""
    original = parse(text)
    assert ops(rewritten(original, "fuse.activation")) in ("Clip", "Relu Clip")
    same(original, rewritten(original, "fuse.activation"), {"x": SPECIAL})


def test_a_clip_without_lower_bound_is_no_minimum() -> None:
    """The runtime makes the lowest number of -inf."""
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[n] x) => (float[n] y) <float zero = {0}, float slope = {0.01}>
        { r = Relu(x) c = Clip(x, , zero) s = Mul(c, slope) y = Add(r, s) }"""
    assert "LeakyRelu" not in [node.op_type for node in ortfuse.optimize(ir.from_onnx_text(text)).model.graph]


@pytest.mark.parametrize(("attribute", "alpha"), [("", 1.0), ("<alpha = 1.5>", 1.5)])
def test_swish_of_the_standard_is_one_operator_where_the_runtime_has_none(attribute: str, alpha: float) -> None:
    original = onnx.parser.parse_model(
        f'<ir_version: 11, opset_import: ["": 24]> g (float[n] x) => (float[n] y) {{ y = Swish{attribute}(x) }}'
    )
    (node,) = ortfuse.optimize(original, verify="whole").model.graph.node
    assert (node.op_type, node.attribute[0].f) == ("QuickGelu", alpha)
    (node,) = ortfuse.optimize(original, force={"swish": "Swish"}).model.graph.node
    assert node.op_type == "Swish"


def test_swish_is_the_operator_of_the_standard_where_it_is_forced() -> None:
    original = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[n] x) => (float[n] y) { s = Sigmoid(x) y = Mul(x, s) }'
    )
    for pins, made in (({}, "QuickGelu"), ({"swish": "Swish"}, "Swish")):
        result = ortfuse.optimize(original, force=pins, verify="whole")
        assert [node.op_type for node in result.model.graph.node] == [made]
