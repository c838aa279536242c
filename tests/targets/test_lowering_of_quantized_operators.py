"""Operators of com.microsoft on integers become operators of the standard, for targets that have no kernels for them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.verification import Session

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g '
SCALES = """<float s = {0.0213}, float t = {0.0317}, float[1] t1 = {0.0317}, float u = {0.0509}, float p = {0.00390625},
    int8 z = {3}, int8 w = {-5}, int8[1] w1 = {-5}, int8 v = {0}, uint8 k = {128}, uint8 n = {0}, int8 m = {-128},
    int8[4,2] weight = {1, -7, 100, 3, -90, 5, 2, 60}, float[2] columns = {0.01, 0.02}, int8[2] none = {0, 0},
    int32[2] c = {100, -3}, float[2] bias = {0.5, -0.25}>"""
MODELS = {
    "sum": "(int8[a,4] x, int8[a,4] y) => (int8[a,4] r) BODY { r = com.microsoft.QLinearAdd(x, s, z, y, t, w, u, v) }",
    "product": "(int8[a,4] x, int8[4] y) => (int8[a,4] r) BODY { r = com.microsoft.QLinearMul(x, s, z, y, t, w, u, v) }",
    "sigmoid": "(int8[a,4] x) => (int8[a,4] r) BODY { r = com.microsoft.QLinearSigmoid(x, t1, w1, p, m) }",
    "softmax of a middle axis": """(uint8[2,3,4] x) => (uint8[2,3,4] r) BODY {
        r = com.microsoft.QLinearSoftmax<axis = 1, opset = 13>(x, s, k, p, n) }""",
    "joined": """(uint8[a,4] x, uint8[a,3] y) => (uint8[a,7] r) BODY {
        r = com.microsoft.QLinearConcat<axis = -1>(u, k, x, s, n, y, t, k) }""",
    "means of images": """(uint8[a,3,5,5] x) => (uint8[a,3,1,1] r) BODY {
        r = com.microsoft.QLinearGlobalAveragePool<channels_last = 0>(x, s, k, t, n) }""",
    "gemm": """(uint8[3,4] x) => (uint8[3,2] r) BODY {
        r = com.microsoft.QGemm(x, t, k, weight, columns, none, c, u, k) }""",
    "gemm of floats": """(uint8[3,4] x) => (float[3,2] r) BODY {
        r = com.microsoft.QGemm<alpha = 0.5>(x, t, k, weight, columns, none, c) }""",
    "floats of a product": """(uint8[a,3,4] x, float q) => (float[a,3,2] r) BODY {
        r = com.microsoft.MatMulIntegerToFloat(x, weight, q, columns, k, none, bias) }""",
    "quantised in the run": """(float[a,3,4] x) => (float[a,3,2] r) BODY {
        r = com.microsoft.DynamicQuantizeMatMul(x, weight, s, , bias) }""",
    "channels last": """(uint8[a,5,6,2] x) => (uint8[a,4,2,1] r) <uint8[1,2,2,2] kernel = {1, 130, 100, 3, 90, 5, 200, 60},
        float s = {0.0213}, float t = {0.0317}, float u = {0.509}, uint8 k = {128}> {
        y = com.microsoft.QLinearConv<channels_last = 1>(x, s, k, kernel, t, k, u, k)
        r = com.microsoft.NhwcMaxPool<kernel_shape = [1, 3], strides = [1, 2]>(y) }""",
    "a table of blocks": """(int64[a] x) => (float[a,32] r) <uint8[3,16] table = {TABLE}, float[3,2] steps = {0.5, 0.25, 1, 2, 3, 4}> {
        r = com.microsoft.GatherBlockQuantized<block_size = 16, bits = 4>(table, x, steps) }""",
    "pairs": """(float[a,4] x) => (float[a,4] r) BODY {
        q = com.microsoft.QuantizeLinear(x, s, k) r = com.microsoft.DequantizeLinear(q, s, k) }""",
}

TABLE = ", ".join(map(str, np.random.default_rng(4).integers(0, 256, 48)))


def parsed(name: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(HEAD + MODELS[name].replace("BODY", SCALES).replace("TABLE", TABLE)))


def inputs(model: ir.Model) -> dict[str, np.ndarray]:
    rng, made = np.random.default_rng(3), {}
    for value in model.graph.inputs:
        shape = [dim if isinstance(dim, int) else 5 for dim in value.shape or ()]
        assert value.dtype is not None
        if value.dtype == ir.DataType.FLOAT:
            made[value.name or ""] = np.asarray(rng.standard_normal(shape), np.float32)
        elif value.dtype == ir.DataType.INT64:
            made[value.name or ""] = rng.integers(0, 3, shape)
        else:
            limits = np.iinfo(value.dtype.numpy())
            made[value.name or ""] = rng.integers(limits.min, limits.max + 1, shape).astype(value.dtype.numpy())
    return made


@pytest.mark.parametrize("name", MODELS)
def test_a_result_has_operators_of_the_standard_alone(name: str) -> None:
    model = parsed(name)
    given = inputs(model)
    expected = Session(model, optimise=False).run(given)["r"]
    result = ortfuse.optimize(model, target="portable", verify=True)
    assert result.verdict is not None and result.verdict.ok
    assert {node.domain for node in result.model.graph} == {""}
    found = onnx.reference.ReferenceEvaluator(ir.to_proto(result.model)).run(None, given)[0]
    assert found.dtype == expected.dtype
    step = 1 if expected.dtype.kind in "iu" else 1e-5
    assert np.abs(found.astype(np.float64) - expected.astype(np.float64)).max() <= step
    assert np.mean(found != expected) < 0.2 or expected.dtype.kind == "f"


@pytest.mark.parametrize(
    ("scale", "why"), [("inf", "kernels saturate in another way"), ("0.02, 0.03, 0.04, 0.05", "the scales of an axis")]
)
def test_odd_scales_stay(scale: str, why: str) -> None:
    size = "[4]" if "," in scale else ""
    text = f"""(int8[a,4] x, int8[a,4] y) => (int8[a,4] r) <float{size} s = {{{scale}}}, float t = {{0.1}}, int8 z = {{0}}> {{
        r = com.microsoft.QLinearAdd(x, s, z, y, t, z, t, z) }}"""
    model = ir.from_proto(onnx.parser.parse_model(HEAD + text))
    result = ortfuse.optimize(model, target="portable").model
    assert [node.op_type for node in result.graph] == ["QLinearAdd"], why


REFUSED = {
    "a quotient of scales beyond int32": """(uint8[a,4] x, uint8[a,4] y) => (uint8[a,4] r)
        <float s = {1e30}, float t = {1e-30}, uint8 k = {128}> { r = com.microsoft.QLinearAdd(x, s, k, y, t, k, t, k) }""",
    "a window cut off that counts padding": """(uint8[a,3,6,6] x) => (uint8[a,3,3,3] r)
        <float s = {0.02}, uint8 k = {128}> { r = com.microsoft.QLinearAveragePool<
        kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1, count_include_pad = 1>(x, s, k, s, k) }""",
    "an infinite scale of a part": """(uint8[a,4] x, uint8[a,3] y) => (uint8[a,7] r)
        <float s = {0.02}, float t = {inf}, uint8 k = {128}> {
        r = com.microsoft.QLinearConcat<axis = 1>(s, k, x, s, k, y, t, k) }""",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_kernel_computes_in_another_way_stays(name: str) -> None:
    model = ir.from_proto(onnx.parser.parse_model(HEAD + REFUSED[name]))
    result = ortfuse.optimize(model.clone(), target="portable").model
    assert [node.op_type for node in result.graph] == [node.op_type for node in model.graph]


@pytest.mark.parametrize("axis", [", 1", ""])
def test_long_sums_of_integers_stay_exact(axis: str) -> None:
    """float32 rounds sums of 8,192 products of which the largest cancel by several steps."""
    rows = 8192
    column = np.repeat(np.array([127, -127], np.int8), rows // 2).reshape(-1, *[1] * bool(axis))
    weight = ir.Value(name="w", const_value=ir.tensor(column, name="w"))
    model = ir.from_proto(onnx.parser.parse_model(HEAD + f"""(uint8[2,{rows}] x, int8[{rows}{axis}] w) => (uint8[2{axis}] r)
        <float s = {{0.02}}, uint8 k = {{128}}, int8 z = {{0}}> {{ r = QLinearMatMul(x, s, k, w, s, z, s, k) }}"""))  # fmt: skip
    given = next(value for value in model.graph.inputs if value.name == "w")
    model.graph.inputs.remove(given)
    given.const_value = weight.const_value
    model.graph.initializers["w"] = given
    result = ortfuse.optimize(model, target="tensorrt").model
    assert [node.op_type for node in result.graph] == ["QLinearMatMul"]


def test_they_stay_where_there_are_kernels() -> None:
    result = ortfuse.optimize(parsed("sum")).model
    assert [node.op_type for node in result.graph] == ["QLinearAdd"]


def test_sums_in_the_middle_of_two_steps_are_as_good_on_either_side() -> None:
    """The kernel and the lowered form round numbers that are next to the middle in different ways."""
    text = """(float[4096] x, float[4096] y) => (float[4096] r) <float s = {0.007843106053769588}, float t = {0.003921568859368563},
        float u = {0.007843130268156528}, uint8 k = {128}, uint8 n = {0}> {
        a = QuantizeLinear(x, s, k) b = QuantizeLinear(y, t, n) c = com.microsoft.QLinearAdd(a, s, k, b, t, n, u, k)
        r = DequantizeLinear(c, u, k) }"""
    model = ir.from_proto(onnx.parser.parse_model(HEAD + text))
    result = ortfuse.optimize(model, target="portable")
    assert {node.domain for node in result.model.graph} == {""}
    places = np.meshgrid(np.arange(64), np.arange(64))
    given = {
        "x": (places[0].ravel() * 0.0078431).astype(np.float32),
        "y": (places[1].ravel() * 0.0039216).astype(np.float32),
    }
    one, other = (Session(each, optimise=False).run(given)["r"] for each in (model, result.model))
    assert (one != other).any()
    assert np.abs(one - other).max() < 0.0079
    assert ortfuse.verify(model, result.model, inputs=[given]).ok


PRODUCTS = {
    "a convolution": """(uint8[a,2,5,5] x) => (uint8[a,4,3,3] r) BODY {
        r = QLinearConv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, s, k, filters, scales, zeros, u, k, offsets) }""",
    "a product": "(uint8[a,3,4] x) => (uint8[a,3,2] r) BODY { r = QLinearMatMul(x, s, k, weight, columns, none, u, k) }",
    "a product of two computed operands": """(uint8[a,3,8] x, uint8[a,8,b] y) => (uint8[a,3,b] r) BODY {
        r = QLinearMatMul(x, s, k, y, t, k, u, k) }""",
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_integer_products_become_pairs_where_only_those_are_known(name: str) -> None:
    filters = np.random.default_rng(0).integers(-127, 128, 72)
    more = f""", int8[4,2,3,3] filters = {{{", ".join(map(str, filters))}}}, float[4] scales = {{0.01, 0.02, 0.01, 0.03}},
        int8[4] zeros = {{0, 0, 0, 0}}, int32[4] offsets = {{9, -200, 40, 0}}>"""
    model = ir.from_proto(onnx.parser.parse_model(HEAD + PRODUCTS[name].replace("BODY", SCALES[:-1] + more)))
    result = ortfuse.optimize(model, target="tensorrt", verify=True)
    assert result.verdict is not None and result.verdict.ok
    assert not {"QLinearConv", "QLinearMatMul"} & {node.op_type for node in result.model.graph}
    given = inputs(model)
    one, other = (Session(each, optimise=False).run(given)["r"] for each in (model, result.model))
    assert np.abs(one.astype(int) - other).max() <= 1
    assert {node.op_type for node in ortfuse.optimize(model, target="portable").model.graph} == {
        node.op_type for node in model.graph
    }
