"""Tests of the target portable: operators of the ONNX standard alone, up to a chosen opset."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import ortfuse
from ortfuse.targets import Target, resolve_target

GOLDEN = Path(__file__).parents[2] / "golden" / "models"


@pytest.fixture(scope="module")
def portable() -> Target:
    return resolve_target("portable")


def optimized(text: str, **options: object) -> ortfuse.Result:
    result = ortfuse.optimize(ir.from_onnx_text(text), target="portable", verify=True, **options)
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    return result


def counted(result: ortfuse.Result) -> Counter[str]:
    return Counter(node.op_type for node in result.model.graph)


def test_each_operator_of_the_standard_is_executed_on_the_types_of_its_definition(portable: Target) -> None:
    brain, single = ir.DataType.BFLOAT16, ir.DataType.FLOAT
    assert portable.supports("", "Gelu", 20, [brain])
    assert portable.supports("ai.onnx.ml", "Scaler", 1, [single])
    assert not portable.supports("", "Gelu", 20, [ir.DataType.INT32])
    assert not portable.supports("", "Gelu", 19, [single])
    assert portable.table.max_opset == onnx.defs.onnx_opset_version()


def test_no_operator_of_the_runtime_is(portable: Target) -> None:
    assert not portable.supports("com.microsoft", "Gelu", 1, [ir.DataType.FLOAT])
    assert not portable.supports("", "SimplifiedLayerNormalization", 17, [ir.DataType.FLOAT] * 2)


NORMALIZED_GELU = """<ir_version: 8, opset_import: ["": 17]>
g (float[b, 8] x, float[8] gain, float[8] shift) => (float[b, 8] y)
<int64[1] axes = {-1}, float two = {2}, float eps = {0.00001}, float root = {1.4142135}, float one = {1}, float half = {0.5}> {
    mean = ReduceMean<axes = [-1]>(x) d = Sub(x, mean) square = Pow(d, two)
    var = ReduceMean<axes = [-1]>(square) shifted = Add(var, eps) std = Sqrt(shifted) n = Div(d, std)
    scaled = Mul(n, gain) z = Add(scaled, shift)
    r = Div(z, root) e = Erf(r) p = Add(e, one) m = Mul(z, p) y = Mul(m, half)
}"""


@pytest.mark.parametrize(("opset", "made"), [(17, {"LayerNormalization": 1, "Erf": 1}), (20, {"Gelu": 1})])
def test_fusions_are_made_into_the_operators_of_the_chosen_opset(opset: int, made: dict[str, int]) -> None:
    result = optimized(NORMALIZED_GELU, max_opset=opset)
    assert counted(result) >= Counter(made)
    assert result.model.graph.opset_imports[""] <= opset
    assert all(not node.domain for node in result.model.graph)


def test_nothing_is_decomposed_for_the_speed_of_the_cpu() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2,8,16] x, float[2,8,16] z) => (float[2,8,16] y, float[2,8,1] m) {
        y = Softplus(x)
        m = ReduceMean<axes=[-1]>(z)
    }"""
    assert counted(optimized(text, max_opset=17)) == {"Softplus": 1, "ReduceMean": 1}


@pytest.mark.parametrize(("kind", "made"), [("float", "Resize"), ("double", "Expand"), ("int64", "Expand")])
def test_what_is_repeated_is_resized_in_the_types_of_pixels(kind: str, made: str) -> None:
    result = optimized(
        f"""<ir_version: 8, opset_import: ["": 17]> g ({kind}[b, 3, 4] x) => ({kind}[b, 3, 8] y)
        <int64[4] twice = {{1, 1, 1, 2}}, int64[3] target = {{0, 3, 8}}, int64[1] last = {{-1}}> {{
            apart = Unsqueeze(x, last)
            wide = Expand(apart, twice)
            y = Reshape(wide, target)
        }}""",
        max_opset=17,
    )
    assert made in counted(result)
    assert not [note for note in result.report.notes if "would not load" in note]


def test_operators_of_the_runtime_that_stay_are_named() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[2,4,4] x) => (float[2,4,4] y) { y = com.microsoft.Inverse(x) }"""
    result = ortfuse.optimize(ir.from_onnx_text(text), target="portable", max_opset=17)
    assert [note for note in result.report.notes if "com.microsoft.Inverse (1)" in note]


FUSED = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (float[b,s,8] x, float[b,s,8] k, float[8] g, float[8] h) => (float[b,s,8] y, float[b,s,8] t) {
    n, m, v, t = com.microsoft.SkipLayerNormalization<epsilon = 0.001>(x, k, g, h)
    a = com.microsoft.BiasGelu(n, h) c = com.microsoft.FastGelu(a) d = com.microsoft.QuickGelu(c)
    e = SimplifiedLayerNormalization(d, g) f = com.microsoft.FusedMatMul<transB = 1, alpha = 0.5>(e, k) z = MatMul(f, k)
    y, i, j, o = com.microsoft.SkipSimplifiedLayerNormalization(z, k, g)
}"""


@pytest.mark.parametrize(
    ("opset", "made"),
    [(17, {"LayerNormalization": 1, "Erf": 1, "Tanh": 1, "Sqrt": 2}), (23, {"Gelu": 2, "RMSNormalization": 2})],
)
def test_fused_operators_of_the_runtime_are_lowered(opset: int, made: dict[str, int]) -> None:
    result = optimized(FUSED, max_opset=opset)
    assert counted(result) >= Counter(made)
    assert all(not node.domain for node in result.model.graph)


LOWERED = {
    "attention": (
        "(float[b,s,8] q, float[b,t,8] k, float[b,t,8] v) => (float[b,s,8] y) { y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v) }",
        {"Softmax": 1, "MatMul": 2},
    ),
    "rotary embedding": (
        """(float[2,3,8] x, int64[2,3] p, float[5,2] c, float[5,2] s) => (float[2,3,8] y) {
        y = com.microsoft.RotaryEmbedding(x, p, c, s) }""",
        {"Gather": 2, "Concat": 1},
    ),
    "convolution": (
        """(float[n,3,6,6] x, float[4,3,3,3] w, float[4] b, float[n,4,4,4] z) => (float[n,4,4,4] y) {
        y = com.microsoft.FusedConv<activation = "Relu", kernel_shape = [3, 3]>(x, w, b, z) }""",
        {"Conv": 1, "Add": 1, "Relu": 1},
    ),
}


@pytest.mark.parametrize("name", LOWERED)
def test_operators_that_the_runtime_writes_into_models_are_lowered(name: str) -> None:
    text, made = LOWERED[name]
    result = optimized(f'<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g {text}', max_opset=17)
    assert counted(result) >= Counter(made)
    assert all(not node.domain for node in result.model.graph)


def in_few_bits(opset: int, bits: int, length: int, *, zeros: bool = True) -> onnx.ModelProto:
    """A product with weights [6, length] in blocks of 32."""
    inputs = "x, packed, scales, zeros, , bias" if zeros else "x, packed, scales, , , bias"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]>
        g (float[b,s,{length}] x) => (float[b,s,6] y) {{
            y = com.microsoft.MatMulNBits<K = {length}, N = 6, bits = {bits}, block_size = 32>({inputs}) }}"""
    )
    random, blocks = np.random.default_rng(0), -(-length // 32)
    made = {
        "packed": random.integers(0, 256, (6, blocks, 4 * bits)).astype(np.uint8),
        "scales": random.random(6 * blocks).astype(np.float32),
        "zeros": random.integers(0, 256, 6 * -(-blocks * bits // 8)).astype(np.uint8),
        "bias": random.random(6).astype(np.float32),
    }
    if not zeros:
        del made["zeros"]
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in made.items())
    return model


@pytest.mark.parametrize(("bits", "zeros"), [(4, True), (4, False), (8, True)])
@pytest.mark.parametrize(("opset", "wanted"), [(17, "Add"), (21, "DequantizeLinear")])
@pytest.mark.parametrize("length", [64, 70])
def test_weights_of_few_bits_are_dequantised(bits: int, zeros: bool, opset: int, wanted: str, length: int) -> None:
    model = in_few_bits(17, bits, length, zeros=zeros)
    result = ortfuse.optimize(model, target="portable", max_opset=opset, verify=True)
    made = result.model
    onnx.checker.check_model(made, full_check=True)
    assert wanted in {node.op_type for node in made.graph.node}
    assert all(not node.domain for node in made.graph.node)
    x = np.random.default_rng(1).standard_normal((2, 3, length)).astype(np.float32)
    found = ReferenceEvaluator(made).run(None, {"x": x})[0]
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    packed = [one for one in made.graph.initializer if one.data_type == onnx.TensorProto.UINT4]
    assert bool(packed) == (opset == 21 and bits == 4)


ATTENTIONS = {
    "bias of scores": ("q, k, v, , , m", "float[2,4,3,5] m", ""),
    "mask of keys": ("q, k, v, c, h", "float[48] c, int32[2,5] h", ""),
    "mask of queries and keys": ("q, k, v, , h, m", "int32[2,3,5] h, float[1,1,3,5] m", "mask_filter_value = -5.0,"),
    "past": ("q, k, v, c, h, m, p, r", "float[48] c, int32[2,7] h, float[2,4,3,7] m, float[2,4,2,4] p, float[2,4,2,4] r", ""),
    "heads in front": ("q, x, z", "float[2,4,5,4] x, float[2,4,5,4] z", "scale = 0.3,"),
    "causal": ("q, q, q", "float[1] unused", "unidirectional = 1,"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("opset", [17, 23])
def test_masked_attention_is_lowered(name: str, opset: int) -> None:
    given, more, attributes = ATTENTIONS[name]
    presents = ", nk, nv" if name == "past" else ""
    outs = ", float[2,4,7,4] nk, float[2,4,7,4] nv" if presents else ""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[2,3,16] q, float[2,5,16] k, float[2,5,16] v, {more}) => (float[2,3,16] y{outs}) {{
            y{presents} = com.microsoft.MultiHeadAttention<{attributes} num_heads = 4>({given}) }}"""
    )
    made = ortfuse.optimize(model, target="portable", max_opset=opset, verify=True).model
    onnx.checker.check_model(made, full_check=True)
    assert all(not node.domain for node in made.graph.node)
    random = np.random.default_rng(2)
    feeds = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = (
            np.maximum(random.integers(0, 2, shape), np.arange(shape[-1]) == 0).astype(np.int32)
            if value.name == "h"
            else random.standard_normal(shape).astype(np.float32)
        )
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    for wanted, found in zip(expected, ReferenceEvaluator(made).run(None, feeds), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_a_generator_becomes_portable() -> None:
    made = ortfuse.generator(GOLDEN / "llama_cache.sdpa.ts.onnx", max_length=24)
    model = ir.to_proto(made.model)
    lowered = ortfuse.optimize(model, target="portable", max_opset=18, loaded=False).model
    onnx.checker.check_model(lowered, full_check=True)
    assert all(not node.domain for node in lowered.graph.node)
    random = np.random.default_rng(4)
    for mask in (np.ones((2, 5)), np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])):
        feeds = {"input_ids": random.integers(0, 90, (2, 5)), "attention_mask": mask.astype(np.int64)}
        feeds |= {cache.past: np.zeros((2, 2, 24, 8), np.float32) for cache in made.interface.caches}
        presents = [cache.present for cache in made.interface.caches]
        for length in (5, 6):
            expected = onnxruntime.InferenceSession(model.SerializeToString()).run(["logits", *presents], feeds)
            found = ReferenceEvaluator(lowered).run(["logits", *presents], feeds)
            seen = feeds["attention_mask"][:, -expected[0].shape[1] :, None]
            np.testing.assert_allclose(found[0] * seen, expected[0] * seen, atol=1e-4)
            for wanted, one in zip(expected[1:], found[1:], strict=True):
                np.testing.assert_allclose(one, wanted, atol=1e-5)
            past = dict(zip((cache.past for cache in made.interface.caches), expected[1:], strict=True))
            lengths = feeds["attention_mask"].sum(-1, keepdims=True) + 1
            mask = (np.arange(length + 1) < lengths).astype(np.int64)
            feeds = {"input_ids": random.integers(0, 90, (2, 1)), "attention_mask": mask, **past}


def test_an_attention_that_ignores_its_past_stays() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[2,3,8] q, float[2,4,8] k, float[2,4,8] v, float[2,2,5,4] p, float[2,2,5,4] r) => (float[2,3,8] y) {
        y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v, , , , p, r) }"""
    made = ortfuse.optimize(ir.from_onnx_text(text), target="portable", max_opset=17).model
    assert [node.op_type for node in made.graph] == ["MultiHeadAttention"]
