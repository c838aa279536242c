"""Pad before Convs and pools is folded into their pads, and Slice behind Convs likewise."""

from __future__ import annotations

import graphs
import numpy as np
import onnx_ir as ir
import pytest
from graphs import optimised_operators

import ortfuse
from ortfuse.verification import verify


def model(body: str, x: str, opset: int = 17) -> ir.Model:
    """A model of the text, with weights w and w1."""
    shapes = {"w": (4, 3, 3, 3), "w1": (4, 3, 3)}
    weights = {name: np.random.default_rng(0).standard_normal(shape, np.float32) for name, shape in shapes.items()}
    made = graphs.proto(body, f"float[{x}] x", "float[k0] y", opset=opset, ir_version=8, constants=weights)
    return ir.from_proto(graphs.without_shapes(made))


def ints(name: str, *numbers: int) -> str:
    return f"{name} = Constant<value_ints = [{', '.join(map(str, numbers))}]>() "


LOW = "f = Constant<value = float {-inf}>() "
BORDER = ints("p", 0, 0, 1, 0, 0, 0, 2, 1)
TAKEN = {
    "by a convolution": (BORDER + "a = Pad(x, p) y = Conv(a, w)", "n,3,h,w0"),
    "by a padded convolution": (BORDER + "a = Pad(x, p) y = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(a, w)", "n,3,6,6"),
    "by two convolutions": (BORDER + "a = Pad(x, p) b = Conv(a, w) o = Neg(w) c = Conv<group = 1>(a, o) d = Relu(c) y = Mul(b, d)", "n,3,6,6"),
    "by an average": (BORDER + "a = Pad(x, p) y = AveragePool<kernel_shape = [3, 3]>(a)", "n,3,6,6"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "x"), TAKEN.values(), ids=TAKEN)
def test_a_border_of_zeros_is_taken(body: str, x: str) -> None:
    assert "Pad" not in optimised_operators(model(body, x))


def test_also_as_old_opsets_write_it() -> None:
    body = "a = Pad<pads = [0, 0, 1, 0, 0, 0, 2, 1]>(x) y = Conv(a, w)"
    assert optimised_operators(model(body, "n,3,6,6", 10)) == ["Conv"]


LEFT = {
    "other numbers": 'f = Constant<value = float {1.0}>() ' + BORDER + "a = Pad(x, p, f) y = Conv(a, w)",
    "a reflection": BORDER + 'a = Pad<mode = "reflect">(x, p) y = Conv(a, w)',
    "zeros before a maximum": BORDER + "a = Pad(x, p) y = MaxPool<kernel_shape = [3, 3]>(a)",
    "zeros that would not count": BORDER + "a = Pad(x, p) y = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a)",
    "windows of zeros alone": ints("p", 0, 0, 3, 0, 0, 0, 0, 0) + "a = Pad(x, p) y = AveragePool<kernel_shape = [3, 3]>(a)",
    "windows that hang over": BORDER + "a = Pad(x, p) y = AveragePool<kernel_shape = [3, 3], ceil_mode = 1, strides = [2, 2]>(a)",
    "another size of padding to the same": BORDER + 'a = Pad(x, p) y = Conv<auto_pad = "SAME_UPPER", strides = [2, 2]>(a, w)',
    "old numbers": "a = Pad<pads = [0, 0, 1, 0, 0, 0, 2, 1], value = 1.0>(x) y = Conv(a, w)",
}  # fmt: skip


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT)
def test_any_other_border_stays(body: str) -> None:
    result = ortfuse.optimize(model(body, "n,3,6,6", 10 if "value = 1.0>(x)" in body else 17))
    assert "Pad" in [node.op_type for node in result.model.graph]


def test_what_is_infinitely_low_is_the_padding_of_a_maximum() -> None:
    assert optimised_operators(
        model(LOW + BORDER + "a = Pad(x, p, f) y = MaxPool<kernel_shape = [3, 3]>(a)", "n,3,6,6")
    ) == ["MaxPool"]


def test_zeros_around_what_an_activation_leaves_are_padding_to_the_runtime() -> None:
    """It takes them for that of a maximum, which is right where nothing is negative; nothing keeps it from that."""
    body = BORDER + "c = Conv(x, w) r = Relu(c) a = Pad(r, p) y = MaxPool<kernel_shape = [3, 3], ceil_mode = 1>(a)"
    assert optimised_operators(model(body, "n,3,h,6")) == ["FusedConv", "Pad", "MaxPool"]


CAUSAL = ints("b", 0) + ints("e", -2) + ints("i", 2) + "a = Conv<pads = [2, 2]>(x, w1) y = Slice(a, b, e, i)"


def test_a_causal_convolution_is_padded_in_front_alone() -> None:
    result = ortfuse.optimize(model(CAUSAL, "n,3,9"))
    assert [list(node.attributes["pads"].as_ints()) for node in result.model.graph] == [[2, 0]]
    assert verify(model(CAUSAL, "n,3,9"), result.model).ok


@pytest.mark.parametrize("x", ["n,3,s", "n,3,9"])
def test_a_result_that_may_be_empty_or_lacks_more_than_padding_is_trimmed_as_before(x: str) -> None:
    body = CAUSAL if "s" in x else CAUSAL.replace("[-2]", "[-3]")
    assert optimised_operators(model(body, x)) == ["Conv", "Slice"]


POSITIVE = {
    "an activation": "r = Relu(x) a = Pad(r, p) y = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(a)",
    "numbers below all": "f = Constant<value = float {-0.5}>() r = Sigmoid(x) a = Pad(r, p, f) y = MaxPool<kernel_shape = [3, 3]>(a)",
}


@pytest.mark.parametrize("body", POSITIVE.values(), ids=POSITIVE)
def test_what_is_no_higher_than_any_element_is_the_padding_of_a_maximum(body: str) -> None:
    assert "Pad" not in optimised_operators(model(BORDER + body, "n,3,6,6"))


HIGHER = {
    "numbers above some": "f = Constant<value = float {0.5}>() r = Relu(x) a = Pad(r, p, f) y = MaxPool<kernel_shape = [3, 3]>(a)",
    "windows of padding alone": "r = Relu(x) a = Pad(r, p) y = MaxPool<kernel_shape = [2, 1]>(a)",
    "windows on both sides of the image": "r = Relu(x) a = Pad(r, p) y = MaxPool<kernel_shape = [3, 2], dilations = [1, 2]>(a)",
}


@pytest.mark.parametrize("body", HIGHER.values(), ids=HIGHER)
def test_what_may_be_a_maximum_is_none(body: str) -> None:
    border = ints("p", 0, 0, 1, 1, 0, 0, 2, 1)
    assert "Pad" in optimised_operators(model(border + body, "n,3,6,1"))


def test_a_pool_over_one_axis_stays_behind_padding_that_the_runtime_takes() -> None:
    body = ints("p", 0, 0, 0, 0, 0, 2) + "r = Relu(x) a = Pad(r, p) y = MaxPool<kernel_shape = [3], strides = [2]>(a)"
    assert optimised_operators(model(body, "n,3,s")) == ["Relu", "Pad", "MaxPool"]
