"""Boxes by their centres, and images enlarged by repeating pixels or by means of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from rewriting import both, ops, parse, rewritten, same

import ortfuse

PAIRS = """c = Slice(r, at0, at2, last) s = Slice(r, at2, at4, last) h = Mul(s, half) a = Sub(c, h) b = Add(h, c)
    boxes = Concat<axis=-1>(a, b)"""
STACKED = """c, s = Split<axis=-1>(r, twos) u, v = Split<axis=-1>(c, ones) w, h = Split<axis=-1>(s, ones)
    u1 = Squeeze(u, last) v1 = Squeeze(v, last) w1 = Squeeze(w, last) h1 = Squeeze(h, last)
    wh = Mul(w1, half) hh = Div(h1, two) a = Sub(u1, wh) b = Sub(v1, hh) d = Add(u1, wh) e = Add(v1, hh)
    a1 = Unsqueeze(a, last) b1 = Unsqueeze(b, last) d1 = Unsqueeze(d, last) e1 = Unsqueeze(e, last)
    boxes = Concat<axis=-1>(a1, b1, d1, e1)"""


def detector(corners: str, raw: str = "r = Sigmoid(x)", more: str = "", outputs: str = "") -> ir.Model:
    return parse(f"""<ir_version: 9, opset_import: ["": 17]>
        g (float[b,n,4] x, float[b,2,n] scores) => (int64[k,3] y{outputs})
        <int64[1] at0 = {{0}}, int64[1] at2 = {{2}}, int64[1] at4 = {{4}}, int64[1] last = {{-1}}, int64[2] twos = {{2, 2}}, int64[6] around = {{0, -1, 0, 0, 1, 0}}, float minus = {{-1.0}},
         int64[2] ones = {{1, 1}}, float half = {{0.5}}, float two = {{2.0}}, int64 most = {{5}}, float overlap = {{0.3}}>
        {{ {raw} {corners} {more} y = NonMaxSuppression(boxes, scores, most, overlap) }}""")


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 2


def suppresses_alike(before: ir.Model, after: ir.Model) -> None:
    old, new = both(before, after, {"x": numbers(2, 9, 4), "scores": np.abs(numbers(2, 2, 9))})
    assert len(old) > 4
    np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("corners", [PAIRS, STACKED])
def test_corners_of_centres_are_suppressed_by_their_centres(corners: str) -> None:
    before = detector(corners)
    after = ortfuse.optimize(before.clone()).model
    assert "Sub" not in ops(after)
    assert (
        next(node for node in after.graph if node.op_type == "NonMaxSuppression").attributes["center_point_box"].value
        == 1
    )
    suppresses_alike(before, after)


def test_half_of_a_size_that_was_scaled_is_one_factor() -> None:
    before = detector(PAIRS.replace("Mul(s, half)", "Mul(t, half)").replace("h = ", "t = Mul(s, two) h = "))
    after = ortfuse.optimize(before.clone()).model
    assert "Sub" not in ops(after)
    suppresses_alike(before, after)


@pytest.mark.parametrize(
    ("raw", "known"),
    [
        ("r = Identity(x)", False),
        ("r = Tanh(x)", False),
        ("r = Exp(x)", True),
        ("z = Sigmoid(x) z2 = Mul(z, two) r = Mul(z2, z2)", True),
        ("r = Mul(x, x)", True),
        ("z = Sigmoid(x) r = Neg(z)", False),
        ("z = Sigmoid(x) r = Mul(z, x)", False),
        (
            "z = Sigmoid(x) u, v = Split<axis=-1>(z, twos) w, d = Split<axis=-1>(x, twos) r = Concat<axis=-1>(u, d)",
            False,
        ),
        ("z = Sigmoid(x) u, v = Split<axis=-1>(z, twos) r = Concat<axis=-1>(u, v)", True),
        ("z = Exp(x) r = Pad(z, around, minus)", False),
    ],
)
def test_sizes_have_to_be_at_least_0(raw: str, known: bool) -> None:
    before = detector(PAIRS, raw)
    after = rewritten(before, "fuse.vision")
    assert ("Sub" not in ops(after)) == known
    suppresses_alike(before, after)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Add(h, c)", "Add(s, c)"),
        ("Concat<axis=-1>(a, b)", "Concat<axis=-1>(b, a)"),
        ("Concat<axis=-1>(a, b)", "Concat<axis=-1>(a, b, c) z = Identity(boxes)"),
    ],
)
def test_what_are_no_corners_of_centres_stays(old: str, new: str) -> None:
    corners = PAIRS.replace(old, new).replace(
        "boxes = Concat<axis=-1>(a, b, c) z = Identity(boxes)", "boxes = Identity(r)"
    )
    before = detector(corners)
    after = rewritten(before, "fuse.vision")
    assert "center_point_box" not in next(n for n in after.graph if n.op_type == "NonMaxSuppression").attributes
    suppresses_alike(before, after)


def test_corners_that_are_returned_are_suppressed_as_they_are() -> None:
    before = detector(PAIRS, more="z = Identity(boxes)", outputs=", float[b,n,4] z")
    assert "Sub" in ops(ortfuse.optimize(before.clone()).model)


ENLARGED = {
    "u = Reshape(x, apart) e = Expand(u, blocks) y = Reshape(e, large)": "Resize",
    "u = Reshape(x, apart) e = Expand(u, rows) z = Reshape(e, tall) y = Gather<axis=3>(z, twice)": "Resize Gather",
    "g = Gather<axis=2>(x, twice) y = Gather<axis=3>(g, twice)": "Resize",
    "g = Gather<axis=3>(x, twice) y = Gather<axis=2>(g, twice)": "Resize",
    "g = Gather<axis=2>(x, twice) y = Gather<axis=3>(g, mixed)": "Gather Gather",
}


@pytest.mark.parametrize("body", ENLARGED)
def test_repeated_pixels_are_an_enlarged_image(body: str) -> None:
    before = parse(f"""<ir_version: 9, opset_import: ["": 17]> g (float[2,3,4,4] x) => (float[2,3,8,8] y)
        <int64[6] apart = {{2,3,4,1,4,1}}, int64[6] blocks = {{1,1,1,2,1,2}}, int64[6] rows = {{1,1,1,2,1,1}},
         int64[4] large = {{2,3,8,8}}, int64[4] tall = {{2,3,8,4}}, int64[8] twice = {{0,0,1,1,2,2,3,3}},
         int64[8] mixed = {{0,1,2,3,0,1,2,3}}>
        {{ {body} }}""")
    after = rewritten(before, "fuse.vision")
    assert ops(after) == ENLARGED[body]
    np.testing.assert_array_equal(*both(before, after, {"x": numbers(2, 3, 4, 4)}))


NEAREST = {
    "0, 0, 0, 1, 1, 2, 2": ("asymmetric", "floor"),
    "0, 0, 1, 1, 1, 2, 2": ("half_pixel", "round_prefer_ceil"),
    "0, 0, 0, 1, 2, 2, 2": None,
}


@pytest.mark.parametrize("rows", NEAREST)
@pytest.mark.parametrize("as_grid", [False, True])
def test_the_nearest_pixels_are_a_resized_image(rows: str, as_grid: bool) -> None:
    """Three rows become seven, as torch's `nearest` and `nearest-exact` choose them, or not; two columns become four."""
    numbered = [int(row) for row in rows.split(",")]
    places = ", ".join(f"{row}, {column}" for row in numbered for column in (0, 0, 1, 1))
    body = "g = Gather<axis=2>(x, rows) y = Gather<axis=3>(g, columns)"
    if as_grid:
        body = "t = Transpose<perm=[2, 3, 0, 1]>(x) g = GatherND(t, places) y = Transpose<perm=[2, 3, 0, 1]>(g)"
    before = parse(f"""<ir_version: 9, opset_import: ["": 17]> g (float[b,3,3,2] x) => (float[b,3,7,4] y)
        <int64[7] rows = {{{rows}}}, int64[4] columns = {{0, 0, 1, 1}}, int64[7,4,2] places = {{{places}}}> {{ {body} }}""")
    after = rewritten(before, "fuse.vision")
    found = NEAREST[rows]
    assert ops(after) == ("Gather Gather" if found is None else "Resize")
    if found is not None:
        made = next(iter(after.graph)).attributes
        assert (made["coordinate_transformation_mode"].value, made["nearest_mode"].value) == found
    same(before, after, {"x": numbers(2, 3, 3, 2)})


def test_rows_and_columns_that_are_taken_one_after_the_other_are_a_resized_image() -> None:
    """As torch.export writes `x[:, :, rows][:, :, :, columns]`: pixels by places of one number, their axes moved to and fro."""
    before = parse("""<ir_version: 9, opset_import: ["": 18]> g (float[b,3,2,3] x, int64[6] any) => (float[b,3,4,6] y, float[b,3,6,3] z)
        <int64[4,1] rows = {0, 0, 1, 1}, int64[6,1] columns = {0, 0, 1, 1, 2, 2}, int64[1] last = {-1}> {
            t = Transpose<perm=[2, 0, 1, 3]>(x) r = GatherND(t, rows) u = Transpose<perm=[3, 1, 2, 0]>(r)
            c = GatherND(u, columns) y = Transpose<perm=[1, 2, 3, 0]>(c)
            places = Unsqueeze(any, last) a = GatherND(t, places) z = Transpose<perm=[1, 2, 0, 3]>(a) }""")
    after = ortfuse.optimize(before.clone()).model
    assert sorted(ops(after).split()) == ["Gather", "Resize"]
    same(before, after, {"x": numbers(2, 3, 2, 3), "any": np.array([0, 1, -1, -2, 1, 0])})


def test_every_other_pixel_is_no_resized_image() -> None:
    before = parse("""<ir_version: 9, opset_import: ["": 17]> g (float[b,3,4,4] x) => (float[b,3,2,2] y)
        <int64[2] even = {0, 2}> { g = Gather<axis=2>(x, even) y = Gather<axis=3>(g, even) }""")
    assert ops(rewritten(before, "fuse.vision")) == "Gather Gather"


def interpolated(shares: str = "0, 0.25, 0.75, 0", first: str = "0,0, 0,0, 0,0, 0,1") -> ir.Model:
    """A row of two pixels made four, as torch.export decomposes it."""
    taken = " ".join(
        f"t{n} = GatherND(p, {places}) v{n} = Transpose<perm=[2, 3, 0, 1]>(t{n})"
        for n, places in enumerate(("one", "two", "one", "two"))
    )
    return parse(f"""<ir_version: 9, opset_import: ["": 17]> g (float[b,3,1,2] x) => (float[b,3,1,4] y)
        <int64[1,4,2] one = {{{first}}}, int64[1,4,2] two = {{0,1, 0,1, 0,1, 0,1}}, float[4] across = {{{shares}}}, float[1,1] down = {{0}}>
        {{ p = Transpose<perm=[2, 3, 0, 1]>(x) {taken}
           d1 = Sub(v1, v0) m1 = Mul(d1, across) a = Add(v0, m1) d2 = Sub(v3, v2) m2 = Mul(d2, across) b = Add(v2, m2)
           d = Sub(b, a) m = Mul(d, down) y = Add(a, m) }}""")


def test_the_means_of_four_pixels_are_a_resized_image() -> None:
    # The first place is left of the first pixel, and the last one right of the last.
    before = interpolated("0, 0.25, 0.75, 0")
    after = rewritten(before, "fuse.vision")
    assert ops(after) == "Resize"
    same(before, after, {"x": numbers(2, 3, 1, 2)})


@pytest.mark.parametrize(
    ("shares", "first"), [("0, 0.25, 0.5, 0", "0,0, 0,0, 0,0, 0,1"), ("0, 0.25, 0.75, 0", "0,0, 0,0, 0,0, 0,0")]
)
def test_pixels_at_other_places_are_no_resized_image(shares: str, first: str) -> None:
    before = interpolated(shares, first)
    assert "Resize" not in ops(rewritten(before, "fuse.vision"))


@pytest.mark.parametrize(("maps", "found"), [("2", "MatMul"), ("n", "Transpose MatMul Transpose")])
def test_places_under_affine_maps_are_a_product(maps: str, found: str) -> None:
    before = parse(f"""<ir_version: 9, opset_import: ["": 17]> g (float[{maps},3,2] theta) => (float[{maps},4,2] y)
        <float[4,3,1] grid = {{-1, -1, 1, 1, -1, 1, -1, 1, 1, 1, 1, 1}}, int64[1] one = {{1}}, int64[1] axis = {{-2}}>
        {{ u = Unsqueeze(theta, one) p = Mul(grid, u) y = ReduceSum<keepdims=0>(p, axis) }}""")
    after = rewritten(before, "fuse.vision")
    assert ops(after) == found
    for count in (2,) if maps == "2" else (1, 3):
        same(before, after, {"theta": numbers(count, 3, 2)})


def test_a_sum_over_another_axis_is_no_product_with_affine_maps() -> None:
    before = parse("""<ir_version: 9, opset_import: ["": 17]> g (float[n,3,2] theta) => (float[n,4,3] y)
        <float[4,3,1] grid = {-1, -1, 1, 1, -1, 1, -1, 1, 1, 1, 1, 1}, int64[1] one = {1}, int64[1] axis = {-1}>
        { u = Unsqueeze(theta, one) p = Mul(grid, u) y = ReduceSum<keepdims=0>(p, axis) }""")
    after = rewritten(before, "fuse.vision")
    assert ops(after) == "Unsqueeze Mul ReduceSum"
