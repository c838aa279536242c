"""Parallel and consecutive Convs are merged into one where that needs no more multiplications."""

from __future__ import annotations

import graphs
import numpy as np
import onnx_ir as ir
import pytest
from graphs import optimised_operators


def model(body: str, x: str, weights: dict[str, tuple[int, ...]]) -> ir.Model:
    """A model of the text with random weights; c4 is a vector of four numbers."""
    constants = {
        name: (0.5 + np.random.default_rng(number).random(shape)).astype(np.float32)
        for number, (name, shape) in enumerate({**weights, "c4": (4,)}.items())
    }
    made = graphs.proto(body, f"float[{x}] x", "float[k0] y", opset=17, ir_version=8, constants=constants)
    return ir.from_proto(graphs.without_shapes(made))


THREE, ONE = {"w": (4, 4, 3, 3), "v": (4, 4, 1, 1)}, {"w": (4, 4, 1, 1), "v": (4, 4, 1, 1)}
PAD = "<pads = [1, 1, 1, 1]>"


@pytest.mark.parametrize(
    "order", ["s = Add(a, b) t = Add(s, c)", "s = Add(c, b) t = Add(a, s)", "s = Add(a, c) t = Add(s, b)"]
)
def test_the_branches_of_repvgg_are_one_convolution(order: str) -> None:
    body = f"""p = Conv{PAD}(x, w) a = BatchNormalization(p, c4, c4, c4, c4) q = Conv(x, v)
        b = BatchNormalization(q, c4, c4, c4, c4) c = BatchNormalization(x, c4, c4, c4, c4) {order} y = Abs(t)"""
    assert optimised_operators(model(body, "n,4,6,6", THREE)) == ["Conv", "Abs"]


def test_the_branches_of_a_strided_depthwise_block_are_one_convolution() -> None:
    body = """a = Conv<pads = [1, 1, 1, 1], strides = [2, 2], group = 4>(x, w, c4) b = Conv<strides = [2, 2], group = 4>(x, v)
        c = Conv<pads = [1, 1, 1, 1], strides = [2, 2], group = 4>(x, w) s = Add(a, b) t = Add(s, c) y = Abs(t)"""
    assert optimised_operators(model(body, "n,4,6,6", {"w": (4, 1, 3, 3), "v": (4, 1, 1, 1)})) == ["Conv", "Abs"]


APART = {
    "another input": f"a = Conv{PAD}(x, w) o = Abs(x) b = Conv(o, v) y = Add(a, b)",
    "the identity of another value": f"a = Conv{PAD}(x, w) o = Abs(x) y = Add(a, o)",
    "a branch that is needed elsewhere": f"a = Conv{PAD}(x, w) b = Conv(x, v) s = Add(a, b) m = Abs(b) y = Mul(s, m)",
}  # fmt: skip


@pytest.mark.parametrize("body", APART.values(), ids=APART)
def test_other_branches_stay_apart(body: str) -> None:
    assert optimised_operators(model(body, "n,4,6,6", THREE)).count("Conv") == (2 if body.count("Conv") == 2 else 1)


def test_a_dense_branch_is_not_merged_into_a_grouped_one() -> None:
    body = "a = Conv<pads = [1, 1, 1, 1], group = 4>(x, d) b = Conv(x, v) y = Add(a, b)"
    assert optimised_operators(model(body, "n,4,6,6", {"d": (4, 1, 3, 3), "v": (4, 4, 1, 1)})).count("Conv") == 2


def test_crossed_kernels_that_would_make_more_work_stay_apart() -> None:
    body = "a = Conv<pads = [1, 0, 1, 0]>(x, p) b = Conv<pads = [0, 1, 0, 1]>(x, q) y = Add(a, b)"
    assert optimised_operators(model(body, "n,4,6,6", {"p": (4, 4, 3, 1), "q": (4, 4, 1, 3)})).count("Conv") == 2


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [((16, 4), (4, 16), True), ((1, 4), (4, 1), False), ((4, 4), (4, 4), True)],
)
def test_two_convolutions_in_a_row_are_one_if_that_is_less_work(
    first: tuple[int, int], second: tuple[int, int], merged: bool
) -> None:
    original = model("a = Conv(x, p) y = Conv(a, q)", "n,4,6,6", {"p": (*first, 1, 1), "q": (*second, 1, 1)})
    assert optimised_operators(original).count("Conv") == (1 if merged else 2)


def test_a_bias_before_a_padded_convolution_keeps_the_two_apart() -> None:
    weights = {"p": (4, 4, 1, 1), "q": (2, 4, 3, 3)}
    assert optimised_operators(model(f"a = Conv(x, p, c4) y = Conv{PAD}(a, q)", "n,4,6,6", weights)).count("Conv") == 2
    assert optimised_operators(model(f"a = Conv(x, p) y = Conv{PAD}(a, q)", "n,4,6,6", weights)).count("Conv") == 1


def test_the_difference_of_two_branches_is_one_convolution() -> None:
    body = f"a = Conv{PAD}(x, w, c4) b = Conv(x, v, c4) s = Sub(b, a) y = Abs(s)"
    assert optimised_operators(model(body, "n,4,6,6", THREE)) == ["Conv", "Abs"]


ADAPTED = {"w": (4, 4, 3, 3), "d": (2, 4, 3, 3), "u": (4, 2, 1, 1)}


@pytest.mark.parametrize("form", ["f = Mul(b, half) s = Add(a, f)", "f = Div(b, half) s = Sub(a, f)", "s = Add(b, a)"])
def test_an_adapter_beside_a_convolution_is_part_of_it(form: str) -> None:
    body = f"a = Conv{PAD}(x, w, c4) l = Conv{PAD}(x, d) b = Conv(l, u) half = Constant<value_float = 0.5>() {form} y = Abs(s)"
    assert optimised_operators(model(body, "n,4,6,6", ADAPTED)) == ["Conv", "Abs"]


def test_an_adapter_that_is_not_linear_stays_beside_the_convolution() -> None:
    body = f"a = Conv{PAD}(x, w) l = Conv{PAD}(x, d) m = Sigmoid(l) b = Conv(m, u) s = Add(a, b) y = Abs(s)"
    assert optimised_operators(model(body, "n,4,6,6", ADAPTED)).count("Conv") == 3


def test_joined_convolutions_of_one_input_are_one() -> None:
    body = f"a = Conv{PAD}(x, w, c4) b = Conv{PAD}(x, u) c = Concat<axis = 1>(a, b) y = Abs(c)"
    assert optimised_operators(model(body, "n,4,6,6", {"w": (4, 4, 3, 3), "u": (8, 4, 3, 3)})) == ["Conv", "Abs"]


def test_joined_convolutions_with_other_kernels_stay_apart() -> None:
    body = f"a = Conv{PAD}(x, w, c4) b = Conv(x, v) c = Concat<axis = 1>(a, b) y = Abs(c)"
    assert optimised_operators(model(body, "n,4,6,6", THREE)) == ["Conv", "Conv", "Concat", "Abs"]


def test_six_joined_convolutions_are_one_as_are_neighbours_between_others() -> None:
    layers = " ".join(f"a{number} = Conv{PAD}(x, w{number})" for number in range(6))
    names = ", ".join(f"a{number}" for number in range(6))
    weights = {f"w{number}": (1 + number % 3, 4, 3, 3) for number in range(6)}
    body = f"{layers} c = Concat<axis = 1>({names}) y = Abs(c)"
    assert optimised_operators(model(body, "n,4,6,6", weights)) == ["Conv", "Abs"]
    body = f"{layers} m = Tanh(x) c = Concat<axis = 1>(a0, a1, m, a2, a3, a4, x, a5) y = Abs(c)"
    found = optimised_operators(model(body, "n,4,6,6", weights))
    assert (found.count("Conv"), found.count("Concat")) == (3, 1)


def test_a_joined_convolution_that_is_needed_elsewhere_stays() -> None:
    body = f"a = Conv{PAD}(x, w) b = Conv{PAD}(x, u) c = Concat<axis = 1>(a, b) d = Concat<axis = 1>(c, a) y = Abs(d)"
    assert optimised_operators(model(body, "n,4,6,6", {"w": (4, 4, 3, 3), "u": (4, 4, 3, 3)})).count("Conv") == 2
