"""Attention and embeddings as onnxruntime.transformers writes them become operators of the standard."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.verification import Session

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g '
MODELS = {
    "a mask of keys": """(float[b,4,6] x, float[6,24] w, float[24] c, int32[b,4] mask) => (float[b,4,8] r) {
        r = com.microsoft.Attention<num_heads = 2>(x, w, c, mask) }""",
    "lengths": """(float[b,4,6] x, float[6,24] w, float[24] c, int32[b] mask) => (float[b,4,8] r) {
        r = com.microsoft.Attention<num_heads = 2>(x, w, c, mask) }""",
    "causal after a past": """(float[2,3,6] x, float[6,24] w, float[24] c, int32[2,8] mask, float[2,2,2,5,4] past)
        => (float[2,3,8] r, float[2,2,2,8,4] s) {
        r, s = com.microsoft.Attention<num_heads = 2, unidirectional = 1>(x, w, c, mask, past) }""",
    "integers": """(uint8[b,4,6] x, float[24] c, float q, int32[b,4] mask) => (float[b,4,8] r)
        <int8[6,24] w = WEIGHT, float t = {0.0113}, uint8 z = {120}, int8 k = {0}> {
        r = com.microsoft.QAttention<num_heads = 2>(x, w, c, q, t, mask, z, k) }""",
    "embeddings": """(int32[b,4] ids, int32[b,4] kinds, float[9,8] words, float[7,8] places, float[3,8] rows, float[8] g,
        float[8] h, int32[b,4] mask) => (float[b,4,8] r, int32[b] s) {
        r, s = com.microsoft.EmbedLayerNormalization(ids, kinds, words, places, rows, g, h, mask) }""",
}
BELOW = {"ids": 9, "kinds": 3, "mask": 2}
GENERATION = "float[2,4,64] q, float[2,4,32] k, float[2,4,32] v, {0}[2,2,9,16] past, {0}[2,2,9,16] values, float[9,{1}] cos, float[9,{1}] sin"
DECODERS = {
    "positions": ("float", "c, d, positions", ""),
    "integer caches": ("int8", "c, d, , , , s, s", ', k_quant_type = "PER_TENSOR", v_quant_type = "PER_TENSOR", kv_cache_bit_width = 8'),
}  # fmt: skip
ROTATIONS = {
    "neighbours": ("float[2,3,24] x, int64[2,3] positions", "interleaved = 1", 4),
    "a part of each head": ("float[2,3,24] x, int64[2,3] positions", "num_heads = 2, rotary_embedding_dim = 8", 4),
    "from a position on": ("float[2,4,3,8] x, int64[1] positions", "interleaved = 1", 4),
}


def parsed(name: str) -> ir.Model:
    numbers = np.random.default_rng(1).integers(-127, 128, 144)
    text = MODELS[name].replace("WEIGHT", f"{{{', '.join(map(str, numbers))}}}")
    return ir.from_proto(onnx.parser.parse_model(HEAD + text))


def inputs(model: ir.Model) -> dict[str, np.ndarray]:
    rng, made = np.random.default_rng(5), {}
    for value in model.graph.inputs:
        shape = [dim if isinstance(dim, int) else 3 for dim in value.shape or ()]
        name = value.name or ""
        if value.dtype == ir.DataType.FLOAT:
            made[name] = np.asarray(rng.standard_normal(shape), np.float32)
        elif value.dtype == ir.DataType.UINT8:
            made[name] = rng.integers(0, 256, shape).astype(np.uint8)
        else:
            made[name] = rng.integers(0, BELOW[name], shape).astype(np.int32)
    if "mask" in made:
        mask = made["mask"]
        made["mask"] = (
            np.arange(1, 4, dtype=np.int32) if mask.ndim == 1 else np.maximum(mask, np.arange(mask.shape[-1]) == 0)
        )
    return made


@pytest.mark.parametrize("name", MODELS)
def test_a_result_has_operators_of_the_standard_alone(name: str) -> None:
    model = parsed(name)
    given = inputs(model)
    expected = Session(model, optimise=False).run(given)
    result = ortfuse.optimize(model, target="portable", verify=True)
    assert result.verdict is not None and result.verdict.ok
    assert {node.domain for node in result.model.graph} == {""}
    names = [value.name for value in result.model.graph.outputs]
    found = onnx.reference.ReferenceEvaluator(ir.to_proto(result.model)).run(None, given)
    for key, value in zip(names, found, strict=True):
        np.testing.assert_allclose(value, expected[key or ""], atol=1e-4)


def ran(result: ir.Model, original: ir.Model, given: dict[str, np.ndarray]) -> None:
    """Compare outputs of a result with operators of the standard alone, in the runtime and by ONNX, with the kernel's."""
    assert {node.domain for node in result.graph} == {""}
    expected = Session(original, optimise=False).run(given)
    found = Session(result, optimise=False).run(given)
    by_onnx = onnx.reference.ReferenceEvaluator(ir.to_proto(result)).run(None, given)
    for (key, value), other in zip(expected.items(), by_onnx, strict=True):
        np.testing.assert_allclose(found[key], value, atol=1e-5)
        np.testing.assert_allclose(other, value, atol=1e-5)


@pytest.mark.parametrize("name", DECODERS)
def test_attention_of_decoders_is_lowered(name: str) -> None:
    dtype, operands, attributes = DECODERS[name]
    inputs = GENERATION.format(dtype, 8)
    operands = operands.replace("c, d", "cos, sin")
    text = f"""({inputs}, int64[2,4] positions) => (float[2,4,64] r, {dtype}[2,2,9,16] t, {dtype}[2,2,9,16] u)
        <int32[2] lengths = {{3, 1}}, int32[1] total = {{4}}, float[1] s = {{0.03}}> {{
        r, t, u = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, do_rotary = 1{attributes}>(
            q, k, v, past, values, lengths, total, {operands}) }}"""
    model = ir.from_proto(onnx.parser.parse_model(HEAD + text))
    rng = np.random.default_rng(0)
    given = {}
    for value in model.graph.inputs:
        assert value.dtype is not None and value.shape is not None
        numbers = rng.standard_normal(value.shape.numpy()) * (40 if value.dtype == ir.DataType.INT8 else 1)
        given[value.name or ""] = numbers.astype(value.dtype.numpy())
    given["positions"] = np.array([[2, 7, 0, 1], [5, 5, 3, 8]])
    ran(ortfuse.optimize(model.clone(), target="portable").model, model, given)


@pytest.mark.parametrize("name", ROTATIONS)
def test_rotary_embeddings_are_lowered(name: str) -> None:
    inputs, attributes, half = ROTATIONS[name]
    shape = inputs.split("float")[1].split("]")[0]
    text = f"""({inputs}, float[9,{half}] cos, float[9,{half}] sin) => (float{shape}] r) {{
        r = com.microsoft.RotaryEmbedding<{attributes}>(x, positions, cos, sin) }}"""
    model = ir.from_proto(onnx.parser.parse_model(HEAD + text))
    rng = np.random.default_rng(0)
    given = {
        value.name or "": rng.integers(0, 6, value.shape.numpy())
        if value.dtype == ir.DataType.INT64
        else np.asarray(rng.standard_normal(value.shape.numpy()), np.float32)
        for value in model.graph.inputs
        if value.shape is not None
    }
    ran(ortfuse.optimize(model.clone(), target="portable").model, model, given)


def test_packed_operands_are_taken_apart() -> None:
    text = """(float[b,s,2,3,4] x, float[b,t,2,2,4] y, float[b,s,8] q) => (float[b,s,8] r, float[b,s,8] u) {
        r = com.microsoft.MultiHeadAttention<num_heads = 2>(x) u = com.microsoft.MultiHeadAttention<num_heads = 2>(q, y) }"""
    apart = """(float[b,s,2,3,4] x, float[b,t,2,2,4] y, float[b,s,8] q) => (float[b,s,8] r, float[b,s,8] u)
        <int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64[3] flat = {0, 0, 8}> {
        a = Gather<axis = 3>(x, zero) b = Gather<axis = 3>(x, one) c = Gather<axis = 3>(x, two)
        d = Gather<axis = 3>(y, zero) e = Gather<axis = 3>(y, one)
        f = Reshape(a, flat) g = Reshape(b, flat) h = Reshape(c, flat) i = Reshape(d, flat) j = Reshape(e, flat)
        r = com.microsoft.MultiHeadAttention<num_heads = 2>(f, g, h) u = com.microsoft.MultiHeadAttention<num_heads = 2>(q, i, j) }"""
    model, meant = (ir.from_proto(onnx.parser.parse_model(HEAD + one)) for one in (text, apart))
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 3, 2, 3, 4), "y": (2, 5, 2, 2, 4), "q": (2, 3, 8)}
    given = {name: np.asarray(rng.standard_normal(shape), np.float32) for name, shape in shapes.items()}
    fixed = ir.from_proto(
        onnx.parser.parse_model((HEAD + text).replace("b,", "2,").replace("s,", "3,").replace("t,", "5,"))
    )
    made = ortfuse.optimize(fixed, target="cpu").model
    expected = Session(meant, optimise=False).run(given)
    for name, value in Session(made, optimise=False).run(given).items():
        np.testing.assert_allclose(value, expected[name], atol=1e-5)
    ran(ortfuse.optimize(model, target="portable").model, meant, given)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("num_heads = 2", "num_heads = 2, do_rotary = 1"),
        ("int32[b] mask", "int32[m] mask"),
        ("float[6,24] w", "float[6,n] w"),
    ],
    ids=["a rotary embedding inside", "a mask of unknown size", "unknown widths"],
)
def test_what_is_not_known_to_be_the_same_stays(old: str, new: str) -> None:
    text = MODELS["lengths"].replace(old, new)
    assert text != MODELS["lengths"]
    result = ortfuse.optimize(ir.from_proto(onnx.parser.parse_model(HEAD + text)), target="portable")
    assert [node.op_type for node in result.model.graph] == ["Attention"]
    assert any("Attention" in note for note in result.report.notes)


@pytest.mark.parametrize(
    "text",
    [
        """(float[b,4,6] x, float[6,24] w, float[1,1,4,4] bias) => (float[b,4,8] r) {
            r = com.microsoft.Attention<num_heads = 2, unidirectional = 1>(x, w, , , , bias) }""",
        """(float[b,4,6] x, float[6,24] w, int32[b,4] mask) => (float[b,4,8] r) {
            r = com.microsoft.Attention<num_heads = 2, unidirectional = 1, mask_filter_value = -3.4e38>(x, w, , mask) }""",
        """(float[b,4,6] x, float[6,28] w) => (float[b,4,12] r, float[2,b,2,4,p] s) {
            r, s = com.microsoft.Attention<num_heads = 2, qkv_hidden_sizes = [8, 8, 12]>(x, w) }""",
    ],
    ids=["causal with a bias", "causal with the lowest filler", "a present of two sizes"],
)
def test_what_the_kernel_computes_in_another_way_stays(text: str) -> None:
    result = ortfuse.optimize(ir.from_proto(onnx.parser.parse_model(HEAD + text)), target="portable")
    assert [node.op_type for node in result.model.graph] == ["Attention"]


WITHOUT_KEYS = {
    "a comparison": ("Attention", "bool[b,1,3,4] shown", "mask = Where(shown, zero, lowest)"),
    "of -inf": ("Attention", "bool[b,1,3,4] shown", "mask = Where(shown, zero, inf)"),
    "with a bias": ("Attention", "bool[b,1,3,4] shown, float[b,1,3,4] bias", "n = Where(shown, zero, lowest) mask = Add(n, bias)"),
    "with a bias of heads": ("Softmax", "bool[b,1,3,4] shown, float[1,2,3,4] bias", "n = Where(shown, zero, lowest) mask = Add(n, bias)"),
    "by buckets": ("Softmax", "bool[b,1,3,4] shown, float[32,2] table, int64[3,4] bucket", """
        rows = Gather(table, bucket) turned = Transpose<perm = [2, 0, 1]>(rows) bias = Unsqueeze(turned, first)
        n = Where(shown, zero, lowest) mask = Add(bias, n)"""),
    "given": ("Attention", "float[b,1,3,4] given", "mask = Identity(given)"),
    "given for heads": ("Softmax", "float[b,2,3,4] given", "mask = Identity(given)"),
}  # fmt: skip
"""The operator in the result, the further inputs of a model, and how its mask is computed of them."""


@pytest.mark.parametrize("fused", [False, True], ids=["", "contrib"])
@pytest.mark.parametrize("name", WITHOUT_KEYS)
def test_a_row_without_keys_is_the_same_in_each_kernel(name: str, fused: bool) -> None:
    """ONNX Runtime gives zeros where all keys have the lowest number, other kernels the mean of values."""
    kept, more, mask = WITHOUT_KEYS[name]
    scores = """qs = Reshape(q, apart) ks = Reshape(k, apart) vs = Reshape(v, apart)
        qt = Transpose<perm = [0, 2, 1, 3]>(qs) kt = Transpose<perm = [0, 2, 3, 1]>(ks) vt = Transpose<perm = [0, 2, 1, 3]>(vs)
        scores = MatMul(qt, kt) masked = Add(scores, mask) p = Softmax<axis = -1>(masked)
        o = MatMul(p, vt) t = Transpose<perm = [0, 2, 1, 3]>(o) r = Reshape(t, merged)"""
    contrib = "r = com.microsoft.MultiHeadAttention<num_heads = 2, scale = 1.0>(q, k, v, , , mask)"
    text = f"""<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>
        g (float[b,3,8] q, float[b,4,8] k, float[b,4,8] v, {more}) => (float[b,3,8] r)
        <int64[4] apart = {{0, 0, 2, 4}}, int64[3] merged = {{0, 0, 8}}, int64[1] first = {{0}}, float zero = {{0}},
        float lowest = {{-3.4028235e38}}, float inf = {{-inf}}> {{ {mask} {contrib if fused else scores} }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    result = ortfuse.optimize(model, target="portable").model
    assert kept in {node.op_type for node in result.graph}
    rng = np.random.default_rng(2)
    shown = rng.random((2, 1, 3, 4)) > 0.5
    shown[0, 0, 1] = False
    given = {
        "shown": shown,
        "bucket": rng.integers(0, 32, (3, 4)),
        "given": np.where(
            shown, np.zeros((1, 1 if kept == "Attention" else 2, 1, 1), np.float32), np.float32(-3.4028235e38)
        ),
    }
    shapes = {"q": (2, 3, 8), "k": (2, 4, 8), "v": (2, 4, 8), "table": (32, 2)}
    shapes["bias"] = (1, 2, 3, 4) if kept == "Softmax" else (2, 1, 3, 4)
    given |= {key: np.asarray(rng.standard_normal(shape), np.float32) for key, shape in shapes.items()}
    given = {value.name or "": given[value.name or ""] for value in model.graph.inputs}
    expected = Session(model, optimise=False).run(given)["r"]
    assert np.isnan(expected).any() == (name == "of -inf")
    np.testing.assert_allclose(Session(result, optimise=False).run(given)["r"], expected, atol=1e-5)
    found = onnx.reference.ReferenceEvaluator(ir.to_proto(result)).run(None, given)[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)
