"""That integers are compared as what they are: one step of a quantised number is rounding, anything else is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.runtime.int8_matmul_saturation import saturates
from ortfuse.runtime.integer_results_before_rounding import before_rounding
from ortfuse.runtime.near_ties import explained as ties_explained
from ortfuse.runtime.session import Session
from ortfuse.runtime.submodel import computing
from ortfuse.verification import Verdict, experiments, verify
from ortfuse.verification.compare_with_imposed_decisions import compare_decided
from ortfuse.verification.sensitivity_verdict import with_unsigned_pairs

X = np.random.default_rng(1).normal(size=(1, 3, 12, 12)).astype(np.float32)

CONV = """q = QuantizeLinear(x, sx, zx) d = DequantizeLinear(q, sx, zx) v = DequantizeLinear(w, sw, zw)
    c = Conv(d, v) r = Relu(c) p = QuantizeLinear(r, sy, zy) y = DequantizeLinear(p, sy, zy)"""


def quantised(
    body: str = CONV, output: str = "float[u,n,k,l] y", *, step: float = 0.06, weight: int = 0, **more: Any
) -> ir.Model:
    """A model of quantised numbers, half of which lie in the middle of two steps if `step` is 0.06.

    `weight` is added to one weight; there may be more constants.
    """
    made = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 19, "com.microsoft": 1]>
        g (float[1,3,12,12] x) => ({output}) {{ {body} }}"""
    )
    weights = np.random.default_rng(0).integers(-8, 8, (8, 3, 3, 3)).astype(np.int8)
    weights[3, 1, 1, 1] += weight
    constants = {
        "sx": np.float32(0.1), "zx": np.uint8(128), "w": weights, "sw": np.float32(0.3), "zw": np.int8(0),
        "sy": np.float32(step), "zy": np.uint8(0), **more,
    }  # fmt: skip
    made.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    return ir.from_proto(made)


def compared(one: ir.Model, other: ir.Model) -> Verdict:
    return verify(one, other, inputs=[{"x": X}])


def explained(one: ir.Model) -> str:
    """Why the runtime's optimisations may decide otherwise in a model."""
    decided = compare_decided(one, one, experiments(one, [{"x": X}])[0][0], optimise=True)
    assert decided is not None
    assert not decided.wrong
    return "; ".join(decided.reasons)


@pytest.mark.parametrize("output", ["float[1,n,k,l] y", "uint8[1,n,k,l] p"])
def test_a_quantised_convolution_is_equal_to_itself(output: str) -> None:
    """The runtime computes it in integers, which are cut off elsewhere than float32 numbers in the middle of two steps."""
    model = quantised(output=output)
    verdict = compared(model, model)
    assert verdict.ok, verdict.summary()


def test_what_the_runtimes_own_integers_are_off_by_one_step_is_equal() -> None:
    """The runtime rounds the bias, which is float32, to steps of the products: that moves sums that are no ties."""
    bias = np.random.default_rng(3).normal(size=8).astype(np.float32)
    body = CONV.replace("Conv(d, v)", "Conv(d, v, bias)")
    one, other = quantised(body, bias=bias), quantised(body, bias=bias * np.float32(1.02))
    assert "as in the original with the runtime's optimisations" in explained(one)
    assert compared(one, one).state == "equal"
    assert compared(one, other).state == "not equal"


def test_weights_that_the_runtime_quantises_by_itself_are_the_originals_own() -> None:
    rng = np.random.default_rng(3)
    weights, bias = rng.normal(size=(8, 3, 3, 3)).astype(np.float32), rng.normal(size=8).astype(np.float32)
    body = CONV.replace("Conv(d, v)", "Conv(d, fw, bias)")
    one, other = (quantised(body, bias=bias, fw=weights * np.float32(factor)) for factor in (1, 1.02))
    assert "because the runtime quantises weights" in explained(one)
    assert compared(one, one).state == "equal"
    assert compared(one, other).state == "not equal"


def test_a_result_with_integers_is_written(tmp_path: Path) -> None:
    result = ortfuse.optimize(quantised(), verify="whole", inputs=[{"x": X}], output=tmp_path / "out.onnx")
    assert result.written is not None
    assert result.verdict is not None
    assert result.verdict.state == "equal"
    assert "by one step" in explained(quantised())


TWO = (
    CONV.replace("y =", "e =")
    + """ f = Add(e, e) g = QuantizeLinear(f, sx, zx) h = DequantizeLinear(g, sx, zx) y = Softmax(h)"""
)

MUTANTS = {
    "another activation": ("r = Relu(c)", "r = Abs(c)"),
    "a smooth activation": ("r = Relu(c)", "r = Softplus(c)"),
    "another padding": ("Conv(d, v)", "Conv<pads = [1, 1, 0, 0], dilations = [1, 1], strides = [1, 1]>(d, v)"),
    "another zero point": ("d = DequantizeLinear(q, sx, zx)", "d = DequantizeLinear(q, sx, zy)"),
    "another scale": ("e = DequantizeLinear(p, sy, zy)", "e = DequantizeLinear(p, sx, zy)"),
    "a pair too few": ("g = QuantizeLinear(f, sx, zx) h = DequantizeLinear(g, sx, zx)", "h = Identity(f)"),
    "a sum of another": ("f = Add(e, e)", "f = Add(e, r)"),
    "rounded twice": ("c = Conv(d, v)", "n = Conv(d, v) o = QuantizeLinear(n, sx, zx) c = DequantizeLinear(o, sx, zx)"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rewrite_of_a_quantised_model_is_found(name: str) -> None:
    """`rounded twice` moves numbers by less than a step: each is off by half of one at most."""
    one, other = (quantised(body, step=0.2) for body in (TWO, TWO.replace(*MUTANTS[name])))
    assert TWO.replace(*MUTANTS[name]) != TWO
    assert compared(one, one).ok
    assert compared(one, other).state == "not equal"


@pytest.mark.parametrize("wrong", [{"weight": 1}, {"step": 0.0606}, {"step": 0.12}])
def test_another_weight_or_step_is_not(wrong: dict[str, float]) -> None:
    assert compared(quantised(), quantised(**wrong)).state == "not equal"  # type: ignore[arg-type]


def linear(factors: str, body: str, x: np.ndarray, outputs: str) -> ir.Model:
    """A model that quantises `x` times factors for each column."""
    return ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft": 1]> g (float[n,4] x) => ({outputs})
        <float[4] w = {{{factors}}}, float[4] scales = {{0.1, 0.2, 0.4, 0.8}}, float[2] blocks = {{0.1, 0.2}}, int8[4] zeros = {{0, 0, 0, 0}},
        float[1,2] both = {{0.1, 0.2}}, float scale = {{0.1}}, uint8 zero = {{128}}> {{ s = Mul(x, w) {body} }}"""
    )


FORMS = {
    "one scale": ("y = QuantizeLinear(s, scale, zero)", "uint8[n,4] y"),
    "a scale for each column": ("y = QuantizeLinear <axis = -1> (s, scales, zeros)", "int8[n,4] y"),
    "a scale for each block": ("y = QuantizeLinear <axis = 1, block_size = 2, output_dtype = 3> (s, both)", "int8[1,4] y"),
    "a scale of its own": ("y, k, z = DynamicQuantizeLinear(s)", "uint8[n,4] y"),
    "the runtime's own operator": ("y = com.microsoft.QuantizeLinear(s, scale, zero)", "uint8[n,4] y"),
    "an integer sum of it": (
        "q = QuantizeLinear(s, scale, zero) y = com.microsoft.QLinearAdd(q, scale, zero, q, scale, zero, scale, zero)",
        "uint8[n,4] y",
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_numbers_in_the_middle_of_two_steps_may_come_out_either_way(form: str) -> None:
    body, outputs = FORMS[form]
    x = np.array([[0.25, 0.5, 1.0, 2.0], [25.5, 1, 1, 1]], np.float32)
    x = x[:1] if "block" in form else x
    one, tied, other = (
        linear(factors, body, x, outputs) for factors in ("1, 1, 1, 1", "1.000001, 1, 1, 1", "1.2, 1, 1, 1")
    )
    verdict = verify(one, tied, inputs=[{"x": x}])
    assert verdict.ok, verdict.summary()
    assert verify(one, other, inputs=[{"x": x}]).state == "not equal"


def test_one_step_elsewhere_is_wrong_however_few_there_are() -> None:
    x = np.linspace(-3, 3, 4000, dtype=np.float32).reshape(1000, 4)
    x[7, 0] = 0.249
    body, outputs = FORMS["one scale"]
    one, other = (linear(factors, body, x, outputs) for factors in ("1, 1, 1, 1", "1.001, 1, 1, 1"))
    verdict = verify(one, other, inputs=[{"x": x}])
    assert verdict.state == "not equal"
    assert "decides otherwise" in verdict.summary()


BEFORE = "q = QuantizeLinear(s, scale, zero) d = DequantizeLinear(q, scale, zero) y = Transpose<perm = [1, 0]>(d)"
BEHIND = "t = Transpose<perm = [1, 0]>(s) p = QuantizeLinear(t, scale, zero) y = DequantizeLinear(p, scale, zero)"


@pytest.mark.parametrize("rows", [2, 4])
def test_decisions_are_found_again_in_another_order_of_axes(rows: int) -> None:
    """A Transpose was moved across a QuantizeLinear, whose result is another value now: by name they do not correspond."""
    x = np.array([[0.25, 0.5, 1.0, 2.0], [25.5, 1, 1, 1], [3, 2, 1, 4], [0.4, 7, 6, 5]], np.float32)[:rows]
    one, tied, other = (
        linear(factors, body, x, "float[k,m] y")
        for factors, body in (("1, 1, 1, 1", BEFORE), ("1.000001, 1, 1, 1", BEHIND), ("1.2, 1, 1, 1", BEHIND))
    )
    verdict = verify(one, tied, inputs=[{"x": x}])
    assert verdict.ok, verdict.summary()
    assert "by one step" in verdict.excused["y"].reason
    assert verify(one, other, inputs=[{"x": x}]).state == "not equal"
    unmoved = linear("1, 1, 1, 1", BEHIND.replace("[1, 0]", "[0, 1]"), x, "float[k,m] y")
    assert verify(one, unmoved, inputs=[{"x": x}]).state == "not equal"


def test_where_the_runtime_computes_products_in_bytes_both_are_compared_so() -> None:
    """What the runtime then decides from is not what it decides from without its optimisations: no step explains that."""
    rng = np.random.default_rng(5)
    weights = rng.integers(-127, 127, (16, 16)).astype(np.int8)

    def model(first: int, scale: float = 0.011) -> ir.Model:
        made = onnx.parser.parse_model(
            """<ir_version: 10, opset_import: ["" : 21]> g (float[b,n,16] x) => (float[b,n,16] y) {
            v = DequantizeLinear <axis = 1> (w, t, o) m = MatMul(x, v) p = Add(m, b) q = QuantizeLinear(p, s, z) y = DequantizeLinear(q, s, z) }"""
        )
        other = weights.copy()
        other[0, 0] = first
        scales = np.full(16, scale, np.float32)
        arrays = {
            "w": other,
            "t": scales,
            "b": -scales,
            "o": np.zeros(16, np.int8),
            "s": np.float32(2e-4),
            "z": np.uint8(128),
        }
        made.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
        return ir.from_proto(made)

    inputs = [{"x": (rng.normal(size=(2, 6, 16)) * 0.03).astype(np.float32)}]
    verdict = verify(model(3), model(3), inputs=inputs)
    assert verdict.state == "equal", verdict.summary()
    assert "which change the original alike" in verdict.alike
    for wrong in (model(-99), model(3, 0.0112)):
        assert verify(model(3), wrong, inputs=inputs).state == "not equal"


INTEGERS = {
    "QLinearConv": "y = QLinearConv<pads = [1, 1, 1, 1]>(q, sx, zx, w, sw, zw, sy, zy, bias)",
    "QLinearMatMul": "t = Transpose<perm = [0, 1, 3, 2]>(q) y = QLinearMatMul(q, sx, zx, t, sx, zx, sy, zy)",
    "QLinearAdd": "r = Relu(x) t = QuantizeLinear(r, sy, zy) y = com.microsoft.QLinearAdd(q, sx, zx, t, sy, zy, sw, zy)",
    "QLinearMul": "r = Relu(x) t = QuantizeLinear(r, sy, zy) y = com.microsoft.QLinearMul(q, sx, zx, t, sy, zy, sw, zy)",
}


@pytest.mark.skipif(saturates(), reason="what these operators compute is not known where products saturate")
@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("step", [0.06, 0.0613])
def test_what_integer_operators_have_off_by_one_step_is_a_tie(kind: str, step: float) -> None:
    """However few there are: one number of a channel may be all that a wrong scale moves."""
    bias = np.arange(8, dtype=np.int32) * 7
    one = quantised(f"q = QuantizeLinear(x, sx, zx) {INTEGERS[kind]}", "uint8[u,n,k,l] y", step=step, bias=bias)
    node = next(node for node in one.graph if node.op_type == kind)
    made = [(value.name or "", value) for value in node.inputs if value is not None and value.producer() is not None]
    known = Session(computing(one, made), optimise=False).run({"x": X})
    operands = [known[v.name] if v.name in known else v.const_value.numpy() for v in node.inputs]  # type: ignore[union-attr]
    expected = Session(one, optimise=False).run({"x": X})["y"].astype(np.int64)
    found = before_rounding(node, operands)
    assert found is not None
    exact = found[0].astype(np.float64) / found[1] + int(operands[7])
    away = np.abs(exact - np.floor(exact) - 0.5)
    assert (np.clip(np.round(exact), 0, 255) == expected)[away > 1e-2].all()
    inside = (expected > 0) & (expected < 255)
    for places, fine in ((inside & (away < 1e-6), True), (inside & (away > 0.1), False)):
        for place in np.argwhere(places)[:1]:
            other = expected.copy()
            other[tuple(place)] += 1 if exact[tuple(place)] > expected[tuple(place)] else -1
            why = ties_explained(node, operands, expected.astype(np.uint8), other.astype(np.uint8))
            assert (why is not None) is fine


def signed_sum(step: float = 0.2) -> ir.Model:
    """A sum of signed quantised numbers, half of which lie in the middle of two steps; other nodes use the operands, too."""
    made = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 19]> g (float[u,64] x, float[u,64] z) => (float[u,64] y, float[u,64] t)
        { p = QuantizeLinear(x, s, o) a = DequantizeLinear(p, s, o) q = QuantizeLinear(z, s, o) b = DequantizeLinear(q, s, o)
          c = Add(a, b) r = QuantizeLinear(c, w, o) y = DequantizeLinear(r, w, o) m = Sin(a) n = Cos(b) t = Add(m, n) }"""
    )
    constants = {"s": np.float32(0.1), "o": np.int8(0), "w": np.float32(step)}
    made.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    return ir.from_proto(made)


def test_ties_of_signed_pairs_are_found_where_these_became_unsigned() -> None:
    """The runtime adds unsigned integers where it added float32 numbers before, and both round ties as they come."""
    inputs = dict(zip("xz", np.random.default_rng(5).normal(size=(2, 40, 64)).astype(np.float32), strict=True))
    model = signed_sum()
    experiment = experiments(model, [inputs])[0][0]
    result, wrong = (ortfuse.optimize(one).model for one in (model.clone(), signed_sum(0.202)))
    exact, apart = (Session(result, optimise=level).run(inputs)["y"] for level in (False, True))
    if np.array_equal(exact, apart):
        pytest.skip("this processor has no kernel that decides otherwise")
    unsigned = with_unsigned_pairs(model)
    found, other = (compare_decided(unsigned, one, experiment, optimise=True) for one in (result, wrong))
    assert found is not None and other is not None
    assert found.reasons and all(difference.ok for difference in found.differences.values())
    assert not other.differences["y"].ok
    ours, new, theirs = ({v.name for node in one.graph for v in node.outputs} for one in (model, unsigned, result))
    assert new - ours and not (new - ours) & theirs


def test_a_wrong_integer_operator_of_the_runtime_is_refused_on_generated_inputs() -> None:
    def model(body: str) -> ir.Model:
        return ir.from_proto(
            onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
            g (float[64,8] x) => (float[64,8] r) <float s = {{0.02}}, float u = {{0.05}}, uint8 k = {{128}}, float off = {{0.024}}> {{
                a = QuantizeLinear(x, s, k) {body} r = DequantizeLinear(c, u, k) }}""")
        )

    one = model("c = com.microsoft.QLinearSigmoid(a, s, k, u, k)")
    lowered = "d = DequantizeLinear(a, s, k) f = Sigmoid(d) {} c = QuantizeLinear(g, u, k)"
    right = verify(one, model(lowered.format("g = Identity(f)")))
    assert right.ok, right
    wrong = verify(one, model(lowered.format("g = Add(f, off)")))
    assert not wrong.ok
    assert "QLinearSigmoid 'c' decides otherwise" in str(wrong)


@pytest.mark.parametrize("offset", [0.0, 0.024])
def test_ties_in_a_branch_are_ties(offset: float) -> None:
    """Half of the products lie in the middle of two steps, from where the kernel rounds as its arithmetic has it."""
    head = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (uint8[64,8] x, uint8[64,8] y, bool[1] q, float low) => (uint8[64,8] r)
        <float u = {0.05}, uint8 n = {7}, float off = {OFF}> {
            r = If(q) <then_branch = a () => (uint8[64,8] t) { THEN }, else_branch = e () => (uint8[64,8] v) {
                c = Greater(low, off) v = If(c) <then_branch = i () => (uint8[64,8] j) { j = Identity(x) },
                    else_branch = o () => (uint8[64,8] p) { ELSE }> }> }""".replace("OFF", str(offset))
    operator = "{} = com.microsoft.QLinearMul(x, u, n, y, u, n, u, n)"
    lowered = """d = DequantizeLinear(x, u, n) f = DequantizeLinear(y, u, n) m = Mul(d, f) s = Add(m, off)
        {} = QuantizeLinear(s, u, n)"""

    def model(body: str) -> ir.Model:
        text = head.replace("THEN", body.format("t")).replace("ELSE", body.format("p"))
        return ir.from_proto(onnx.parser.parse_model(text))

    one, other = model(operator), model(lowered)
    rng = np.random.default_rng(0)
    for truth in (True, False):
        given: dict[str, Any] = {name: rng.integers(0, 60, (64, 8)).astype(np.uint8) for name in ("x", "y")}
        given |= {"q": np.array([truth]), "low": np.array(-1, np.float32)}
        ones, others = (Session(each, optimise=False).run(given)["r"] for each in (one, other))
        assert (ones != others).any()
        assert verify(one, other, inputs=[given]).ok == (not offset)
