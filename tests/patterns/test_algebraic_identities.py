"""The canonical form of operators applied twice, of Slices of Slices and of Concats of Slices."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from rewriting import both, ops, parse

import ortfuse


def model(body: str, inputs: str = "float[b, 6] x", constants: str = "", output: str = "float[m, n] y") -> ir.Model:
    weights = f"<{constants}>" if constants else ""
    return parse(f'<ir_version: 9, opset_import: ["": 20]> g ({inputs}) => ({output}) {weights} {{ {body} }}')


def canonical(original: ir.Model) -> ir.Model:
    found: ir.Model = ortfuse.optimize(original.clone(), passes="canonicalize").model
    return found


def exactly_same(original: ir.Model, result: ir.Model, inputs: dict[str, np.ndarray]) -> None:
    old, new = both(original, result, inputs)
    np.testing.assert_array_equal(new, old)


SPECIAL = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5], [1e-40, -1e-40, 3e38, -3e38, 2.5, -0.5]], np.float32)

SIMPLER = {
    "a = Neg(x) b = Neg(a) y = Relu(b)": "Relu",
    "a = Abs(x) b = Abs(a) y = Relu(b)": "Abs Relu",
    "a = Neg(x) y = Abs(a)": "Abs",
    "a = Max(x, x) y = Relu(a)": "Relu",
    "a = Cast<to=11>(x) b = Cast<to=1>(a) y = Relu(b)": "Relu",
    "a = Cast<to=10>(x) b = Cast<to=1>(a) y = Relu(b)": "Cast Cast Relu",
    "a = Cast<to=10>(x) b = Cast<to=11>(a) c = Cast<to=10>(b) y = Cast<to=1>(c)": "Cast Cast",
    "a = Less(x, x) b = Not(a) c = Not(b) y = Cast<to=1>(c)": "Less Cast",
    "y = Sub(x, x)": "Sub",
    "s = Shape(x) o = ConstantOfShape<value = float[1] {1}>(s) a = Mul(o, x) b = Div(a, o) y = Relu(b)": "Relu",
    "s = Shape(x) o = ConstantOfShape<value = float[1] {1}>(s) y = Div(o, x)": "Shape ConstantOfShape Div",
    "a = Ceil(x) y = Floor(a)": "Ceil",
    "a = Floor(x) b = Ceil(a) y = Round(b)": "Floor",
    "a = Sign(x) b = Sign(a) y = Round(b)": "Sign",
    "a = Cast<to=11>(x) b = Neg(a) y = Cast<to=1>(b)": "Neg",
    "a = Cast<to=10>(x) b = Neg(a) y = Cast<to=1>(b)": "Cast Neg Cast",
    "a = Cast<to=11>(x) b = Exp(a) y = Cast<to=1>(b)": "Cast Exp Cast",
    "r = Relu(x) a = Cast<to=11>(x) b = Cast<to=11>(r) c = Less(a, b) y = Cast<to=1>(c)": "Relu Less Cast",
    "r = Relu(x) a = Cast<to=11>(x) b = Cast<to=11>(r) c = Max(a, b) y = Cast<to=1>(c)": "Relu Max",
    "a, b = Split<axis=1, num_outputs=2>(x) c = Concat<axis=1>(a, b) y = Relu(c)": "Relu",
    "a, b = Split<axis=1, num_outputs=2>(x) c = Concat<axis=1>(b, a) y = Relu(c)": "Split Concat Relu",
    "c = Concat<axis=1>(x, x) a, b = Split<axis=1, num_outputs=2>(c) y = Add(a, b)": "Add",
    "c = Concat<axis=0>(x, x) a, b = Split<axis=0, num_outputs=2>(c) y = Add(a, b)": "Add",
}


@pytest.mark.parametrize("body", SIMPLER)
def test_what_is_done_twice_or_undone_is_left_out(body: str) -> None:
    original = model(body)
    result = canonical(original)
    assert ops(result) == SIMPLER[body]
    exactly_same(original, result, {"x": SPECIAL})


def test_the_difference_of_integers_with_themselves_is_zero() -> None:
    original = model("a = Sub(x, x) y = Identity(a)", "int64[2, 3] x", output="int64[2, 3] y")
    result = canonical(original)
    assert "Sub" not in ops(result)
    exactly_same(original, result, {"x": np.arange(6).reshape(2, 3)})


def test_slices_of_slices_are_one_slice() -> None:
    constants = "int64[1] one = {1}, int64[1] five = {5}, int64[1] last = {-1}, int64[1] back = {-9}"
    original = model(
        "a = Slice(x, one, five, one) b = Slice(a, last, back, one, last) y = Slice(b, one, five, one)",
        constants=constants,
    )
    result = canonical(original)
    assert ops(result) == "Slice"
    exactly_same(original, result, {"x": SPECIAL})


FOCUS = """a = Slice(x, zero, end, rows, two) b = Slice(x, one, end, rows, two)
    p = Slice(a, zero, end, columns, two) q = Slice(b, zero, end, columns, two)
    r = Slice(a, one, end, columns, two) s = Slice(b, one, end, columns, two) y = Concat<axis=1>(p, q, r, s)"""
FOCUS_NUMBERS = """int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] rows = {2}, int64[1] columns = {3},
    int64[1] end = {9223372036854775807}"""


def test_a_part_of_which_only_parts_are_read_is_not_made() -> None:
    """The runtime makes one operator of pixels that become channels (YOLO's Focus) if each part is one Slice."""
    original = model(FOCUS, "float[n, 3, h, w] x", FOCUS_NUMBERS, "float[n, 12, i, j] y")
    result = canonical(original)
    assert ops(result) == "Slice Slice Slice Slice Concat"
    exactly_same(original, result, {"x": np.arange(2 * 3 * 4 * 6, dtype=np.float32).reshape(2, 3, 4, 6)})


def test_a_part_that_something_else_reads_too_is_cut_again() -> None:
    original = model("a = Slice(x, one, five, one) b = Slice(a, one, five, zero) c = Relu(a) y = Concat<axis=0>(b, c)",
        constants="int64[1] zero = {0}, int64[1] one = {1}, int64[1] five = {5}")  # fmt: skip
    assert ops(canonical(original)) == "Slice Slice Relu Concat"


def test_axes_that_slices_keep_whole_are_not_in_the_slice_of_both() -> None:
    """As torch.export writes x[:, :, 1:3]: the runtime splits what is cut along one axis alone."""
    original = model(
        "a = Slice(x, zero, end, zero) b = Slice(a, zero, end, one) y = Slice(b, one, three, two)",
        "float[n, m, 4] x",
        "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, "
        "int64[1] end = {9223372036854775807}",
        "float[p, q, r] y",
    )
    result = canonical(original)
    (node,) = result.graph
    starts = node.inputs[1].const_value
    assert node.op_type == "Slice" and starts is not None and starts.shape == (1,)
    exactly_same(original, result, {"x": np.arange(24, dtype=np.float32).reshape(2, 3, 4)})


def test_the_part_of_a_concat_behind_an_operand_of_unknown_length_is_the_other_operand() -> None:
    """As where a cache is cut off again."""
    original = model(
        "s = Shape<start=1, end=2>(past) c = Concat<axis=1>(past, x) a = Slice(c, s, end, one) y = Relu(a)",
        "float[b, p] past, float[b, q] x", "int64[1] end = {9223372036854775807}, int64[1] one = {1}",
    )  # fmt: skip
    result = canonical(original)
    assert ops(result) == "Relu"
    exactly_same(original, result, {"past": SPECIAL[:, :2], "x": SPECIAL})


def test_indices_of_indices_are_composed() -> None:
    original = model(
        "a = Gather<axis=1>(x, first) y = Gather<axis=1>(a, second)",
        constants="int64[3] first = {5, 0, -2}, int64[2] second = {-1, 0}",
    )
    result = ortfuse.optimize(original.clone()).model
    assert ops(result) == "Slice"
    exactly_same(original, result, {"x": SPECIAL})


def test_pads_with_one_number_add_up() -> None:
    original = model("a = Pad(x, p) y = Pad(a, q)", constants="int64[4] p = {0, 1, 0, 2}, int64[4] q = {1, 0, 0, 3}")
    result = ortfuse.optimize(original.clone()).model
    assert ops(result) == "Pad"
    exactly_same(original, result, {"x": SPECIAL})


def test_a_transposed_operand_of_gemm_is_read_as_it_is_though_it_is_an_output() -> None:
    """The runtime's own fusion would delete the Transpose, and the model would not load."""
    original = parse("""<ir_version: 9, opset_import: ["": 17]>
        g (float[4, m] x, float[4, 5] w) => (float[m, 5] y, float[m, 4] t) { t = Transpose(x) y = Gemm(t, w) }""")
    result = ortfuse.optimize(original.clone()).model
    gemm = next(node for node in result.graph if node.op_type == "Gemm")
    assert gemm.attributes["transA"].value == 1
    inputs = {"x": np.arange(12, dtype=np.float32).reshape(4, 3), "w": np.ones((4, 5), np.float32)}
    exactly_same(original, result, inputs)


CUT_TWICE = {
    (1, 2**31 - 1, 1, 2, 2**31 - 1, 1): "Slice",
    (1, -1, 1, 1, -2, 1): "Slice",
    (0, 4, 1, 1, 9, 2): "Slice",
    (0, 2**31 - 1, 2, 1, 2, 2): "Slice Slice",
    (-1, -(2**31), -1, -1, -(2**31), -1): "",
    (0, -1, 1, 0, 2, 1): "Slice Slice",
    (-3, 2**31 - 1, 1, 1, 2**31 - 1, 1): "Slice Slice",
}


@pytest.mark.parametrize("cuts", CUT_TWICE)
def test_slices_of_slices_along_an_axis_of_any_length(cuts: tuple[int, ...]) -> None:
    names = ("a", "b", "c", "d", "e", "f")
    constants = ", ".join(f"int64[1] {name} = {{{number}}}" for name, number in zip(names, cuts, strict=True))
    original = model(
        "s = Slice(x, a, b, axis, c) t = Slice(s, d, e, axis, f) y = Relu(t)",
        "float[n, 6] x",
        f"{constants}, int64[1] axis = {{0}}",
    )
    result = canonical(original)
    assert ops(result) == f"{CUT_TWICE[cuts]} Relu".strip()
    for length in range(1, 8):
        exactly_same(original, result, {"x": np.arange(6.0 * length, dtype=np.float32).reshape(length, 6)})
