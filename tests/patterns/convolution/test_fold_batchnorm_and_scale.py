"""BatchNormalization, scales and shifts behind and before a Conv are folded into its weights, where that is right and costs nothing."""

from __future__ import annotations

import graphs
import numpy as np
import onnx_ir as ir
import pytest
from graphs import optimised_operators

import ortfuse
from ortfuse.verification import verify

WEIGHTS = {
    "w": (4, 3, 3, 3), "v": (4, 4, 1, 1), "wd": (4, 1, 3, 3), "wt": (3, 4, 2, 2), "w1": (4, 3, 3), "w3": (4, 3, 1, 3, 3),
    "c": (4, 1, 1), "d": (1, 4, 1, 1), "e": (4, 1), "f": (4, 1, 1, 1), "s": (1,), "c3": (3, 1, 1), "wide": (64, 64, 3, 3),
    "c64": (64, 1, 1), "d64": (64, 1, 1), "one": (4, 1, 1, 1), "wg": (4, 2, 3, 3),
}  # fmt: skip
IMAGE, SEQUENCE, VOLUME = "float[n,3,6,7] x", "float[n,3,s] x", "float[n,3,4,5,6] x"


def model(body: str, x: str = IMAGE, **given: np.ndarray) -> ir.Model:
    """A model of the text, which may use the weights above; `given` are others."""
    numbers = np.random.default_rng(0)
    weights = {name: (0.5 + numbers.random(WEIGHTS[name])).astype(np.float32) for name in sorted(WEIGHTS)} | given
    made = graphs.proto(body, x, "float[k0] y", opset=17, ir_version=8, constants=weights)
    return ir.from_proto(graphs.without_shapes(made))


HALF = "h = Constant<value = float {0.5}>()"
BEHIND = {
    "a factor for each channel": "a = Conv(x, w) b = Mul(c, a) y = Abs(b)",
    "a factor with a batch axis": "a = Conv(x, w) b = Mul(a, d) y = Abs(b)",
    "a divisor": "a = Conv(x, w) b = Div(a, c) y = Abs(b)",
    "a scalar": f"{HALF} a = Conv(x, w) b = Mul(a, h) y = Abs(b)",
    "a vector of one number": "a = Conv(x, w) b = Add(a, s) y = Abs(b)",
    "an offset subtracted": "a = Conv(x, w) b = Sub(a, c) y = Abs(b)",
    "subtracted from an offset": "a = Conv(x, w) b = Sub(c, a) y = Abs(b)",
    "a sign": "a = Conv(x, w) b = Neg(a) y = Abs(b)",
    "a padded convolution with strides": "a = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w) b = Add(a, c) y = Abs(b)",
    "a chain": "a = Conv(x, w) b = Sub(a, c) e1 = Div(b, d) f1 = Mul(e1, s) g1 = Add(f1, c) y = Abs(g1)",
    "a normalisation by the square root of constants": "a = Conv(x, w) b = Sub(a, c) r = Sqrt(d) e1 = Div(b, r) y = Abs(e1)",
    "a normalisation by the reciprocal of constants": "a = Conv(x, w) b = Sub(a, c) r = Reciprocal(d) e1 = Mul(b, r) y = Abs(e1)",
}  # fmt: skip


@pytest.mark.parametrize("body", BEHIND.values(), ids=BEHIND)
def test_maps_behind_a_convolution_are_part_of_it(body: str) -> None:
    assert optimised_operators(model(body)) == ["Conv", "Abs"]


@pytest.mark.parametrize(
    ("body", "x", "kind"),
    [
        ("a = Conv(x, w1) b = Mul(a, e) e1 = Add(b, e) y = Abs(e1)", SEQUENCE, "Conv"),
        ("a = Conv(x, w3) b = Mul(a, f) e1 = Add(b, f) y = Abs(e1)", VOLUME, "Conv"),
        ("a = Conv<group = 4>(x, wd) b = Mul(a, c) e1 = Add(b, c) y = Abs(e1)", "float[n,4,6,7] x", "Conv"),
        ("a = Conv<group = 2>(x, wg) b = Mul(a, c) e1 = Add(b, c) y = Abs(e1)", "float[n,4,6,7] x", "Conv"),
        ("a = ConvTranspose<strides = [2, 2]>(x, wt) b = Mul(a, c) e1 = Add(b, c) y = Abs(e1)", IMAGE, "ConvTranspose"),
    ],
)
def test_of_every_rank_and_grouping(body: str, x: str, kind: str) -> None:
    assert optimised_operators(model(body, x)) == [kind, "Abs"]


BEFORE = {
    "an image normalised": "a = Sub(x, c3) b = Div(a, m3) y = Conv(b, w)",
    "an image normalised by factors": "a = Mul(x, c3) b = Add(a, m3) y = Conv(b, w)",
    "a factor, padded": "a = Mul(x, c3) y = Conv<pads = [1, 1, 1, 1]>(a, w)",
    "a sign": "a = Neg(x) y = Conv<auto_pad = \"SAME_UPPER\">(a, w)",
    "one number": "a = Add(x, s) y = Conv(a, w)",
    "two convolutions": "a = Mul(x, c3) p = Conv(a, w) q = Conv<pads = [1, 1, 1, 1], strides = [3, 3]>(a, w) "
    "r = ReduceSum(q) y = Add(p, r)",
}  # fmt: skip


@pytest.mark.parametrize("body", BEFORE.values(), ids=BEFORE)
def test_maps_before_a_convolution_are_part_of_it(body: str) -> None:
    m3 = np.array([0.25, 0.5, 2], np.float32).reshape(3, 1, 1)
    assert {*optimised_operators(model(body, m3=m3))} <= {"Conv", "ReduceSum", "Add"} if "q" in body else {"Conv"}
    assert optimised_operators(model(body, m3=m3)).count("Add") == ("q" in body)


def test_an_offset_before_a_padded_convolution_stays_and_its_factor_does_not() -> None:
    body = "a = Mul(x, c3) b = Add(a, k3) e1 = Div(b, c3) y = Conv<pads = [1, 0, 0, 0]>(e1, w)"
    operators = optimised_operators(model(body, k3=np.array([1, 2, 3], np.float32).reshape(3, 1, 1)))
    assert operators in (["Add", "Conv"], ["BatchNormalization", "Conv"])


@pytest.mark.parametrize("offset", [1e4, np.nan, np.inf])
def test_an_offset_is_not_moved_behind_products_in_which_digits_would_be_lost(offset: float) -> None:
    found = ortfuse.optimize(model("a = Add(x, k) y = Conv(a, w)", k=np.array([offset], np.float32)))
    assert [node.op_type for node in found.model.graph] == ["Add", "Conv"]


def test_a_map_that_adds_channels_stays() -> None:
    assert optimised_operators(model("a = Mul(x, c3) y = Conv(a, w)", "float[n,1,6,7] x")) == ["Mul", "Conv"]


@pytest.mark.parametrize("shape", ["rows", "an axis"])
def test_a_map_of_other_axes_stays(shape: str) -> None:
    array = np.ones((5, 1) if shape == "rows" else (1, 1, 4, 1, 1), np.float32) * 2
    assert optimised_operators(model("a = Conv(x, w1) y = Mul(a, k)" if shape != "rows" else "a = Conv(x, w) y = Mul(a, k)",
                         SEQUENCE.replace("s]", "7]") if shape != "rows" else "float[n,3,7,7] x", k=array))[-1] == "Mul"  # fmt: skip


@pytest.mark.parametrize(("size", "factor"), [(1e30, 1e20), (1e-30, 1e-20)])
def test_numbers_that_the_type_does_not_hold_stay_apart(size: float, factor: float) -> None:
    big, k = np.full((4, 3, 3, 3), size, np.float32), np.array([factor], np.float32)
    result = ortfuse.optimize(model("a = Conv(x, big) b = Mul(a, k) y = Abs(b)", big=big, k=k))
    assert [node.op_type for node in result.model.graph] == ["Conv", "Mul", "Abs"]


SIAMESE = "a = Conv(x, wide) b = Mul(a, c64) p = Abs(b) e1 = Conv(p, wide) f1 = Mul(e1, {}) y = Abs(f1)"


@pytest.mark.parametrize(("other", "folded"), [("c64", True), ("d64", False)])
def test_large_shared_weights_are_mapped_only_if_all_uses_are_mapped_alike(other: str, folded: bool) -> None:
    original = model(SIAMESE.format(other), "float[n,64,9,9] x", wide=np.full((64, 64, 3, 3), 0.02, np.float32))
    result = ortfuse.optimize(original)
    assert ("Mul" not in [node.op_type for node in result.model.graph]) is folded
    size = sum(value.const_value.nbytes for value in result.model.graph.initializers.values())  # type: ignore[union-attr]
    assert size < 1.1 * 64 * 64 * 9 * 4
    assert verify(original, result.model).ok


FOUR = "c4 = Constant<value_floats = [0.5, 1.0, 2.0, 1.5]>() "
THREE = "t3 = Constant<value_floats = [0.5, 1.0, 2.0]>() "
PRODUCTS = {
    "Gemm": ("a = Gemm<transB = 1>(x, m, c4) y = BatchNormalization(a, c4, c4, c4, c4)", "float[n,3] x", ["Gemm"]),
    "a product": ("a = MatMul(x, k) y = BatchNormalization(a, c4, c4, c4, c4)", "float[n,3] x", ["MatMul", "Add"]),
    "a product from the left": ("a = MatMul(m, x) y = BatchNormalization(a, c4, c4, c4, c4)", "float[n,3,s] x", ["MatMul", "Add"]),
    "rows of a product": (
        "t = Constant<value_ints = [-1, 4]>() a = MatMul(x, k) b = Add(a, c4) r = Reshape(b, t) "
        "y = BatchNormalization(r, c4, c4, c4, c4)", "float[n,5,3] x", ["MatMul", "Add", "Reshape"],
    ),
    "flat rows of a product": (
        "a = MatMul(x, k) r = Flatten<axis = 2>(a) y = BatchNormalization(r, c4, c4, c4, c4)", "float[n,5,3] x",
        ["MatMul", "Add", "Flatten"],
    ),
    "a product over a sequence": (
        "a = MatMul(x, k) b = Add(c4, a) t = Transpose<perm = [0, 2, 1]>(b) n1 = BatchNormalization(t, c4, c4, c4, c4) "
        "y = Transpose<perm = [0, 2, 1]>(n1)", "float[n,s,3] x", ["MatMul", "Add"],
    ),
    "a product of each pixel": (
        "a = MatMul(x, k) t = Transpose<perm = [0, 3, 1, 2]>(a) y = BatchNormalization(t, c4, c4, c4, c4)",
        "float[n,h,w0,3] x", ["MatMul", "Add", "Transpose"],
    ),
    "a sequence before a product": (
        "a = BatchNormalization(x, t3, t3, t3, t3) t = Transpose<perm = [0, 2, 1]>(a) y = MatMul(t, k)", "float[n,3,s] x",
        ["Transpose", "MatMul", "Add"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "x", "operators"), PRODUCTS.values(), ids=PRODUCTS)
def test_a_normalised_product_is_a_product(body: str, x: str, operators: list[str]) -> None:
    k = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    assert optimised_operators(model(FOUR + (THREE if "t3" in body else "") + body, x, k=k, m=k.T.copy())) == operators


def test_the_last_axis_of_a_product_of_three_axes_is_not_normalised() -> None:
    k = np.ones((3, 4), np.float32)
    body = FOUR + "a = MatMul(x, k) y = BatchNormalization(a, c4, c4, c4, c4)"
    assert "BatchNormalization" in optimised_operators(model(body, "float[n,4,3] x", k=k))


def test_rows_that_split_the_columns_of_a_product_are_not_normalised_in_it() -> None:
    body = (
        "c2 = Constant<value_floats = [0.5, 2.0]>() t = Constant<value_ints = [-1, 2]>() a = MatMul(x, k) "
        "r = Reshape(a, t) y = BatchNormalization(r, c2, c2, c2, c2)"
    )
    assert "BatchNormalization" in optimised_operators(model(body, "float[n,5,3] x", k=np.ones((3, 4), np.float32)))


JOINED = "p = Conv(x, w) q = Conv(x, w) r = Concat<axis = 1>(p, {}) y = BatchNormalization(r, c8, c8, c8, c8)"


@pytest.mark.parametrize(("other", "folded"), [("q", True), ("p", False), ("z", False)])
def test_a_normalisation_behind_joined_convolutions_is_folded_if_all_of_them_take_it(other: str, folded: bool) -> None:
    body = "z = Abs(q) " + JOINED.format(other) if other == "z" else JOINED.format(other)
    body = body.replace("z = Abs(q) p = Conv(x, w) q = Conv(x, w)", "p = Conv(x, w) q = Conv(x, w) z = Abs(q)")
    body = body.replace("q = Conv(x, w)", "o = Neg(x) q = Conv(o, w)") if other != "p" else body
    assert (
        "BatchNormalization" not in optimised_operators(model(body, c8=np.arange(1, 9).astype(np.float32)))
    ) is folded


def test_a_normalisation_behind_a_trimmed_convolution_is_folded() -> None:
    body = (
        FOUR
        + """i = Constant<value_ints = [0]>() j = Constant<value_ints = [-1]>() k = Constant<value_ints = [2]>()
        a = Conv<pads = [1, 1]>(x, w1) b = Slice(a, i, j, k) y = BatchNormalization(b, c4, c4, c4, c4)"""
    )
    assert optimised_operators(model(body, SEQUENCE)) == ["Conv", "Slice"]


POOLED = "a = Conv(x, w) p = MaxPool<{}>(a) y = BatchNormalization(p, {}, c4, c4, c4)"
WINDOWS = ["kernel_shape = [2, 2]", "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"]


@pytest.mark.parametrize("window", WINDOWS)
def test_a_normalisation_of_maxima_is_folded_if_what_is_larger_stays_larger(window: str) -> None:
    assert optimised_operators(model(FOUR + POOLED.format(window, "c4"))) == ["Conv", "MaxPool"]
    below = np.float32([0.5, -1, 2, 1])
    assert "BatchNormalization" in optimised_operators(model(FOUR + POOLED.format(window, "below"), below=below))


SCALED = {
    "behind, as Caffe does": "a = BatchNormalization(x, t3, t3, t3, t3) b = Mul(a, c3) z = Add(b, c3) y = Relu(z)",
    "behind": "a = BatchNormalization(x, t3, t3, t3, t3) b = Mul(c3, a) z = Sub(b, c3) y = Relu(z)",
    "before": "b = Mul(s, x) z = Div(b, c3) v1 = Add(z, c3) a = BatchNormalization(v1, t3, t3, t3, t3) y = Relu(a)",
}


@pytest.mark.parametrize("body", SCALED.values(), ids=SCALED)
def test_arithmetic_around_a_normalisation_is_part_of_it(body: str) -> None:
    assert optimised_operators(model(THREE + body)) == ["BatchNormalization", "Relu"]


def test_a_normalisation_of_what_is_far_from_0_loses_no_digits() -> None:
    body = THREE + "z = Add(x, far) a = BatchNormalization(z, t3, t3, t3, t3) y = Relu(a)"
    assert "Add" in optimised_operators(model(body, far=np.float32([[[1e3]], [[2e3]], [[3e3]]])))


def test_branches_in_a_sum_of_several_are_one_convolution() -> None:
    body = (
        FOUR
        + """a = Conv<pads = [1, 1, 1, 1]>(x, w) b = Conv(x, p) n1 = BatchNormalization(b, c4, c4, c4, c4)
        r = Conv(x, q) z = Sum(a, n1, r) y = Relu(z)"""
    )
    p = np.full((4, 3, 1, 1), 0.3, np.float32)
    assert optimised_operators(model(body, p=p, q=2 * p)) == ["FusedConv"]


REORDERED = {
    "colours the other way round": "p = Constant<value_ints = [2, 1, 0]>() a = Gather<axis = 1>(x, p) y = Conv(a, w)",
    "an image of bytes around 0": "a = Sub(x, b) b1 = Div(a, b) y = Conv(b1, w)",
    "the mean of a convolution": "c2 = Conv(x, w) m = ReduceMean<axes = [2, 3]>(c2) y = BatchNormalization(m, f4, f4, f4, f4)",
}


@pytest.mark.parametrize("body", REORDERED.values(), ids=REORDERED)
def test_what_stands_around_a_convolution_is_gone(body: str) -> None:
    given = {"b": np.float32(127.5).reshape(1), "f4": np.arange(1, 5).astype(np.float32)}
    assert not {"Gather", "Sub", "Div", "BatchNormalization"} & {*optimised_operators(model(body, **given))}


def test_pixels_moved_into_channels_in_any_order_are_convolved() -> None:
    body = """s1 = Constant<value_ints = [-1, 3, 3, 2, 4, 2]>() t = Constant<value_ints = [-1, 12, 3, 4]>()
        a = Reshape(x, s1) b = Transpose<perm = [0, 1, 3, 5, 2, 4]>(a) c2 = Reshape(b, t) y = Conv(c2, w12)"""
    weights = np.random.default_rng(0).standard_normal((4, 12, 1, 1)).astype(np.float32)
    assert optimised_operators(model(body, "float[n,3,6,8] x", w12=weights)) == ["SpaceToDepth", "Conv"]


def test_a_normalisation_before_a_dense_layer_is_folded() -> None:
    body = "a = BatchNormalization(x, f3, f3, f3, f3) y = Gemm(a, k, f2)"
    given = {"f3": np.arange(1, 4), "k": np.ones((3, 2)), "f2": np.ones(2)}
    assert optimised_operators(
        model(body, "float[n,3] x", **{name: array.astype(np.float32) for name, array in given.items()})
    ) == ["Gemm"]


def test_tensors_that_are_stacked_and_added_are_one_convolution() -> None:
    body = """i = Constant<value_ints = [0]>() a = Conv<pads = [1, 1, 1, 1]>(x, w) b = Conv(x, p) c1 = Unsqueeze(a, i)
        d1 = Unsqueeze(b, i) j1 = Concat<axis = 0>(c1, d1) z = ReduceSum<keepdims = 0>(j1, i) y = Relu(z)"""
    assert optimised_operators(model(body, p=np.full((4, 3, 1, 1), 0.3, np.float32))) == ["FusedConv"]


def test_the_factor_of_an_image_with_channels_last_is_taken_by_a_padded_convolution() -> None:
    """For that, the Transpose stands before the arithmetic."""
    v3 = np.float32([0.5, 0.25, 2])
    body = "a = Mul(x, v3) b = Sub(a, v3) t = Transpose<perm = [0, 3, 1, 2]>(b) y = Conv<pads = [1, 1, 1, 1]>(t, w)"
    found = optimised_operators(model(body, "float[n,6,7,3] x", v3=v3))
    assert len(found) == 3
    assert found[0] == "Transpose"
