"""Images sampled at given places: what networks spell out is one operator, and what is nearly that stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from rewriting import ops, parse, rewritten, same

import ortfuse

PLACES = """gx = Gather<axis=3>(grid, zero) gy = Gather<axis=3>(grid, one)
    ax = Add(gx, fone) bx = Mul(ax, fw) cx = Sub(bx, fone) px = Div(cx, ftwo)
    ay = Add(gy, fone) by = Mul(ay, fh) cy = Sub(by, fone) py = Div(cy, ftwo)"""
ON_BORDER = """x = Reshape(px, rows) y = Reshape(py, rows)
    fx = Floor(x) x0 = Cast<to=7>(fx) fy = Floor(y) y0 = Cast<to=7>(fy) x1 = Add(x0, one) y1 = Add(y0, one)
    x1f = Cast<to=1>(x1) y1f = Cast<to=1>(y1) x0f = Cast<to=1>(x0) y0f = Cast<to=1>(y0)
    nx = Sub(x1f, x) ny = Sub(y1f, y) qx = Sub(x, x0f) qy = Sub(y, y0f)
    wa = Mul(nx, ny) wb = Mul(nx, qy) wc = Mul(qx, ny) wd = Mul(qx, qy)
    ua = Unsqueeze(wa, axis1) ub = Unsqueeze(wb, axis1) uc = Unsqueeze(wc, axis1) ud = Unsqueeze(wd, axis1)
    p = Pad(image, border) flat = Reshape(p, joined) x2 = Add(x1, one) y2 = Add(y1, one)
    lx = Less(x1, zero) mx = Where(lx, zero, x1) tx = Greater(mx, lastx) ix = Where(tx, lastx, mx)
    ly = Less(y1, zero) my = Where(ly, zero, y1) ty = Greater(my, lasty) iy = Where(ty, lasty, my)
    ex = Less(x2, zero) ox = Where(ex, zero, x2) vx = Greater(ox, lastx) jx = Where(vx, lastx, ox)
    ey = Less(y2, zero) oy = Where(ey, zero, y2) vy = Greater(oy, lasty) jy = Where(vy, lasty, oy)
    ri = Mul(iy, width) rj = Mul(jy, width) a = Add(ix, ri) b = Add(ix, rj) c = Add(jx, ri) d = Add(jx, rj)
    a1 = Unsqueeze(a, axis1) b1 = Unsqueeze(b, axis1) c1 = Unsqueeze(c, axis1) d1 = Unsqueeze(d, axis1)
    a2 = Expand(a1, all) b2 = Expand(b1, all) c2 = Expand(c1, all) d2 = Expand(d1, all)
    sa = GatherElements<axis=2>(flat, a2) sb = GatherElements<axis=2>(flat, b2)
    sc = GatherElements<axis=2>(flat, c2) sd = GatherElements<axis=2>(flat, d2)
    za = Mul(sa, ua) zb = Mul(sb, ub) zc = Mul(sc, uc) zd = Mul(sd, ud)
    s1 = Add(za, zb) s2 = Add(s1, zc) s3 = Add(s2, zd) result = Reshape(s3, shape)"""
CLAMPED = """x0 = Floor(px) y0 = Floor(py) x1 = Add(x0, fone) y1 = Add(y0, fone)
    nx = Sub(x1, px) ny = Sub(y1, py) qx = Sub(px, x0) qy = Sub(py, y0)
    wa = Mul(nx, ny) wb = Mul(nx, qy) wc = Mul(qx, ny) wd = Mul(qx, qy)
    ua = Reshape(wa, flags) ub = Reshape(wb, flags) uc = Reshape(wc, flags) ud = Reshape(wd, flags)
    flat = Reshape(image, joined)
    ix = Clip(x0, fzero, flastx) jx = Clip(x1, fzero, flastx) iy = Clip(y0, fzero, flasty) jy = Clip(y1, fzero, flasty)
    ri = Mul(iy, fw) rj = Mul(jy, fw) a = Add(ri, ix) b = Add(rj, ix) c = Add(ri, jx) d = Add(rj, jx)
    a0 = Cast<to=7>(a) b0 = Cast<to=7>(b) c0 = Cast<to=7>(c) d0 = Cast<to=7>(d)
    a1 = Reshape(a0, line) b1 = Reshape(b0, line) c1 = Reshape(c0, line) d1 = Reshape(d0, line)
    a2 = Expand(a1, all) b2 = Expand(b1, all) c2 = Expand(c1, all) d2 = Expand(d1, all)
    sa = GatherElements<axis=2>(flat, a2) sb = GatherElements<axis=2>(flat, b2)
    sc = GatherElements<axis=2>(flat, c2) sd = GatherElements<axis=2>(flat, d2)
    ta = Reshape(sa, shape) tb = Reshape(sb, shape) tc = Reshape(sc, shape) td = Reshape(sd, shape)
    za = Mul(ta, ua) zb = Mul(tb, ub) zc = Mul(tc, uc) zd = Mul(td, ud)
    s1 = Add(za, zb) s2 = Add(s1, zc) result = Add(s2, zd)"""
CENTRED = {
    "bx = Mul(ax, fw) cx = Sub(bx, fone) px = Div(cx, ftwo)": "bx = Div(ax, ftwo) px = Mul(bx, fw1)",
    "by = Mul(ay, fh) cy = Sub(by, fone) py = Div(cy, ftwo)": "by = Div(ay, ftwo) py = Mul(by, fh1)",
}


def sampled(body: str, changes: Mapping[str, str] | None = None, lastx: int = 5, opset: int = 17) -> ir.Model:
    """The spelling for an image of 3 x 4 pixels, with parts of it in other words."""
    spelled = PLACES + body
    for old, new in (changes or {}).items():
        assert old in spelled
        spelled = spelled.replace(old, new)
    return parse(f"""<ir_version: 7, opset_import: ["": {opset}]> g (float[b,2,3,4] image, float[b,3,5,2] grid) => (float[b,2,3,5] result)
        <int64 zero = {{0}}, int64 one = {{1}}, float fone = {{1.0}}, float ftwo = {{2.0}}, float fw = {{4.0}}, float fh = {{3.0}},
         float fw1 = {{3.0}}, float fh1 = {{2.0}}, int64[2] rows = {{0,-1}}, int64[1] axis1 = {{1}}, int64 lastx = {{{lastx}}},
         int64[8] border = {{0,0,1,1,0,0,1,1}}, int64[3] joined = {{0,2,-1}}, int64 lasty = {{4}}, int64 width = {{6}},
         int64[3] all = {{1,2,1}}, int64[4] shape = {{0,2,3,5}}, int64[4] flags = {{0,1,3,5}}, int64[3] line = {{0,1,15}},
         float fzero = {{0.0}}, float flastx = {{{lastx - 2}.0}}, float flasty = {{2.0}}>
        {{ {spelled} }}""")


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def inputs() -> dict[str, Any]:
    return {"image": numbers(2, 2, 3, 4), "grid": numbers(2, 3, 5, 2) * 2}


@pytest.mark.parametrize(("body", "padding"), [(ON_BORDER, "zeros"), (CLAMPED, "border")])
@pytest.mark.parametrize("centred", [False, True])
def test_sampling_by_gathers_is_one_operator(body: str, padding: str, centred: bool) -> None:
    before = sampled(body, CENTRED if centred else None)
    after = rewritten(before, "fuse.vision")
    assert ops(after) == "GridSample"
    node = next(iter(after.graph))
    assert node.attributes["align_corners"].value == centred
    assert node.attributes.get_string("padding_mode", "zeros") == padding
    same(before, after, inputs())


def test_models_too_old_for_the_operator_are_raised() -> None:
    before = sampled(ON_BORDER, opset=13)
    after = ortfuse.optimize(before.clone()).model
    assert ops(after) == "GridSample"
    same(before, after, inputs())


NEARLY: list[dict[str, Any]] = [
    {"lastx": 4},
    {"changes": dict(list(CENTRED.items())[:1])},
    {"changes": {"wb = Mul(nx, qy)": "wb = Mul(qx, qy)"}},
    {"changes": {"c = Add(": "c = Sub("}},
    {"changes": {"Mul(ax, fw)": "Mul(ax, fw1)"}},
    {"changes": {"gy = Gather<axis=3>(grid, one)": "gy = Gather<axis=3>(grid, zero)"}},
]


@pytest.mark.parametrize("change", NEARLY)
@pytest.mark.parametrize("body", [ON_BORDER, CLAMPED])
def test_what_is_nearly_sampling_is_none(body: str, change: dict[str, Any]) -> None:
    assert "GridSample" not in ops(rewritten(sampled(body, **change), "fuse.vision"))
