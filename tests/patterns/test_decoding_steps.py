"""What is left outside the heavy kernels when one token is decoded, and where a graph only looks as if it decoded one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from graphs import run
from rewriting import parse

import ortfuse


def optimised(text: str, opset: int = 17, **sizes: int) -> tuple[Counter[str], ir.Model]:
    """The operators and the graph after everything, which computes the same for these sizes."""
    before = parse(f'<ir_version: 9, opset_import: ["": {opset}]> g {text}')
    after = ortfuse.optimize(before.clone()).model
    rng = np.random.default_rng(0)
    feeds = {}
    for value in before.graph.inputs:
        shape = [dim if isinstance(dim, int) else sizes[str(dim)] for dim in value.shape or ()]
        made = rng.standard_normal(shape)
        feeds[value.name] = made > -0.5 if value.dtype == ir.DataType.BOOL else made.astype(np.float32)
    for old, new in zip(run(before, feeds), run(after, feeds), strict=True):
        np.testing.assert_allclose(new, old, rtol=2e-5, atol=2e-6)
    return Counter(node.op_type for node in after.graph), after


def grouped(queries: int, rows: int, keep: str = "b,1,1,t") -> str:
    """Attention of 4 heads, two of which share keys and values, written as rows of the groups."""
    return f"""(float[b,4,{queries},8] q, float[b,2,t,8] k, float[b,2,t,8] v, bool[{keep}] keep) => (float[b,4,{queries},8] out)
        <int64[4] there = {{0, 2, {rows}, 8}}, int64[4] back = {{0, 4, {queries}, 8}}, float nothing = {{0}}, float far = {{-10000}}>
        {{ rows = Reshape(q, there) kt = Transpose<perm = [0, 1, 3, 2]>(k) scores = MatMul(rows, kt)
        mask = Where(keep, nothing, far) sum = Add(scores, mask) p = Softmax<axis = -1>(sum) w = MatMul(p, v)
        out = Reshape(w, back) }}"""


def test_heads_of_a_group_as_rows_are_grouped_attention() -> None:
    found, after = optimised(grouped(1, 2), b=3, t=5)
    assert found["Attention"] == 1
    assert "Reshape" not in found
    attention = next(node for node in after.graph if node.op_type == "Attention")
    assert attention.inputs[0] is after.graph.inputs[0]


@pytest.mark.parametrize(("queries", "rows", "keep"), [(3, 6, "b,1,1,t"), (1, 2, "b,1,2,t"), (1, 2, "b,2,1,t")])
def test_rows_of_several_queries_or_with_masks_of_their_own_stay(queries: int, rows: int, keep: str) -> None:
    assert optimised(grouped(queries, rows, keep), b=3, t=5)[0]["Reshape"] == 2


@pytest.mark.parametrize("groups", [1, 2])
def test_a_mask_that_is_repeated_for_rows_groups_and_keys_is_one_of_all_heads(groups: int) -> None:
    found, _ = optimised(
        f"""(float[b,6,1,8] q, float[b,2,t,8] k, float[b,2,t,8] v, float[1,1,1,1] bias) => (float[b,6,1,8] out)
        <int64[4] there = {{0, 2, 3, 8}}, int64[4] back = {{0, 6, 1, 8}}, int64[2] repeated = {{{groups}, 3}}>
        {{ batch = Shape<start = 0, end = 1>(k) keys = Shape<start = 2, end = 3>(k)
        sizes = Concat<axis = 0>(batch, repeated, keys) mask = Expand(bias, sizes) rows = Reshape(q, there)
        attention = Attention(rows, k, v, mask) out = Reshape(attention, back) }}""",
        opset=23,
        b=3,
        t=5,
    )
    assert found["Attention"] == 1
    assert found["Reshape"] == 0


def fused_heads(rest: int) -> str:
    """A part of fused heads is rotated, and joined with the four elements from `rest` on."""
    return f"""(float[b,2,s,12] wide, float[b,1,s,2] c, float[b,1,s,2] n) => (float[b,2,s,8] out)
        <int64[1] start = {{2}}, int64[1] middle = {{6}}, int64[1] rest = {{{rest}}}, int64[1] end = {{{rest + 4}}},
        int64[1] last = {{-1}}, int64[2] halves = {{2, 2}}>
        {{ part = Slice(wide, start, middle, last) others = Slice(wide, rest, end, last)
        a, b_ = Split<axis = -1>(part, halves) ac = Mul(a, c) bn = Mul(b_, n) r = Sub(ac, bn) bc = Mul(b_, c) an = Mul(a, n)
        i = Add(bc, an) turned = Concat<axis = -1>(r, i) out = Concat<axis = -1>(turned, others) }}"""


@pytest.mark.parametrize(("rest", "joined"), [(6, 0), (7, 1), (0, 1)])
def test_part_of_fused_heads_is_rotated_in_them(rest: int, joined: int) -> None:
    found, after = optimised(fused_heads(rest), b=3, s=5)
    assert (found["RotaryEmbedding"], found["Concat"]) == (1, joined)
    rotary = next(node for node in after.graph if node.op_type == "RotaryEmbedding")
    assert rotary.attributes.get_int("rotary_embedding_dim", 0) == (0 if joined else 4)


def test_angles_of_one_position_are_not_repeated_for_heads() -> None:
    text = """(float[b,1,4,6] x, float[1,1,1,3] c, float[1,1,1,3] n) => (float[b,1,4,6] out)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] last = {-1}, int64[1] end = {9223372036854775807},
        int64[4] whole = {0, 0, 0, 6}>
        { a = Slice(x, zero, end, last, two) b_ = Slice(x, one, end, last, two) ac = Mul(a, c) bn = Mul(b_, n) r = Sub(ac, bn)
        bc = Mul(b_, c) an = Mul(a, n) i = Add(bc, an) r1 = Unsqueeze(r, last) i1 = Unsqueeze(i, last)
        pairs = Concat<axis = -1>(r1, i1) out = Reshape(pairs, whole) }"""
    found, _ = optimised(text, b=3)
    assert found["RotaryEmbedding"] == 1
    assert "Expand" not in found


def test_residual_sums_keep_the_merged_axis() -> None:
    """As MobileViT attends to pixels at the same place of all patches."""
    text = """(float[b,4,5,8] x, float[8,8] w, float[8] g) => (float[n,5,8] out) <int64[3] rows = {-1, 5, 8}>
        { m = Reshape(x, rows) first = LayerNormalization(m, g) product = MatMul(first, w) sum = Add(m, product)
        second = LayerNormalization(sum, g) other = MatMul(second, w) total = Add(sum, other) out = LayerNormalization(total, g) }"""
    assert optimised(text, b=3)[0]["Reshape"] == 1


def test_angles_that_several_rotations_repeat_for_pairs_are_taken_as_they_are() -> None:
    """As GPT-J and CodeGen make them: what the rotations take of them becomes one only at the end."""
    rotation = """even{0} = Slice({0}, zero, end, last, two) odd{0} = Slice({0}, one, end, last, two) minus{0} = Neg(odd{0})
        one{0} = Unsqueeze(minus{0}, last) two{0} = Unsqueeze(even{0}, last) pairs{0} = Concat<axis = -1>(one{0}, two{0})
        turned{0} = Reshape(pairs{0}, whole) left{0} = Mul({0}, cosines) right{0} = Mul(turned{0}, sines)
        out{0} = Add(left{0}, right{0})"""
    text = f"""(float[b,s,2,8] x, float[b,s,2,8] y, float[1,s,8] angles) => (float[b,s,2,8] outx, float[b,s,2,8] outy)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] last = {{-1}},
        int64[1] end = {{9223372036854775807}}, int64[4] whole = {{0, 0, 0, 8}}, int64[2] axes = {{2, 4}}, int64[2] halves = {{4, 4}},
        int64[5] copies = {{1, 1, 1, 1, 2}}, int64[4] flat = {{1, -1, 1, 8}}>
        {{ s0, c0 = Split<axis = -1>(angles, halves) s1 = Unsqueeze(s0, axes) s2 = Tile(s1, copies) sines = Reshape(s2, flat)
        c1 = Unsqueeze(c0, axes) c2 = Tile(c1, copies) cosines = Reshape(c2, flat)
        {rotation.format("x")} {rotation.format("y")} }}"""
    found, _ = optimised(text, b=3, s=5)
    assert found["RotaryEmbedding"] == 2
    assert not {"Tile", "Expand"} & set(found)


def test_positions_of_one_token_are_taken_from_the_length_of_the_past() -> None:
    text = """(float[b,2,p,4] past, float[b,1,3] x) => (float[b,1,3] out)
        <int64[1] nothing = {0}, int64 axis = {2}>
        { sizes = Shape(past) length = Gather(sizes, axis) position = Add(nothing, length) angle = Cast<to = 1>(position)
        out = Add(x, angle) }"""
    found, _ = optimised(text, b=3, p=5)
    assert found["Add"] == 1


def test_angles_of_one_position_lose_the_axis_of_the_batch_where_they_got_it() -> None:
    """As torch.export writes them: the position gets all its axes at once, by what becomes a Reshape of a size."""
    text = """(float[b,2,p,4] past, float[b,2,1,4] x, float[b,2,1,4] y) => (float[b,2,1,4] outx, float[b,2,1,4] outy)
        <int64[1] nothing = {0}, int64[2] front = {0, 1}, int64[1] heads = {1}, float[2] factors = {1, 0.1},
        int64[1] zero = {0}, int64[1] two = {2}, int64[1] last = {-1}, int64[1] end = {9223372036854775807}>
        { sizes = Shape<start = 2, end = 3>(past) length = Squeeze(sizes) position = Add(nothing, length)
        wide = Unsqueeze(position, front) number = Cast<to = 1>(wide) halves = Mul(number, factors)
        angles = Concat<axis = -1>(halves, halves) cosines = Cos(angles) sines = Sin(angles) c = Unsqueeze(cosines, heads)
        s = Unsqueeze(sines, heads) ax = Slice(x, zero, two, last) bx = Slice(x, two, end, last) nx = Neg(bx)
        tx = Concat<axis = -1>(nx, ax) xc = Mul(x, c) xs = Mul(tx, s) outx = Add(xc, xs) ay = Slice(y, zero, two, last)
        by = Slice(y, two, end, last) ny = Neg(by) ty = Concat<axis = -1>(ny, ay) yc = Mul(y, c) ys = Mul(ty, s)
        outy = Add(yc, ys) }"""
    found, _ = optimised(text, b=3, p=5)
    assert found["RotaryEmbedding"] == 2
    assert not {"Squeeze", "Expand"} & set(found)
