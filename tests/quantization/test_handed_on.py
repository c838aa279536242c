"""Sites in a row hand on integers: nothing is dequantised between them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from graphs import operators
from scheme_models import distance, first_output, images, model, put

from ortfuse.analysis.facts import Facts
from ortfuse.quantization import lowered, sites
from ortfuse.quantization.calibration import Calibration, Seen, calibrate
from ortfuse.quantization.quantization_sites import quantization_rules
from ortfuse.quantization.shared_ranges import method_of, ranges_of
from ortfuse.runtime.bench.executed_operators import executed_ops
from ortfuse.runtime.single_site_model import cut


def seen(low: float, high: float) -> Seen:
    """What was seen of a value that has just these two numbers."""
    found = Seen()
    found.add(np.array([low, high], np.float32))
    return found


CHAIN = """a = Conv<pads = [1,1,1,1]>(x, v, c) b = com.microsoft.FusedConv<pads = [1,1,1,1], activation = "Relu">(a, w, c)
           y = Relu(b)"""


def test_convolutions_in_a_row_hand_on_integers() -> None:
    made = model(CHAIN, "float[b,4,6,6] x", "float[b,4,6,6] y", v=(4, 4, 3, 3), w=(4, 4, 3, 3), c=(4,))
    data = images()
    assert not sites(made), "nothing is known of ranges"
    calibration = calibrate(made, ("x", "a", "b"), data)
    found = sites(made, calibration=calibration)
    assert [(site.name, site.activations, site.operator) for site in found.values()] == [
        ("a", ("x",), "Conv"),
        ("b", ("a",), "FusedConv"),
    ]
    low = lowered(made, dict.fromkeys(found, "static_int8_conv.extremes"), calibration)
    assert operators(low) == ["QuantizeLinear", "QLinearConv", "QLinearConv", "DequantizeLinear", "Relu"]
    assert distance(made, low, data[0]) < 2e-2


MOVED = (
    "p = MaxPool<kernel_shape = [2, 2]>(a)",
    "p = Transpose<perm = [0, 1, 3, 2]>(a)",
    "f = Flatten<axis = 1>(a) p = Reshape(f, shape)",
    "p = Slice(a, zeros, ones, axes)",
)


@pytest.mark.parametrize("between", MOVED)
def test_integers_are_moved_and_picked_between_convolutions(between: str) -> None:
    body = f"a = Conv<pads = [1,1,1,1]>(x, v, c) {between} y = Conv<pads = [1,1,1,1]>(p, w, c)"
    made = model(body, "float[b,4,6,6] x", "float[b,4,h,w] y", v=(4, 4, 3, 3), w=(4, 4, 3, 3), c=(4,))
    for name, numbers in {"shape": [-1, 4, 6, 6], "zeros": [0, 1], "ones": [5, 6], "axes": [2, 3]}.items():
        put(made, name, np.array(numbers, np.int64))
    data = images()
    calibration = calibrate(made, ("x", "a", "p", "y"), data)
    low = lowered(made, dict.fromkeys(("a", "y"), "static_int8_conv.extremes"), calibration)
    executed = executed_ops(low, data[0])
    assert (executed["QuantizeLinear"], executed["DequantizeLinear"]) == (1, 1)
    assert distance(made, low, data[0]) < 2e-2


@pytest.mark.parametrize("pool", ["GlobalAveragePool(a)", "ReduceMean(a, axes)"])
def test_a_pool_before_a_product_takes_and_gives_integers(pool: str) -> None:
    body = f"a = Conv<pads = [1,1,1,1]>(x, v, c) g = {pool} f = Flatten(g) y = MatMul(f, w)"
    made = model(body, "float[b,4,6,6] x", "float[b,8] y", v=(4, 4, 3, 3), c=(4,), w=(4, 8))
    put(made, "axes", np.array([2, 3]))
    data = images()
    calibration = calibrate(made, ("x", "a", "f"), data)
    low = lowered(made, {"a": "static_int8_conv.extremes", "y": "static_int8.extremes"}, calibration)
    executed = executed_ops(low, data[0])
    assert (executed["QuantizeLinear"], executed["DequantizeLinear"]) == (1, 0)
    assert executed["QLinearGlobalAveragePool"] == 1
    assert distance(made, low, data[0]) < 5e-2


def test_a_much_wider_range_is_not_shared() -> None:
    made = model(
        "p = Slice(x, zeros, ones, axes) y = Conv(p, w)", "float[b,4,6,6] x", "float[b,4,m,n] y", w=(4, 4, 1, 1)
    )
    calibration = Calibration({"x": seen(-100.0, 100.0), "p": seen(-1.0, 1.0)})
    assert ranges_of(made.graph, calibration, {})("p", "extremes") == (-1.0, 1.0)
    calibration = Calibration({"x": seen(-1.25, 1.0), "p": seen(-1.0, 1.0)})
    assert ranges_of(made.graph, calibration, {})("p", "extremes") == (-1.25, 1.0)


RESIDUAL = """a = com.microsoft.FusedConv<pads = [1,1,1,1], activation = "Relu">(x, v, c)"""
SUMS = {
    "fused": """y = com.microsoft.FusedConv<pads = [1,1,1,1], activation = "Relu">(a, w, c, x)""",
    "spelled": "p = Conv<pads = [1,1,1,1]>(a, w, c) s = Add(x, p) y = Relu(s)",
}


@pytest.mark.parametrize("spelling", SUMS)
def test_a_residual_is_added_in_integers(spelling: str) -> None:
    body = f"{RESIDUAL} {SUMS[spelling]}"
    made = model(body, "float[b,4,6,6] x", "float[b,4,6,6] y", v=(4, 4, 3, 3), w=(4, 4, 3, 3), c=(4,))
    data = images()
    calibration = calibrate(made, ("x", "a", "y"), data)
    found = sites(made, calibration=calibration)
    assert found["y"].activations == ("a", "x")
    low = lowered(made, {"a": "static_int8_conv.extremes", "y": "static_int8_conv.extremes_sum"}, calibration)
    assert operators(low) == ["QuantizeLinear", "QLinearConv", "QLinearConv", "QLinearAdd", "DequantizeLinear"]
    assert distance(made, low, data[0]) < 3e-2  # weights have 7 bits where products of 8 would saturate


@pytest.mark.parametrize("batch", ["b", "?"])
def test_a_residual_site_can_be_measured_alone(batch: str) -> None:
    """What is added has the batch of what is convolved, whatever that is called, also where the site is cut out."""
    made = model(
        f"{RESIDUAL} {SUMS['fused']}", "float[b,4,6,6] x", "float[b,4,6,6] y", v=(4, 4, 3, 3), w=(4, 4, 3, 3), c=(4,)
    )
    made.graph.inputs[0].shape = ir.Shape([None if batch == "?" else batch, 4, 6, 6])
    calibration = calibrate(
        made, ("x", "a", "y"), [{"x": np.linspace(-1, 1, 288, dtype=np.float32).reshape(2, 4, 6, 6)}]
    )
    part = cut(made, "y", ("a", "x"), Facts(made))
    assert "QLinearAdd" in operators(lowered(part.model, {"y": "static_int8_conv.extremes_sum"}, calibration))


@pytest.mark.parametrize("between", ["", "m = MaxPool<kernel_shape = [2,2]>(a)"])
def test_sites_that_tell_ranges_in_different_ways_hand_on_integers(between: str) -> None:
    body = f"{RESIDUAL.replace('v, c', 'v')} {between} y = Conv({'m' if between else 'a'}, w)"
    made = model(body, "float[b,4,6,6] x", "float[b,4,m,n] y", v=(4, 4, 3, 3), w=(4, 4, 1, 1))
    data = images()
    calibration = calibrate(made, ("x", "a", "m", "y"), data)
    low = lowered(made, {"a": "static_int8_conv.percentile_9999", "y": "static_int8_conv.least_squares"}, calibration)
    executed = executed_ops(low, data[0])
    assert (executed["QuantizeLinear"], executed["DequantizeLinear"], executed["QLinearConv"]) == (1, 1, 2)


def test_the_way_a_scheme_tells_ranges_is_in_its_name() -> None:
    found = {scheme: method_of(scheme) for scheme in quantization_rules()}
    assert (
        found["static_int8_conv.least_squares_sum"] == found["static_int8_requantized.least_squares"] == "least_squares"
    )
    assert found["static_int8_conv.percentile_9999"] == "percentile_9999"
    assert found["dynamic_int8.channel"] == found["static_int8.smooth"] == ""
    assert all(method for scheme, method in found.items() if "root" in quantization_rules()[scheme].test.ranges)


def test_a_channel_without_weights_keeps_its_bias() -> None:
    made = model("y = Conv(x, w, c)", "float[b,4,6,6] x", "float[b,4,4,4] y", w=(4, 4, 3, 3), c=(4,))
    array = made.graph.initializers["w"].const_value.numpy().copy()
    array[1] = 0
    made.graph.initializers["w"].const_value = ir.Tensor(array)
    data = {"x": np.random.default_rng(0).standard_normal((2, 4, 6, 6)).astype(np.float32)}
    calibration = calibrate(made, ("x", "y"), [data])
    low = lowered(made, {"y": "static_int8_conv.extremes"}, calibration)
    before, after = (first_output(one, data) for one in (made, low))
    np.testing.assert_allclose(after, before, atol=0.06 * np.abs(before).max())
    assert np.unique(after[:, 1]).size == 1
    np.testing.assert_allclose(after[:, 1], before[:, 1], atol=0.01 * np.abs(before).max())


PRODUCTS = {
    "q = MatMul(x, w) r = Relu(q) y = MatMul(r, v)": ["QLinearMatMul"],
    "p = MatMul(x, w) q = Add(p, c) r = Relu(q) y = MatMul(r, v)": ["QGemm"],
    "q = MatMul(x, w) y = MatMul(q, v)": ["QLinearMatMul"],
    "q = MatMul(x, w) r = Sigmoid(q) y = MatMul(r, v)": ["MatMulIntegerToFloat", "Sigmoid", "QuantizeLinear"],
}


@pytest.mark.parametrize("body", PRODUCTS)
def test_products_in_a_row_hand_on_integers(body: str) -> None:
    made = model(body, "float[b,48] x", "float[b,8] y", w=(48, 16), v=(16, 8), c=(16,))
    data = images(shape=(9, 48))
    calibration = calibrate(made, ("x", "q", "r", "y"), data)
    low = lowered(made, dict.fromkeys(("q", "y"), "static_int8.extremes"), calibration)
    assert operators(low) == ["QuantizeLinear", *PRODUCTS[body], "MatMulIntegerToFloat"]
    assert distance(made, low, data[0]) < 2e-2
