"""Decompositions of slow CPU kernels: what is decomposed, what is not, and that it stays right."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from rewriting import both, ops, parse, rewritten, same

X = np.array([[np.nan, np.inf, -np.inf, -0.0, 0.0], [1e-40, 1e38, 4.0, -4.0, 2.0]], np.float32)
NUMBERS = """float half = {0.5}, int64[1] last = {1}, int64[3] row = {1, 2, 3}, int64[2] gap = {1, 3}, int64[3] back = {4, 2, 0}, int64[3] uneven = {0, 1, 3},
    int64[2] ends = {-2, -1}, int64[2] both = {0, -1},
    int64 one = {1}"""

RESPELLED = {
    "s = Abs(x) y = Pow(s, half)": "Abs Sqrt",
    "y = Pow(x, half)": "Pow",
    "y = Gather<axis=1>(x, row)": "Slice",
    "y = Gather<axis=-1>(x, gap)": "Slice",
    "y = Gather<axis=-1>(x, back)": "Slice",
    "y = Gather<axis=-1>(x, uneven)": "Gather",
    "y = Gather<axis=1>(x, ends)": "Gather",
    "y = ReduceL1(x, last)": "Abs ReduceSum",
    "y = ReduceL1(x)": "ReduceL1",
    "y = ReduceSumSquare(x, last)": "Mul ReduceSum",
    "y = ReduceSumSquare(x, both)": "ReduceSumSquare",
    "y = ReduceL2(x, both)": "ReduceL2",
    "a = Abs(x) y = ReduceSum(a, both)": "ReduceL1",
    "q = Mul(x, x) y = ReduceSum(q)": "ReduceSumSquare",
    "q = Mul(x, x) s = ReduceSum(q, both) y = Sqrt(s)": "ReduceL2",
    "q = Mul(x, x) y = ReduceSum(q, last)": "Mul ReduceSum",
    "q = Mul(x, x) y = ReduceSum<noop_with_empty_axes=1>(q)": "Mul ReduceSum",
    "y = ReduceL2(x, last)": "Mul ReduceSum Sqrt",
    "y = ReduceLogSumExp(x, last)": "ReduceMax Min Max Sub Exp ReduceSum Log Add",
    "y = ReduceLogSumExp<keepdims=0>(x, last)": "ReduceMax Min Max Sub Exp ReduceSum Log Add Squeeze",
    "s = Sin(x) y = ReduceLogSumExp(s, last)": "Sin ReduceMax Sub Exp ReduceSum Log Add",
}


@pytest.mark.parametrize("body", RESPELLED)
def test_a_slow_operator_is_spelled_anew(body: str) -> None:
    original = parse(
        f"""<ir_version: 9, opset_import: ["": 20]> g (float[n,5] x) => (float[n,m] y) <{NUMBERS}> {{ {body} }}"""
    )
    result = rewritten(original, "target_decompositions")
    assert ops(result) == RESPELLED[body]
    same(original, result, {"x": X})


def test_means_of_half_precision_are_left_alone() -> None:
    """The runtime takes them in float32, with what is before and behind; the weights of a product would be rounded."""
    body = "q = Mul(x, x) m = ReduceMean<keepdims=0>(q, first) y = Sqrt(m)"
    original = parse(
        f"""<ir_version: 9, opset_import: ["": 20]> g (float16[5,n,8] x) => (float16[n,8] y) <int64[1] first = {{0}}>
        {{ {body} }}"""
    )
    result = rewritten(original, "target_decompositions")
    assert ops(result) == "Mul ReduceMean Sqrt"
    large = (1e4 * np.random.default_rng(0).standard_normal((5, 3, 8))).astype(np.float16)
    before, after = both(original, result, {"x": large})
    assert np.array_equal(before, after) and np.isfinite(after).all()


SLOPES = {"0.5, 0.5, 0.5, 0.5": "LeakyRelu", "0.5, 0.5, 0.5, 0.25": "PRelu"}


@pytest.mark.parametrize("slopes", SLOPES)
def test_one_slope_for_all_channels_is_a_number(slopes: str) -> None:
    original = with_weights(f"float[n,4,5] x) => (y) <float[4,1] a = {{{slopes}}}> {{ y = PRelu(x, a) }}")
    result = rewritten(original, "fuse.activation")
    assert ops(result) == SLOPES[slopes]
    same(original, result, {"x": np.random.default_rng(0).standard_normal((2, 4, 5)).astype(np.float32)})


CURVES = {
    "y = Mish(x)": "Min Exp Add Mul Add Div Mul",
    "s = Softplus(x) t = Tanh(s) y = Mul(t, x)": "Min Exp Add Mul Add Div Mul",
    "y = Softplus(x)": "Relu Abs Neg Exp Add Log Max Sub Max Div Mul Add",
    "h = Mul(x, half) t = Tanh(h) a = Add(t, one) y = Mul(a, half)": "Sigmoid",
    "t = Tanh(x) a = Mul(half, t) y = Add(half, a)": "Mul Sigmoid",
    "t = Tanh(x) a = Mul(half, t) y = Add(one, a)": "Tanh Mul Add",
    "p = Greater(x, half) y = Where(p, one, zero)": "Greater Cast",
    "p = Greater(x, half) y = Where(p, zero, one)": "Greater Not Cast",
    "p = Greater(x, half) y = Where(p, half, zero)": "Greater Where",
    "p = Greater(x, half) y = Where(p, wide, zero)": "Greater Where",
}


@pytest.mark.parametrize("body", CURVES)
def test_a_slow_curve_is_written_out(body: str) -> None:
    shape = "[2,n,5]" if "wide" in body else "[n,5]"
    numbers = "float half = {0.5}, float one = {1}, float zero = {0}, float[2,1,1] wide = {1, 1}"
    original = parse(
        f"""<ir_version: 9, opset_import: ["": 20]> g (float[n,5] x) => (float{shape} y) <{numbers}> {{ {body} }}"""
    )
    result = rewritten(original, "target_decompositions")
    assert sorted(ops(result).split()) == sorted(CURVES[body].split())
    curve = np.array([[np.nan, np.inf, -np.inf, -0.0, 1e-30], [-90.0, -17.0, -0.5, 19.5, 1e38]], np.float32)
    same(original, result, {"x": curve})


def test_a_small_softplus_keeps_its_digits() -> None:
    original = parse(
        """<ir_version: 9, opset_import: ["": 20]> g (float[n,5] x) => (float[n,5] y) { s = Softplus(x) y = Log(s) }"""
    )
    result = rewritten(original, "target_decompositions")
    assert "Softplus" not in ops(result)
    same(original, result, {"x": np.array([[-80.0, -30.0, -16.0, -8.0, -1.0]], np.float32)})


SUMS = {
    "a = Add(x, c) s = Add(a, z)": "Sum",
    "a = Add(c, x) s = Add(z, a)": "Sum",
    "a = Add(x, c) b = Add(a, z) s = Add(b, z)": "Sum",
    "a = Add(x, c) b = Add(z, c) s = Add(a, b)": "Add Sum",
    "a = Add(x, c) b = Neg(a) d = Add(b, z) s = Add(a, d)": "Add Neg Sum",
}


@pytest.mark.parametrize("body", SUMS)
def test_sums_before_a_normalisation_are_one_sum_in_their_order(body: str) -> None:
    original = parse(f"""<ir_version: 9, opset_import: ["": 20]> g (float[n,3,4] x, float[n,3,4] z) => (float[n,3,4] y)
        <float[4] c = {{1, 2, 3, 5}}, float[4] g = {{1, 2, 1, 3}}> {{ {body} y = LayerNormalization(s, g) }}""")
    result = rewritten(original, "fuse.ort_workarounds")
    assert ops(result) == f"{SUMS[body]} LayerNormalization"
    x = np.random.default_rng(0).standard_normal((2, 2, 3, 4)).astype(np.float32)
    before, after = both(original, result, {"x": 1000 * x[0], "z": x[1]})
    assert np.array_equal(before, after)


COLUMNS = {
    "y = ReduceSum<keepdims=0>(x, one)": "Conv Reshape",
    "y = ReduceMean<keepdims=1, axes=[1]>(x)": "Conv Div Reshape",
    "s = Slice(x, one, five, one) y = ReduceMean<keepdims=1, axes=[1]>(s)": "Slice Reshape Conv Reshape",
    "y = ReduceMean<keepdims=1, axes=[0,1]>(x)": "ReduceMean",
    "y = ReduceMean<keepdims=0, axes=[1,2]>(x)": "Reshape Conv Div Reshape",
    "y = ReduceMean<keepdims=0, axes=[3]>(x)": "ReduceMean",
    "y = ReduceMax<keepdims=0, axes=[1]>(x)": "ReduceMax",
}


@pytest.mark.parametrize("body", COLUMNS)
def test_columns_are_summed_by_a_product(body: str) -> None:
    original = with_weights(f"float[n,6,4,5] x) => (y) <int64[1] one = {{1}}, int64[1] five = {{5}}> {{ {body} }}")
    result = rewritten(original, "target_decompositions")
    assert ops(result) in (COLUMNS[body], f"Reshape {COLUMNS[body]}")
    same(original, result, {"x": np.random.default_rng(0).standard_normal((2, 6, 4, 5)).astype(np.float32)})


@pytest.mark.parametrize("rows", [5, 6, 49])
def test_the_mean_of_equal_rows_leaves_of_them_what_it_did(rows: int) -> None:
    """With weights of 1 / rows, the rounding of these would be left once the mean is taken away."""
    original = with_weights(f"float[n,{rows},4] x) => (y) {{ m = ReduceMean<keepdims=1, axes=[1]>(x) y = Sub(x, m) }}")
    result = rewritten(original, "target_decompositions")
    assert "Conv Div" in ops(result)
    x = np.repeat(12544.482 * np.random.default_rng(0).standard_normal((2, 1, 4)), rows, 1).astype(np.float32)
    before, after = both(original, result, {"x": x})
    assert np.array_equal(before, after)


@pytest.mark.parametrize(
    ("shape", "found"), [("n,6,4", "Conv Reshape"), ("2,6,n", "MatMul Reshape"), ("n,6,m", "ReduceSum")]
)
def test_columns_of_an_empty_batch_are_summed(shape: str, found: str) -> None:
    """The runtime refuses the product of one row with no matrices, and the convolution of no columns."""
    original = with_weights(f"float[{shape}] x) => (y) <int64[1] one = {{1}}> {{ y = ReduceSum<keepdims=0>(x, one) }}")
    result = rewritten(original, "target_decompositions")
    assert ops(result) == found
    for size in (0, 3) if found == "Conv Reshape" else (3,):
        same(
            original,
            result,
            {"x": np.ones([int(dim) if dim.isdigit() else size for dim in shape.split(",")], np.float32)},
        )


@pytest.mark.parametrize("outputs", ["y", "y, , , total"])
def test_a_slow_fused_normalisation_is_taken_apart(outputs: str) -> None:
    original = with_weights(
        f"""float[2,3,8] x, float[2,3,8] z) => (y{", total" if "total" in outputs else ""})
        {{ {outputs} = com.microsoft.SkipLayerNormalization<epsilon=0.00001>(x, z, w, b, s) }}""",
        w=(8,),
        b=(8,),
        s=(8,),
    )
    result = rewritten(original, "target_decompositions")
    assert ops(result) == ("SkipLayerNormalization" if "total" in outputs else "Sum LayerNormalization")
    draw = np.random.default_rng(0).standard_normal
    same(original, result, {name: draw((2, 3, 8)).astype(np.float32) for name in "xz"})


IMAGES = {
    "y = Softmax<axis=1>(x)": "Reshape Softmax Reshape",
    "y = LogSoftmax<axis=-3>(x)": "Reshape LogSoftmax Reshape",
    "y = Hardmax<axis=1>(x)": "Reshape Hardmax Reshape",
    "y = Softmax<axis=2>(x)": "Softmax",
    "y = Softmax<axis=0>(x)": "Reshape Softmax Reshape",
    "y = GlobalAveragePool(x)": "ReduceMean",
    "y = AveragePool<kernel_shape=[4,5]>(x)": "ReduceMean",
    "y = AveragePool<kernel_shape=[4,4]>(x)": "AveragePool",
    "m = Abs(x) y = MaxPool<kernel_shape=[4,5], strides=[2,2]>(m)": "Abs GlobalMaxPool",
    "y = MaxPool<kernel_shape=[4,5], strides=[2,2]>(x)": "MaxPool",
    "y = GlobalMaxPool(x)": "GlobalMaxPool",
    "m = MaxPool<kernel_shape=[1,1]>(x) y = GlobalAveragePool(m)": "MaxPool GlobalAveragePool",
    "m = MaxPool<kernel_shape=[1,1]>(x) y = ReduceMean<axes=[2,3]>(m)": "MaxPool GlobalAveragePool",
    "m = MaxPool<kernel_shape=[1,1]>(x) y = ReduceMean<axes=[2,3], keepdims=0>(m)": "MaxPool ReduceMean",
    "y = ReduceMean<axes=[2,3]>(x)": "ReduceMean",
}


@pytest.mark.parametrize("body", IMAGES)
def test_images_in_another_spelling(body: str) -> None:
    original = with_weights(f"float[n,16,4,5] x) => (y) {{ {body} }}")
    result = rewritten(original, "target_decompositions")
    assert ops(result) == IMAGES[body]
    same(original, result, {"x": np.random.default_rng(0).standard_normal((2, 16, 4, 5)).astype(np.float32)})


BLOCKS = {
    "y = ReduceMean<axes=[3,5], keepdims=0>(s)": "AveragePool",
    "y = ReduceMean<axes=[-1,3], keepdims=0>(s)": "AveragePool",
    "y = ReduceMean<axes=[3,5]>(s)": "Reshape ReduceMean",
    "y = ReduceMean<axes=[2,5], keepdims=0>(s)": "Reshape ReduceMean",
    "y = ReduceMax<axes=[3,5], keepdims=0>(s)": "Reshape ReduceMax",
}
"""A maximum is left: pools make something else of NaN."""


@pytest.mark.parametrize("body", BLOCKS)
def test_means_of_blocks_of_pixels_are_pools(body: str) -> None:
    original = with_weights(
        f"float[n,3,4,6] x) => (y) <int64[6] to = {{0, 3, 2, 2, 2, 3}}> {{ s = Reshape(x, to) {body} }}"
    )
    result = rewritten(original, "target_decompositions")
    assert ops(result) == BLOCKS[body]
    same(original, result, {"x": np.random.default_rng(0).standard_normal((2, 3, 4, 6)).astype(np.float32)})


ONE_COLUMN = {
    "float[n,m,64] x) => (y) { y = MatMul(x, vector) }": "FusedMatMul Squeeze",
    "float[n,m,64] x, float[64] v) => (y) { y = MatMul(x, v) }": "Unsqueeze FusedMatMul Squeeze",
    "float[n,m,64] x) => (y) { y = MatMul(x, column) }": "FusedMatMul Squeeze Unsqueeze",
    "float[n,64] x) => (y) { y = MatMul(x, column) }": "MatMul",  # a batch, of one perhaps
    "float[n,1,64] x) => (y) { y = MatMul(x, column) }": "MatMul",
    "float[n,m,64] x) => (y) { y = MatMul(x, matrix) }": "MatMul",
}


@pytest.mark.parametrize("body", ONE_COLUMN)
def test_products_with_one_column_read_the_other_factor_transposed(body: str) -> None:
    original = with_weights(body, vector=(64,), column=(64, 1), matrix=(64, 2))
    result = rewritten(original, "target_decompositions")
    assert ops(result) == ONE_COLUMN[body]
    rng = np.random.default_rng(0)
    rows = {"[n,m,": (3, 5, 64), "[n,64": (3, 64), "[n,1,": (3, 1, 64)}
    shape = next(shape for start, shape in rows.items() if start in body)
    given = {"x": rng.standard_normal(shape).astype(np.float32)}
    same(original, result, given | ({"v": rng.standard_normal(64).astype(np.float32)} if "float[64] v" in body else {}))


def test_what_the_runtime_computes_in_integers_keeps_its_spelling() -> None:
    original = with_weights("""uint8[1,16,4,5] x) => (y) <float s = {0.5}, uint8 z = {0}>
        { d = DequantizeLinear(x, s, z) p = GlobalAveragePool(d) y = QuantizeLinear(p, s, z) }""")
    assert ops(rewritten(original, "target_decompositions")) == "DequantizeLinear GlobalAveragePool QuantizeLinear"


def test_the_mean_of_an_image_of_unknown_size_is_a_reduction() -> None:
    original = with_weights("float[n,c,h,w] x) => (y) { y = GlobalAveragePool(x) }")
    assert ops(rewritten(original, "target_decompositions")) == "ReduceMean"


def test_softmax_of_an_image_of_unknown_size_is_computed_over_rows() -> None:
    original = with_weights("float[n,3,h,w] x) => (y) { y = Softmax<axis=1>(x) }")
    result = rewritten(original, "target_decompositions")
    assert ops(result).endswith("Reshape Softmax Shape Reshape")
    for shape in ((2, 3, 4, 5), (1, 3, 1, 7), (2, 3, 0, 5), (0, 3, 4, 5)):
        same(original, result, {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)})


LENGTHS = {
    "y = LpNormalization<axis=1>(x)": "Mul Conv Sqrt Equal Where Div",
    "y = LpNormalization<axis=0, p=1>(x)": "Abs ReduceSum Equal Where Div",
    "y = LpNormalization<axis=-1>(x)": "LpNormalization",
}


@pytest.mark.parametrize("body", LENGTHS)
def test_vectors_are_divided_by_their_lengths(body: str) -> None:
    original = with_weights(f"float[n,3,4] x) => (y) {{ {body} }}")
    result = rewritten(original, "target_decompositions")
    assert ops(result) == LENGTHS[body]
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    x[:, :, 0], x[0, :, 1], x[1, :, 2] = 0, np.nan, np.inf
    same(original, result, {"x": x})


ROWS = {
    "y = Conv<group=4, pads=[2,0], strides=[2]>(x, w)": "Unsqueeze Conv Squeeze",
    "y = Conv<group=2>(x, v)": "Conv",
    "m = Abs(x) y = MaxPool<kernel_shape=[3], pads=[1,1]>(m)": "Abs Unsqueeze MaxPool Squeeze",
    "y = MaxPool<kernel_shape=[3], pads=[1,1]>(x)": "MaxPool",
    "y, i = MaxPool<kernel_shape=[3]>(x)": "MaxPool",
    "y = AveragePool<kernel_shape=[2], strides=[2]>(x)": "Unsqueeze AveragePool Squeeze",
    "y = AveragePool<kernel_shape=[7]>(x)": "ReduceMean",
}


@pytest.mark.parametrize("body", ROWS)
def test_rows_are_images_of_one_line(body: str) -> None:
    original = with_weights(f"float[n,4,7] x) => (y) {{ {body} }}", w=(4, 1, 3), v=(4, 2, 3))
    result = rewritten(original, "target_decompositions")
    assert ops(result) == ROWS[body]
    same(original, result, {"x": np.random.default_rng(0).standard_normal((2, 4, 7)).astype(np.float32)})


ACTIVATED = {
    "m = MatMul(x, w) y = Relu(m)": "Gemm Relu",
    "m = MatMul(x, w) y = LeakyRelu<alpha=0.2>(m)": "Gemm LeakyRelu",
    "m = MatMul(x, w) y = Exp(m)": "MatMul Exp",
    "m = MatMul(x, w) a = Relu(m) y = Add(a, m)": "MatMul Relu Add",
}


@pytest.mark.parametrize("body", ACTIVATED)
def test_products_in_front_of_activations_are_what_the_runtime_computes_with_these(body: str) -> None:
    original = with_weights(f"float[n,5] x) => (y) {{ {body} }}", w=(5, 4))
    result = rewritten(original, "target_decompositions")
    assert ops(result) == ACTIVATED[body]
    for rows in (0, 1, 3):
        x = np.random.default_rng(0).standard_normal((rows, 5)).astype(np.float32)
        x[:1, 1], x[2:, 2] = np.nan, np.inf
        same(original, result, {"x": x})


SIZES = {
    "s = Shape(x) y = Slice(s, one, two)": "Shape",
    "s = Shape(x) y = Slice(s, zero, two, zero, one)": "Shape",
    "s = Shape(x) y = Slice(s, zero, two, zero, two)": "Shape Slice",
    "s = Shape(x) y = Slice(s, one, zero)": "Shape Slice",
}


@pytest.mark.parametrize("body", SIZES)
def test_sizes_in_a_row_are_asked_for_alone(body: str) -> None:
    numbers = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}"
    original = with_weights(f"float[n,m,5] x) => (int64[k] y) <{numbers}> {{ {body} }}")
    result = rewritten(original, "target_decompositions")
    assert ops(result) == SIZES[body]
    same(original, result, {"x": np.ones((0, 3, 5), np.float32)})


def with_weights(body: str, **shapes: tuple[int, ...]) -> ir.Model:
    """A model of the text, with those weights that occur in it as random constants."""
    used = {name: shape for name, shape in shapes.items() if f" {name})" in body or f" {name}," in body}
    inputs = "".join(f"float[{','.join(map(str, shape))}] {name}, " for name, shape in used.items())
    made = ir.from_proto(
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g ({inputs}{body}')
    )
    for value in [value for value in made.graph.inputs if value.name in used]:
        made.graph.inputs.remove(value)
        array = np.random.default_rng(1).standard_normal(used[str(value.name)]).astype(np.float32)
        value.const_value = ir.tensor(array, name=value.name)
        made.graph.register_initializer(value)
    return made
