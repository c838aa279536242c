"""Attention where a kernel and the graph could differ: scales, sinks, unequal groups, empty axes, lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from attention_models import BOOLEAN, INPUTS, LOWEST, model, optimized, scores_to_result
from graphs import run

import ortfuse


def test_keys_and_values_are_as_long_as_each_other_if_the_run_succeeds() -> None:
    m = model(
        f"qk = MatMul(q, kt) masked = Mul(qk, half) {scores_to_result()}",
        INPUTS.replace("float[b,2,t,4] v", "float[b,2,u,4] v"),
    )
    assert "Attention" in [node.op_type for node in ortfuse.optimize(m).model.graph]


@pytest.mark.parametrize("lengths", [("t", "t"), ("p", "n")])
def test_a_mask_of_open_length_is_as_long_as_the_keys_if_the_run_succeeds(lengths: tuple[str, str]) -> None:
    past, new = lengths
    text = f"""<ir_version: 10, opset_import: ["": 23]> g (float[b,2,s,4] q, float[b,2,{past},4] past, float[b,2,{new},4] new,
        float[2,1,u] mask) => (float[b,2,s,4] out) {{ k = Concat<axis = 2>(past, new) kt = Transpose<perm = [0, 1, 3, 2]>(k)
        qk = MatMul(q, kt) sum = Add(qk, mask) p = Softmax<axis = -1>(sum) out = MatMul(p, k) }}"""
    m = ir.from_onnx_text(text)
    result = ortfuse.optimize(m).model
    assert "Attention" in [node.op_type for node in result.graph]
    rng = np.random.default_rng(0)
    for length in (8, 1):
        sizes = {"q": (2, 2, 3, 4), "past": (2, 2, 4, 4), "new": (2, 2, 4, 4), "mask": (2, 1, length)}
        feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in sizes.items()}
        before, after = (run(one, feeds)[0] for one in (ir.from_onnx_text(text), result))
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by_length", [False, True])
def test_values_that_one_softmax_weighs_are_weighed_together(by_length: bool) -> None:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 23]> g ({INPUTS}, float[b,2,t,3] w) => (float[b,x,y,7] out)
        {{ kt = Transpose<perm = [0, 1, 3, 2]>(k) qk = MatMul(q, kt) p = Softmax<axis = -1>(qk) first = MatMul(p, v)
        second = MatMul(p, w) {
            "one = Transpose<perm = [0, 2, 1, 3]>(first) two = Transpose<perm = [0, 2, 1, 3]>(second)"
            if by_length
            else "one = Identity(first) two = Identity(second)"
        } out = Concat<axis = -1>(one, two) }}"""
    )
    made = optimized(ir.from_proto(proto))
    assert made.count("Attention") == 1
    assert "Softmax" not in made


@pytest.mark.parametrize("filler", [LOWEST, -np.inf])
def test_a_sink_is_a_key_that_no_row_hides(filler: float) -> None:
    body = f"""{BOOLEAN} qk = MatMul(q, kt) sum = Add(qk, mask) lengths = Shape<start = 0, end = 3>(q)
        one = Constant<value_ints = [1]>() shape = Concat<axis = 0>(lengths, one) wide = Expand(sinks, shape)
        both = Concat<axis = -1>(sum, wide) p = Softmax<axis = -1>(both) first = Constant<value_ints = [0]>()
        end = Constant<value_ints = [-1]>() axis = Constant<value_ints = [3]>() kept = Slice(p, first, end, axis)
        out = MatMul(kept, v)"""
    sinks = np.array([0.5, -0.25]).reshape(1, 2, 1, 1)
    made = optimized(model(body, f"{INPUTS}, bool[b,1,s,t] keep", filler=filler, sinks=sinks))
    assert "Attention" in made
    assert not {"Softmax", "Max"} & set(made)


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_a_scale_that_no_kernel_takes_stays(scale: float) -> None:
    body = f"qk = MatMul(q, kt) masked = Mul(qk, scale) {scores_to_result()}"
    made = optimized(model(body, scale=scale))
    assert "Attention" not in made
    assert "MultiHeadAttention" not in made


def test_an_axis_that_is_empty_stays() -> None:
    inputs = "float[b,2,s,4] q, float[b,2,0,4] k, float[b,2,0,4] v"
    body = f"qk = MatMul(q, kt) masked = Mul(qk, half) {scores_to_result()}"
    assert "Attention" not in optimized(model(body, inputs))


def test_key_and_value_heads_repeated_unequally_are_not_grouped() -> None:
    m = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 23]> g (float[1,6,5,4] q, float[1,2,5,4] k, float[1,3,5,4] v) => (float[1,6,5,4] out)
        <int64[1] two = {2}, int64[5] three_times = {1, 2, 3, 5, 4}, int64[5] twice = {1, 3, 2, 5, 4}, int64[4] six = {1, 6, 5, 4}> {
        ku = Unsqueeze(k, two) ke = Expand(ku, three_times) kr = Reshape(ke, six)
        vu = Unsqueeze(v, two) ve = Expand(vu, twice) vr = Reshape(ve, six)
        out = Attention<scale = 0.5>(q, kr, vr) }"""
    )
    assert optimized(m).count("Expand") == 2


def product_only(body: str, dtype: str = "float") -> list[str]:
    text = f"""<ir_version: 9, opset_import: ["": 17]>
        g ({dtype}[b,2,s,4] q, {dtype}[b,2,4,t] k, {dtype}[2,1,1] f, bool[b,1,s,t] keep) => ({dtype}[b,2,s,t] y)
        <float filler = {{-1e38}}> {{ p = MatMul(q, k) {body} }}"""
    m = ir.from_onnx_text(text)
    return [node.op_type for node in ortfuse.optimize(m).model.graph]


def test_a_quotient_of_integers_is_not_moved_into_the_product() -> None:
    assert product_only("y = Div(p, f)", "int64") == ["MatMul", "Div"]


@pytest.mark.parametrize("body", ["y = Div(p, f)", "y = Mul(p, f)", "y = Where(keep, p, filler)"])
def test_products_that_are_no_scores_of_a_softmax_are_left_alone(body: str) -> None:
    assert product_only(body) == ["MatMul", body.split()[2].partition("(")[0]]


def test_keys_of_the_length_that_was_traced_are_read_as_they_are() -> None:
    """As `torch.nn.MultiheadAttention` is exported with an open length: only its keys and values have a number for it."""
    parts = " ".join(
        f"{name} = MatMul(x, W{name}) {name}3 = Reshape({name}, {shape}) {name}s = Transpose<perm = [1, 0, 2]>({name}3) {name}4 = Reshape({name}s, {four})"
        for name, shape, four in (("q", "open", "heads"), ("k", "fixed", "fixed4"), ("v", "fixed", "fixed4"))
    )
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 17]> g (float[t,b,8] x) => (float[t,b,8] out) {{
        size = Shape(x) n = Gather(size, at1) m = Mul(n, two) many = Unsqueeze(m, first)
        length = Slice(size, first, first1) batch = Unsqueeze(n, first) open = Concat<axis = 0>(length, many, four)
        fixed = Concat<axis = 0>(five, many, four) heads = Concat<axis = 0>(batch, two1, length, four) {parts}
        kt = Transpose<perm = [0, 1, 3, 2]>(k4) qk = MatMul(q4, kt) scaled = Mul(qk, half) p = Softmax<axis = -1>(scaled)
        o = MatMul(p, v4) ot = Transpose<perm = [2, 0, 1, 3]>(o) out = Reshape(ot, size) }}"""
    )
    numbers: dict[str, Any] = {
        "at1": 1,
        "two": 2,
        "first": [0],
        "first1": [1],
        "four": [4],
        "five": [5],
        "two1": [2],
        "fixed4": [-1, 2, 5, 4],
    }
    for name, number in numbers.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(number, np.int64), name))
    rng = np.random.default_rng(0)
    for name in ("Wq", "Wk", "Wv"):
        proto.graph.initializer.append(
            onnx.numpy_helper.from_array(rng.standard_normal((8, 8)).astype(np.float32), name)
        )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.5), "half"))
    result = ortfuse.optimize(proto).model
    assert [node.op_type for node in result.graph.node].count("Transpose") == 2, "of the input and the output"
    (attention,) = [node for node in result.graph.node if node.op_type == "Attention"]
    assert {one.name: one.i for one in attention.attribute}["q_num_heads"] == 2
    for shape in ((5, 3, 8), (5, 1, 8)):
        x = rng.standard_normal(shape).astype(np.float32)
        for old, new in zip(run(proto, {"x": x}), run(result, {"x": x}), strict=True):
            np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalised", ["before", "after"])
@pytest.mark.parametrize("rotation", ["RotaryEmbedding({0}, angles, angles)", "Identity({0})"])
def test_heads_that_are_normalised_on_their_own_are_merged_again_instead_of_transposed(
    normalised: str, rotation: str
) -> None:
    """As Qwen3, Gemma3 (before their heads are moved) and Exaone4 (after) do, with and without rotation, and a cache."""
    norm, move = "{1} = RMSNormalization<axis = -1>({0}, gain)", "{1} = Transpose<perm = [0, 2, 1, 3]>({0})"
    steps = [norm, move] if normalised == "before" else [move, norm]
    parts = " ".join(
        f"{name}4 = Reshape({name}, heads) {steps[0].format(f'{name}4', f'{name}5')} {steps[1].format(f'{name}5', f'{name}6')}"
        f" {name}r = {rotation.format(f'{name}6')}"
        for name in "qk"
    )
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 23]> g (float[b,s,8] q, float[b,s,8] k, float[b,s,8] v, float[b,s,2] angles,
        float[b,2,p,4] pk, float[b,2,p,4] pv) => (float[b,s,8] out, float[b,2,t,4] keys, float[b,2,t,4] values)
        <int64[4] heads = {{0, 0, 2, 4}}, int64[3] merged = {{0, 0, 8}}, float[4] gain = {{0.5, 1.5, -1.0, 2.0}}, float half = {{0.5}}>
        {{ {parts} v4 = Reshape(v, heads) v6 = Transpose<perm = [0, 2, 1, 3]>(v4)
        keys = Concat<axis = 2>(pk, kr) values = Concat<axis = 2>(pv, v6) kt = Transpose<perm = [0, 1, 3, 2]>(keys)
        qk = MatMul(qr, kt) scaled = Mul(qk, half) soft = Softmax<axis = -1>(scaled) o = MatMul(soft, values)
        ot = Transpose<perm = [0, 2, 1, 3]>(o) out = Reshape(ot, merged) }}"""
    )
    kinds = optimized(ir.from_proto(proto))
    assert kinds.count("Attention") == 1
    assert "Transpose" not in kinds


def test_moved_heads_that_something_else_reads_too_are_normalised_where_they_are() -> None:
    """Normalised before, they would be moved twice; the layout takes that back, and so on."""
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 23]>
        g (float[b,s,2,4] x, float[4] gain) => (float[b,2,s,4] y, float[b,2,s,4] z) {
        t = Transpose<perm = [0, 2, 1, 3]>(x) y = LayerNormalization<axis = -1>(t, gain) z = Relu(t) }""")
    result = ortfuse.optimize(model)
    assert not result.report.failures
    assert [node.op_type for node in result.model.graph].count("Transpose") == 1


def test_heads_of_two_sequences_are_joined_before_they_are_moved() -> None:
    """As in the blocks of Stable Diffusion 3 and Flux: image and text attend to each other."""
    parts = " ".join(
        f"{name}{side}4 = Reshape({name}{side}, heads) {name}{side}5 = Transpose<perm = [0, 2, 1, 3]>({name}{side}4)"
        for name in "qkv"
        for side in "xc"
    )
    joined = " ".join(f"{name} = Concat<axis = 2>({name}x5, {name}c5)" for name in "qkv")
    inputs = ", ".join(
        f"float[b,{length},8] {name}{side}" for name in "qkv" for side, length in (("x", "s"), ("c", "t"))
    )
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 23]> g ({inputs}) => (float[b,n,8] out)
        <int64[4] heads = {{0, 0, 2, 4}}, int64[3] merged = {{0, 0, 8}}, float half = {{0.5}}>
        {{ {parts} {joined} kt = Transpose<perm = [0, 1, 3, 2]>(k) qk = MatMul(q, kt) scaled = Mul(qk, half)
        soft = Softmax<axis = -1>(scaled) o = MatMul(soft, v) ot = Transpose<perm = [0, 2, 1, 3]>(o) out = Reshape(ot, merged) }}"""
    )
    kinds = optimized(ir.from_proto(proto))
    assert kinds.count("Attention") == 1
    assert "Transpose" not in kinds


def _groups(mask: str, added: str, *, keys: str = "b,2,1,t,4") -> ir.Model:
    return ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 23]> g (float[b,2,3,s,4] q, float[{keys}] k, float[{keys}] v{mask})
        => (float[b,2,3,s,4] out) <float half = {{0.5}}, float zero = {{0.0}},
        float low = {{-10000.0}}> {{ kt = Transpose<perm = [0, 1, 2, 4, 3]>(k) qk = MatMul(q, kt)
        scaled = Mul(qk, half) {added} p = Softmax<axis = -1>(scores) out = MatMul(p, v) }}"""
    )


@pytest.mark.parametrize(
    "shape", [(), (5, 7), (2, 1, 1, 5, 7), (2, 1, 1, 7), (3, 5, 7), (2, 2, 3, 5, 7), (1, 2, 1, 1, 7)]
)
def test_heads_of_groups_need_no_keys_repeated(shape: tuple[int, ...]) -> None:
    names = ["b"] if len(shape) == 5 and shape[0] == 2 else []
    dims = ",".join(names + [{5: "s", 7: "t"}.get(size, str(size)) for size in shape[len(names) :]])
    spelled = "mask = Where(keep, zero, low) scores = Add(scaled, mask)"
    mask, added = (f", bool[{dims}] keep", spelled) if shape else ("", "scores = Identity(scaled)")
    m = _groups(mask, added)
    result = ortfuse.optimize(m).model
    made = [node.op_type for node in result.graph]
    assert made.count("Attention") == 1
    assert not {"Softmax", "Tile"} & {*made}
    rng = np.random.default_rng(0)
    sizes = {"q": (2, 2, 3, 5, 4), "k": (2, 2, 1, 7, 4), "v": (2, 2, 1, 7, 4)}
    feeds = {name: rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    if shape:
        feeds["keep"] = rng.random(shape) < 0.7
    before, after = (run(one, feeds)[0] for one in (_groups(mask, added), result))
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


def test_groups_with_keys_for_some_of_their_heads_stay() -> None:
    assert "Attention" not in optimized(_groups("", "scores = Identity(scaled)", keys="b,1,3,t,4"))


def _turned(body: str, *, result: str = "b,2,4,s") -> ir.Model:
    return ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 23]> g (float[b,s,2,4] q, float[b,t,2,4] k, float[b,t,2,4] v)
        => (float[{result}] out) <float half = {{0.5}}> {{ {body} }}"""
    )


FIRST = """heads = Transpose<perm = [0, 2, 1, 3]>(q) keys = Transpose<perm = [0, 2, 3, 1]>(k) qk = MatMul(heads, keys)
    scaled = Mul(qk, half) p = Softmax<axis = -1>(scaled) pt = Transpose<perm = [0, 1, 3, 2]>(p)"""
OVER_ROWS = """heads = Transpose<perm = [0, 2, 3, 1]>(q) keys = Transpose<perm = [0, 2, 1, 3]>(k) kq = MatMul(keys, heads)
    scaled = Mul(kq, half) p = Softmax<axis = -2>(scaled) pt = Transpose<perm = [0, 1, 3, 2]>(p)"""
TURNED = "values = Transpose<perm = [0, 2, 3, 1]>(v) product = MatMul(values, pt)"


def test_values_may_come_first() -> None:
    m = _turned(f"{FIRST} {TURNED} out = Transpose<perm = [0, 3, 1, 2]>(product)", result="b,s,2,4")
    assert "Softmax" not in optimized(m)


def test_keys_may_be_the_rows_of_the_scores() -> None:
    product = "values = Transpose<perm = [0, 2, 1, 3]>(v) product = MatMul(pt, values)"
    m = _turned(f"{OVER_ROWS} {product} out = Transpose<perm = [0, 2, 1, 3]>(product)", result="b,s,2,4")
    assert "Softmax" not in optimized(m)


def test_values_stay_first_where_that_would_transpose_more() -> None:
    assert "Softmax" in optimized(_turned(f"{FIRST} {TURNED} out = Neg(product)"))


@pytest.mark.parametrize(("factor", "taken"), [("0.5", True), ("-0.5", False)])
def test_a_factor_of_rotated_queries_is_part_of_the_scale(factor: str, taken: bool) -> None:
    m = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 23]> g (float[b,2,s,4] q, float[b,2,t,4] k, float[b,s,2] cos, float[b,s,2] sin)
        => (float[b,2,s,4] out) <float c = {{{factor}}}> {{ scaled = Mul(q, c) turned = RotaryEmbedding(scaled, cos, sin)
        out = Attention<scale = 0.7>(turned, k, k) }}"""
    )
    assert optimized(m).count("Mul") == 1 - taken
