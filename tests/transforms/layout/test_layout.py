"""Transposes are moved through whatever can be written for another order of axes, until they meet or fold into constants."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import operators, run
from small_models import apply, context_of, floats, model_of, proto_of

from ortfuse.pipeline import PassManager
from ortfuse.targets import Quirk
from ortfuse.transforms import Layout

HEAD = '<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1, "local": 1]>\n'
X = {"x": floats(2, 3, 4, 5)}
CONSTANTS = """float[5] row = {1.0, 2.0, 3.0, 4.0, 5.0}, float[4, 1] column = {1.0, 2.0, 3.0, 4.0}, float one = {1.5},
    float[1] single = {2.5}, int64[1] zero = {0}, int64[1] two = {2}, int64[1] last = {-1}, int64[2] inner = {1, 2},
    int64[8] pads = {0, 1, 0, 2, 0, 0, 1, 0}, int64[4] repeats = {1, 2, 1, 3}, int64[4] wide = {2, 4, 5, 3},
    int64[2] halves = {2, 3}, int64[2] picked = {2, 0}, int64 third = {2}, int64 first = {0}, int64[4] split = {0, 20, 3, 1},
    int64[3] merged = {0, 20, 3}, int64[4] apart = {0, 4, 5, 3}, int64[5] finer = {0, 4, 5, 3, 1},
    int64[6] axes13 = {1, 2, 3, 0, 0, 0}, int64[2] some = {1, -1}, int64[4] narrow = {1, 0, 0, 2}"""


def between(body: str, opset: int = 20, shape: str = "float[n, 3, 4, 5]", result: str = "float[a, b, c, d]") -> str:
    """A body on [n, 4, 5, 3] that computes r from t, in a graph that has its axes in another order: [n, 3, 4, 5]."""
    head = HEAD.format(opset=opset)
    inner = f"t = Transpose<perm = [0, 2, 3, 1]>(x) {body} y = Transpose<perm = [0, 3, 1, 2]>(r)"
    return f"{head} agraph ({shape} x) => ({result} y) <{CONSTANTS}> {{ {inner} }}"


THROUGH = {
    "elementwise": "a = Relu(t) r = Abs(a)",
    "a constant for the last axis": "r = Add(t, f3)",
    "a constant of fewer axes": "r = Mul(f54, t)",
    "a constant of all axes": "a = Add(t, full) r = Relu(a)",
    "single numbers": "a = Mul(t, one) b = Add(single, a) r = Clip(b, one)",
    "a computed operand of fewer axes": "v = Gather<axis = 0>(x, first) m = ReduceMax<keepdims = 0>(v, inner) r = Add(t, m)",
    "two operands": "a = Relu(t) b = Neg(t) r = Add(a, b)",
    "a condition": "c = Greater(t, one) a = Relu(t) r = Where(c, a, t)",
    "a reduction that keeps axes": "a = ReduceMax<keepdims = 1>(t, inner) r = Sub(t, a)",
    "a softmax along another axis": "r = Softmax<axis = 1>(t)",
    "joined along another axis": "a = Relu(t) r = Concat<axis = -1>(t, a)",
    "joined with a constant": "a = Relu(t) r = Concat<axis = 0>(a, full)",
    "taken apart": "a, b = Split<axis = 2>(t, halves) c = Relu(a) r = Concat<axis = 2>(b, c)",
    "a slice": "r = Slice(t, zero, two, last)",
    "a slice of several axes": "r = Slice(t, picked, wide2, some)",
    "a slice without axes": "r = Slice(t, picked, wide2)",
    "pads": "r = Pad(t, pads, one)",
    "pads of some axes": "r = Pad(t, narrow, one, some)",
    "repeated": "r = Tile(t, repeats)",
    "expanded": "a = ReduceMax<keepdims = 1>(t, zero) r = Expand(a, wide)",
    "elements": "r = Gather<axis = 3>(t, picked)",
    "one element and back": "a = Gather<axis = 3>(t, third) r = Unsqueeze(a, last)",
    "an axis dropped and inserted": "a = ReduceMax<keepdims = 1>(t, last) b = Squeeze(a, last) r = Unsqueeze(b, last)",
    "arg max": "r = ArgMax<axis = 3, keepdims = 1>(t)",
    "gathered elements": "i = ArgMax<axis = 3, keepdims = 1>(t) r = GatherElements<axis = 3>(t, i)",
    "cumulated": "r = CumSum(t, third)",
    "another type": "a = Cast<to = 1>(t) b = CastLike(a, one) r = Dropout(b)",
    "normalised by axes that stay together": "p = Relu(t) s = Transpose<perm = [0, 3, 1, 2]>(p) l = LayerNormalization<axis = 2>(s, f45, f45) q = Transpose<perm = [0, 2, 3, 1]>(l) r = Relu(q)",
    "merged and split": "m = Reshape(t, merged) a = Relu(m) r = Reshape(a, apart)",
    "a shape": "a = Relu(t) s = Shape(a) r = Reshape(a, s)",
    "part of a shape": "s = Shape<start = 1, end = 3>(t) z = ConstantOfShape(s) m = ReduceMax<keepdims = 0>(z) r = Add(t, m)",
    "how many elements": "s = Size(t) c = Cast<to = 1>(s) r = Div(t, c)",
    "picked by a condition": "r = Compress<axis = 2>(t, mask)",
    "marked": "a = ArgMax<axis = 3, keepdims = 0>(t) o = OneHot<axis = 2>(a, third, halves) c = Cast<to = 1>(o) s = ReduceSum<keepdims = 0>(c) r = Add(t, s)",
    "largest": "r, i = TopK<axis = 3>(t, two)",
    "in rows": "d = CumSum<exclusive = 1>(t, third) r = Relu(d)",
    "resized to nearest neighbours": "r = Resize(t, , scales)",
    "resized to sizes": 'r = Resize<nearest_mode = "floor">(t, , , wide)',
    "quantised together": "q, s, p = DynamicQuantizeLinear(t) r = DequantizeLinear(q, s, p)",
    "repeated as often as is computed": "a = Abs(repeats) r = Tile(t, a)",
    "padded as is computed": "a = Abs(pads) r = Pad(t, a)",
    "numbers of rows": "a = ArgMax<axis = 3, keepdims = 1>(t) g = Gather<axis = 0>(table, a) r = ReduceSum<keepdims = 0>(g, last)",
    "axes of size 1 inserted": "m = Reshape(t, finer) a = Relu(m) r = Reshape(a, apart)",
}


def text_of(body: str, opset: int = 20) -> str:
    rng = np.random.default_rng(1)
    declared = {"f3": (3,), "f54": (5, 3), "f45": (4, 5), "full": (1, 4, 5, 3)}
    more = ""
    for name, shape in declared.items():
        numbers = ", ".join(f"{number:.3f}" for number in rng.standard_normal(np.prod(shape)))
        more += f", float{list(shape)} {name} = {{{numbers}}}"
    more += ", int64[2] wide2 = {4, 5}, float[4] scales = {1.0, 2.0, 1.0, 2.0}, float[3, 2] table = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}"
    more += ", bool[5] mask = {1, 0, 1, 1, 0}"
    result = "int64[a, b, c, d]" if "r = ArgMax" in body else "float[a, b, c, d]"
    return between(body, opset, result=result).replace("int64[4] narrow", more[2:] + ", int64[4] narrow")


@pytest.mark.parametrize("case", THROUGH)
def test_transposes_meet_through(case: str) -> None:
    model, counts, _ = apply(text_of(THROUGH[case]), Layout(), inputs=X)
    assert "Transpose" not in operators(model)
    assert counts[0] > 0


SWAPPED = {
    "a convolution": "r = Conv<pads = [1, 0, 0, 2], strides = [1, 2], dilations = [2, 1]>(t, w, b)",
    "a convolution backwards": "r = ConvTranspose<pads = [1, 0, 0, 0], strides = [1, 2], output_padding = [0, 1]>(t, w)",
    "a pool": "r = MaxPool<kernel_shape = [2, 3], pads = [1, 0, 0, 1], strides = [1, 2]>(t)",
    "a pool of means": 'r = AveragePool<kernel_shape = [1, 2], auto_pad = "SAME_UPPER">(t)',
    "a pool of everything": "a = GlobalAveragePool(t) r = Sub(t, a)",
    "channels with their own factors": "r = BatchNormalization(t, b, b, b, v)",
    "normalised images": "r = InstanceNormalization(t, b, v)",
    "neighbouring channels": "r = LRN<size = 3>(t)",
    "interpolated": 'r = Resize<mode = "linear">(t, , scales)',
}


@pytest.mark.parametrize("case", SWAPPED)
def test_height_and_width_are_swapped_back_through(case: str) -> None:
    rng = np.random.default_rng(3)

    def numbers(count: int) -> str:
        return ", ".join(f"{number:.3f}" for number in rng.random(count) + 0.5)

    constants = f"""float[3, 3, 2, 3] w = {{{numbers(54)}}}, float[3] b = {{{numbers(3)}}}, float[3] v = {{{numbers(3)}}},
        float[4] scales = {{1.0, 1.0, 2.0, 3.0}}"""
    inner = f"t = Transpose<perm = [0, 1, 3, 2]>(x) {SWAPPED[case]} y = Transpose<perm = [0, 1, 3, 2]>(r)"
    text = HEAD.format(opset=17) + f"agraph (float[2, 3, 4, 5] x) => (float[a, b, c, d] y) <{constants}> {{ {inner} }}"
    model = model_of(text)
    assert Layout().run(context_of(model)) > 0
    assert "Transpose" not in operators(model)
    np.testing.assert_allclose(run(model, X)[0], run(proto_of(text), X)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("body", ["r = ReverseSequence(t, lengths)", "r = Trilu<upper = 0>(t)"])
def test_the_first_axes_are_swapped_back_through(body: str) -> None:
    inner = f"t = Transpose<perm = [1, 0, 2, 3]>(x) {body} y = Transpose<perm = [1, 0, 2, 3]>(r)"
    text = (
        HEAD.format(opset=17)
        + f"agraph (float[2, 3, 4, 5] x) => (float[a, b, c, d] y) <int64[2] lengths = {{1, 3}}> {{ {inner} }}"
    )
    model, _, _ = apply(text, Layout(), inputs=X)
    assert "Transpose" not in operators(model)


def test_constant_numbers_of_rows_are_transposed_instead_of_the_rows() -> None:
    text = (
        HEAD.format(opset=17)
        + """agraph (float[3, 4] x) => (float[a, b, c] y) <int64[2, 3] numbers = {0, 1, 2, 2, 1, 1}> {
        g = Gather(x, numbers) y = Transpose<perm = [1, 0, 2]>(g) }"""
    )
    report = PassManager("fixpoint(canonicalize, layout)").run(model := model_of(text))
    assert report.after.operators == {"Gather": 1}
    np.testing.assert_array_equal(run(model, {"x": floats(3, 4)})[0], run(proto_of(text), {"x": floats(3, 4)})[0])


def test_numbers_of_rows_are_transposed_instead_of_the_rows() -> None:
    text = (
        HEAD.format(opset=17)
        + """agraph (int64[n, m] x) => (float[a, b, c] y) <float[3, 2] table = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> {
        g = Gather(table, x) y = Transpose<perm = [1, 0, 2]>(g) }"""
    )
    model, counts, _ = apply(text, Layout(), inputs={"x": np.array([[0, 1, 2], [2, 1, 1]])})
    assert counts == [1]
    assert operators(model) == ["Transpose", "Gather"]


@pytest.mark.parametrize("opset", [7, 9, 11, 12, 13, 17, 23])
def test_parameters_are_written_where_they_were(opset: int) -> None:
    body = "a = ReduceMax<axes = [1, -1], keepdims = 1>(t) b = Unsqueeze<axes = [4]>(a) c = Squeeze<axes = [4]>(b) r = Add(c, t)"
    if opset >= 13:
        body = (
            "a = ReduceMax<axes = [1, -1], keepdims = 1>(t) b = Unsqueeze(a, four) c = Squeeze(b, four) r = Add(c, t)"
        )
    if opset >= 18:
        body = body.replace("<axes = [1, -1], keepdims = 1>(t)", "<keepdims = 1>(t, some)")
    written = text_of(body, opset).replace("int64[4] narrow", "int64[1] four = {4}, int64[4] narrow")
    model, _, _ = apply(written, Layout(), inputs=X)
    assert "Transpose" not in operators(model)


def test_channels_of_a_convolution_stay_first() -> None:
    body = """t = Transpose<perm = [0, 2, 3, 1]>(x) a = Relu(t) f = Transpose<perm = [0, 3, 1, 2]>(a) c = Conv(f, w)
        l = Transpose<perm = [0, 2, 3, 1]>(c) b = Add(l, bias) y = Relu(b)"""
    written = (
        HEAD.format(opset=15)
        + f"agraph (float[n, 2, 4, 5] x) => (float[n, 4, 5, 1] y) <float[1, 2, 1, 1] w = {{1.0, 2.0}}, float[1] bias = {{0.5}}> {{ {body} }}"
    )
    model, _, _ = apply(written, Layout(), inputs={"x": floats(2, 2, 4, 5)})
    # One Transpose is left, for the output; it moves one channel only, and so is a Reshape.
    assert sorted(operators(model)) == ["Add", "Conv", "Relu", "Relu", "Reshape"]


def test_of_two_places_that_cost_the_same_the_one_that_lets_a_convolution_take_in_its_bias_is_taken() -> None:
    body = "c = Conv(x, w) t = Transpose<perm = [0, 2, 3, 1]>(c) a = Add(t, bias) y = Relu(a)"
    written = (
        HEAD.format(opset=17)
        + f"agraph (float[n, 2, 4, 5] x) => (float[n, 4, 5, 2] y) <float[2, 2, 1, 1] w = {{1.0, 2.0, 3.0, 4.0}}, float[2] bias = {{0.5, 1.0}}> {{ {body} }}"
    )
    model, counts, _ = apply(written, Layout(), Layout(), inputs={"x": floats(2, 2, 4, 5)})
    assert counts == [1, 0]
    assert operators(model) == ["Conv", "Add", "Transpose", "Relu"]


def test_a_transpose_stays_beside_a_convolution_that_takes_nothing_in() -> None:
    """The runtime does it together with the conversion from its blocked layout."""
    body = "c = Conv(x, w) t = Transpose<perm = [0, 2, 3, 1]>(c) a = Abs(t) y = Sqrt(a)"
    written = (
        HEAD.format(opset=17)
        + f"agraph (float[n, 2, 4, 5] x) => (float[n, 4, 5, 2] y) <float[2, 2, 1, 1] w = {{1.0, 2.0, 3.0, 4.0}}> {{ {body} }}"
    )
    assert apply(written, Layout(), inputs={"x": floats(2, 2, 4, 5)})[1] == [0]


KEPT = {
    "nothing to be gained": "t = Transpose<perm = [0, 2, 3, 1]>(x) y = Relu(t)",
    "both sides fixed": "c = Conv(x, w) t = Transpose<perm = [0, 2, 3, 1]>(c) y = Abs(t)",
    "no Transposes": "a = Relu(x) y = Abs(a)",
}


@pytest.mark.parametrize("case", KEPT)
def test_a_graph_that_gains_nothing_is_left_alone(case: str) -> None:
    weight = ", ".join(["1.0"] * 9)
    written = (
        HEAD.format(opset=15)
        + f"agraph (float[n, 3, 4, 5] x) => (float[a, b, c, d] y) <float[3, 3, 1, 1] w = {{{weight}}}> {{ {KEPT[case]} }}"
    )
    assert apply(written, Layout(), inputs=X)[1] == [0]


def test_the_cheaper_side_is_transposed() -> None:
    """Two operands are transposed, and their sum is reduced: one Transpose of the small result is enough."""
    body = """a = Transpose<perm = [0, 2, 3, 1]>(x) b = Neg(a) m = ReduceMax<keepdims = 1>(b, four) y = Relu(m)"""
    written = (
        HEAD.format(opset=20)
        + f"agraph (float[n, 3, 4, 5] x) => (float[a, b, c, d] y) <int64[1] four = {{1}}> {{ {body} }}"
    )
    model, counts, _ = apply(written, Layout(), inputs=X)
    assert counts == [1]
    assert operators(model) == ["Neg", "ReduceMax", "Relu", "Transpose"] or operators(model)[-2:] == [
        "Transpose",
        "Relu",
    ]


def test_a_product_takes_its_rows_in_any_order() -> None:
    body = "a = MatMul(t, w) b = Relu(a) r = Abs(b)"
    inner = f"t = Transpose<perm = [0, 2, 1, 3]>(x) {body} y = Transpose<perm = [0, 2, 1, 3]>(r)"
    weight = ", ".join(f"{number:.2f}" for number in np.linspace(-1, 1, 10))
    written = (
        HEAD.format(opset=20)
        + f"agraph (float[n, 3, 4, 5] x) => (float[n, 3, 4, 2] y) <float[5, 2] w = {{{weight}}}> {{ {inner} }}"
    )
    assert operators(apply(written, Layout(), inputs=X)[0]) == ["MatMul", "Relu", "Abs"]


FLATTENED = {
    "product": "f = Reshape(t, flat) y = MatMul(f, w)",
    "Flatten": "f = Flatten(t) y = MatMul(f, w)",
    "Gemm": "f = Reshape(t, flat) y = Gemm(f, w)",
    "Gemm of columns": "f = Reshape(t, flat) y = Gemm<transB = 1>(f, v)",
}


@pytest.mark.parametrize("case", FLATTENED)
def test_the_rows_of_a_matrix_follow_what_is_flattened(case: str) -> None:
    rows = ", ".join(f"{number:.3f}" for number in np.random.default_rng(2).standard_normal(120))
    constants = f"int64[2] flat = {{0, -1}}, float[60, 2] w = {{{rows}}}, float[2, 60] v = {{{rows}}}"
    body = f"t = Transpose<perm = [0, 2, 3, 1]>(x) {FLATTENED[case]}"
    written = HEAD.format(opset=17) + f"agraph (float[n, 3, 4, 5] x) => (float[n, 2] y) <{constants}> {{ {body} }}"
    model = model_of(written)
    assert Layout().run(context_of(model)) == 1
    assert operators(model) == ["Reshape", "Gemm" if "Gemm" in case else "MatMul"]
    np.testing.assert_allclose(run(model, X)[0], run(proto_of(written), X)[0], rtol=1e-4, atol=1e-5)


def test_a_matrix_stays_if_what_is_flattened_is_used_elsewhere() -> None:
    rows = ", ".join(["1.5"] * 60)
    body = "t = Transpose<perm = [0, 2, 3, 1]>(x) f = Flatten(t) y = MatMul(f, w) z = Softmax<axis = 1>(f)"
    written = (
        HEAD.format(opset=17)
        + f"agraph (float[n, 3, 4, 5] x) => (float[n, 1] y, float[n, 60] z) <float[60, 1] w = {{{rows}}}> {{ {body} }}"
    )
    assert apply(written, Layout(), inputs=X)[1] == [0]


def test_swaps_in_front_of_products_cost_nothing() -> None:
    """The runtime merges them into the product, so the Transpose of a sum is better swapped there."""
    body = "t = Transpose<perm = [0, 1, 3, 2]>(x) s = MatMul(x, t) y = Softmax<axis = -1>(s)"
    written = HEAD.format(opset=20) + f"agraph (float[n, 3, 4, 5] x) => (float[n, 3, 4, 4] y) {{ {body} }}"
    assert apply(written, Layout(), inputs=X)[1] == [0]


def test_sizes_that_may_differ_are_not_weighed() -> None:
    """Which of two unrelated sizes is larger is not known, so what is transposed stays."""
    body = """a = Transpose<perm = [1, 0]>(x) b = Expand(a, shape) y = Relu(b)"""
    written = HEAD.format(opset=20) + f"agraph (float[n, m] x, int64[3] shape) => (float[a, b, c] y) {{ {body} }}"
    assert apply(written, Layout())[1] == [0]


def test_graphs_in_nodes_and_functions() -> None:
    written = (
        HEAD.format(opset=20)
        + """agraph (float[2,3,4,5] x, bool c) => (float[a,d,e,f] y)
        { y = If (c) <then_branch = t () => (float[a,d,e,f] q) { q = local.f(x) },
                      else_branch = e () => (float[a,d,e,f] o)
                        { s = Transpose<perm = [0, 2, 3, 1]>(x) p = Relu(s) o = Transpose<perm = [0, 3, 1, 2]>(p) }> }
        <domain: "local", opset_import: ["" : 20]> f (x) => (q) {
            three = Constant<value = float[3] {1.0, 2.0, 3.0}>()
            s = Transpose<perm = [0, 2, 3, 1]>(x) p = Add(s, three) q = Transpose<perm = [0, 3, 1, 2]>(p) }"""
    )
    for choice in (True, False):
        model, counts, _ = apply(written, Layout(), inputs={**X, "c": np.array(choice)})
        assert counts == [2]
        assert "Transpose" not in operators(model)


def test_values_that_something_else_needs_come_out_as_they_were() -> None:
    """An output, a value that a branch reads, and one whose shape is read."""
    body = """t = Transpose<perm = [0, 2, 3, 1]>(x) r = Relu(t) y = Transpose<perm = [0, 3, 1, 2]>(r) n = Shape(r)
        z = If (c) <then_branch = a () => (float[a,d,e,f] q) { q = Neg(r) },
                    else_branch = b () => (float[a,d,e,f] o) { o = Identity(r) }>"""
    written = (
        HEAD.format(opset=20)
        + f"agraph (float[2,3,4,5] x, bool c) => (float[a,d,e,f] y, float[g,h,i,j] z, int64[4] n) {{ {body} }}"
    )
    apply(written, Layout(), inputs={**X, "c": np.array(True)})


def test_rounding_is_declared_where_numbers_are_added_in_another_order() -> None:
    body = "m = ReduceMean<keepdims = 1>(t, inner) r = Sub(t, m)"
    model = model_of(text_of(body))
    before = run(proto_of(text_of(body)), X)
    context = context_of(model)
    assert Layout().run(context) == 1
    assert "Transpose" not in operators(model)
    np.testing.assert_allclose(run(model, X)[0], before[0], rtol=1e-5)


def test_a_transpose_of_a_transpose_is_left_to_the_canonical_form_which_would_merge_them_again() -> None:
    text = """<ir_version: 8, opset_import: ["": 20]> agraph (float[n, s, 2, 4] x, float[n, 2, q, 4] w) => (float[n, q, 2, 4] y) {
        v = Transpose<perm = [0, 2, 1, 3]>(x) k = Transpose<perm = [0, 2, 3, 1]>(x)
        a = MatMul(w, k) b = Tanh(a) c = MatMul(b, v) y = Transpose<perm = [0, 2, 1, 3]>(c) }"""
    report = PassManager("fixpoint{max_rounds=4}(canonicalize, layout)").run(model_of(text))
    assert report.after.operators == {"Transpose": 3, "MatMul": 2, "Tanh": 1}


@pytest.mark.parametrize(("kind", "quirks", "moves"), [
    ("int8", frozenset({Quirk.TURNS_SIGNED_PAIRS}), False),
    ("int8", frozenset(), True),
    ("uint8", frozenset({Quirk.TURNS_SIGNED_PAIRS}), True),
])  # fmt: skip
def test_nothing_comes_between_a_signed_pair_that_the_runtime_makes_unsigned(
    kind: str, quirks: frozenset[Quirk], moves: bool
) -> None:
    """It would not find the pair, and compute the product in float32."""
    text = f"""<ir_version: 8, opset_import: ["": 20]> agraph (float[n, 3, 8] x) => (float[3, n, 2] y)
        <float s = {{0.1}}, {kind} z = {{0}}, {kind}[8, 2] w = {{{", ".join("1" for _ in range(16))}}}> {{
        t = Transpose<perm = [1, 0, 2]>(x) q = QuantizeLinear(t, s, z) d = DequantizeLinear(q, s, z)
        v = DequantizeLinear(w, s, z) m = MatMul(d, v) p = QuantizeLinear(m, s, z) y = DequantizeLinear(p, s, z) }}"""
    model = model_of(text)
    context = context_of(model)
    context.target.quirks = quirks
    assert Layout().run(context) == moves
    assert (operators(model)[0] == "Transpose") is not moves
