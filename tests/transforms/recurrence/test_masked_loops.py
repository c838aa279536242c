"""Loops as Keras writes them: weights and a counter as states, steps that a mask skips, cells in float16."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import run
from recurrent_models import model

import ortfuse
from ortfuse.io.convert_model_objects import enter
from ortfuse.ir.walk import nodes

INPUTS, HIDDEN, STEPS = 3, 2, 6
LSTM = """a = MatMul(x, w0) d = MatMul(h0, r0) e = Add(a, d) g = Add(e, b0) gi, gf, gc, go_ = Split<axis = 1>(g, sizes)
    i_ = Sigmoid(gi) f_ = Sigmoid(gf) c_ = Tanh(gc) o_ = Sigmoid(go_) fc = Mul(f_, c0) ic = Mul(i_, c_) c1 = Add(fc, ic)
    tc = Tanh(c1) h1 = Mul(o_, tc)"""
GRU = """a = MatMul(x, w0) a1 = Add(a, b0) az, ar, ah = Split<axis = 1>(a1, sizes) d = MatMul(h0, r0) dz, dr, dh = Split<axis = 1>(d, sizes)
    z0 = Add(az, dz) z = Sigmoid(z0) q0 = Add(ar, dr) q = Sigmoid(q0) qh = Mul(q, dh) n0 = Add(ah, qh) nn = Tanh(n0)
    zh = Mul(z, h0) zc = Sub(one, z) zn = Mul(zc, nn) h1 = Add(zh, zn)"""
RNN = "a = MatMul(x, w0) d = MatMul(h0, r0) e = Add(a, d) g = Add(e, b0) h1 = Tanh(g)"
COUNTS = "k = Add(j, one32) kf = Cast<to = 1>(k) nf = Cast<to = 1>(j_end) l = Less(kf, nf) q_ = Cast<to = 1>(i) l1 = Less(q_, nf) on = And(l1, l)"
MASKED = "m = Gather(M, j)"
WHERE = "{0}k = Where(m, {0}1, {0}0)"
MULTIPLIED = "{0}f = Cast<to = {1}>(m) {0}n = Not(m) {0}g = Cast<to = {1}>({0}n) {0}u = Mul({0}f, {0}1) {0}v = Mul({0}0, {0}g) {0}k = Add({0}u, {0}v)"
ZEROS = "y = Mul(h1, hf)"


def keras(
    cell: str = LSTM,
    masked: str = "",
    kept: str = "",
    result: str = "y = Identity(hk)",
    *,
    steps: int | str = STEPS,
    dtype: str = "float",
    more: str = "",
    outputs: str = "Y, last_h",
    counts: str = COUNTS,
) -> onnx.ModelProto:
    """A Loop of one cell over X, [steps, batch, inputs], and the mask M, [steps, batch, 1], from given states."""
    kind = {"float": 1, "float16": 10}[dtype]
    names = "hc" if cell == LSTM else "h"
    states = ", ".join(f"{dtype}[b, {HIDDEN}] {name}0" for name in names)
    after = ", ".join(f"{dtype}[b, {HIDDEN}] {name}k" for name in names)
    weights = f"{dtype}[p, q] w0, {dtype}[r, q] r0, {dtype}[q] b0, int32 j_end"
    choices = " ".join((kept or "{0}k = Identity({0}1)").format(name, kind) for name in names)
    limit = f"n = Constant<value = int64 {{{steps}}}>() n32 = Constant<value = int32 {{{steps}}}>()"
    if isinstance(steps, str):
        limit = "sx = Shape(X) sc = Cast<to = 6>(sx) s0 = Slice(sc, no0, no1, no0) n32 = Squeeze(s0, no0) n = Cast<to = 7>(n32)"
    text = f"""
        {limit} zero32 = Constant<value = int32 {{0}}>() one32 = Constant<value = int32 {{1}}>() {more}
        J, {", ".join(f"last_{name}" for name in names)}, lw, lr, lb, ln, Y = Loop<body = one
            (int64 i, bool go, int32 j, {states}, {weights}) => (bool on, int32 k, {after}, {weights}, {dtype}[b, {HIDDEN}] y) {{
            x = Gather(X, j) {masked} {cell} {choices} {result} {counts} }}>
            (n, yes, zero32, {", ".join(f"first_{name}" for name in names)}, W, R, B, n32)"""
    rng, gates = np.random.default_rng(0), {LSTM: 4, GRU: 3}.get(cell, 1) * HIDDEN
    kinds = np.dtype(dtype if dtype == "float16" else "float32")
    constants: dict[str, Any] = {
        name: rng.standard_normal(shape).astype(kinds)
        for name, shape in (("W", (INPUTS, gates)), ("R", (HIDDEN, gates)), ("B", (gates,)))
    }
    constants |= {
        "sizes": [HIDDEN] * (gates // HIDDEN),
        "yes": np.bool_(True),
        "one": kinds.type(1),
        "no0": [0],
        "no1": [1],
        "no2": [HIDDEN],
    }
    declared = {
        "Y": f"{dtype}[s, b, {HIDDEN}] Y",
        "last_h": f"{dtype}[b, {HIDDEN}] last_h",
    }
    inputs = [f"{dtype}[{steps}, b, {INPUTS}] X"]
    inputs += [f"{dtype}[b, {HIDDEN}] first_{name}" for name in names if f"first_{name} =" not in more]
    inputs += [f"bool[{steps}, b, 1] M"] if masked else []
    return model(text, ", ".join(inputs), ", ".join(declared[name] for name in outputs.split(", ")), constants)


def operators(made: onnx.ModelProto, **options: Any) -> tuple[Counter[str], ortfuse.Result]:
    """The operators of the result, which computes the same with any mask."""
    result = ortfuse.optimize(made, verify="whole", **options)
    rng = np.random.default_rng(1)
    dtype = np.float16 if made.graph.input[0].type.tensor_type.elem_type == 10 else np.float32
    for share in (0, 0.5, 1):
        mask = rng.random((STEPS, 5, 1)) < share
        mask[:, 0], mask[:, 1], mask[2:, 2], mask[:2, 3] = share > 0, False, False, False
        feeds = {"X": rng.standard_normal((STEPS, 5, INPUTS)).astype(dtype), "M": mask}
        feeds |= {f"first_{name}": rng.standard_normal((5, HIDDEN)).astype(dtype) for name in "hc"}
        feeds = {value.name: feeds[value.name] for value in made.graph.input}
        tolerance = 1e-2 if dtype == np.float16 else 1e-5
        for old, new in zip(run(made, feeds), run(result.model, feeds), strict=True):
            np.testing.assert_allclose(new, old, rtol=tolerance, atol=tolerance)
    return Counter(node.op_type for node in nodes(enter(result.model)[0])), result


@pytest.mark.parametrize(("cell", "kind"), [(LSTM, "LSTM"), (GRU, "GRU")])
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_a_loop_that_counts_besides_and_hands_on_its_weights(cell: str, kind: str, dtype: str) -> None:
    found, _ = operators(keras(cell, dtype=dtype))
    assert found[kind] == 1 and not found["Loop"] and not found["MatMul"]


@pytest.mark.parametrize(("cell", "kind"), [(LSTM, "LSTM"), (GRU, "GRU")])
@pytest.mark.parametrize("kept", [WHERE, MULTIPLIED])
@pytest.mark.parametrize("result", ["y = Identity(hk)", "hz = Cast<to = 1>(m) y = Mul(h1, hz)"])
@pytest.mark.parametrize("masked", [MASKED, "m0 = Gather(M, i) m = Not(m0)"])
def test_masks_may_have_holes(cell: str, kind: str, kept: str, result: str, masked: str) -> None:
    found, _ = operators(keras(cell, masked, kept, result))
    assert found[kind] == 1 and not found["Loop"]


def test_a_mask_of_more_iterations_than_there_are() -> None:
    """A loop that ends early takes a part of its sequence, but no part of a mask with holes."""
    made = keras(
        masked=MASKED, kept=WHERE, counts="k = Add(j, one32) n4 = Constant<value = int32 {4}>() on = Less(k, n4)"
    )
    found, result = operators(made)
    assert found["Loop"] == 1 and not any("left out" in note for note in result.report.notes)


def test_masked_cells_of_float16() -> None:
    found, _ = operators(keras(masked=MASKED, kept=WHERE, dtype="float16"))
    assert found["LSTM"] == 1 and not found["Loop"]


def test_what_is_computed_where_the_mask_skips_is_used() -> None:
    found, result = operators(keras(masked=MASKED, kept=WHERE, result="y = Identity(h1)"))
    assert found["Loop"] == 1
    assert any("what is computed behind the end of a row is used" in note for note in result.report.notes)


def test_a_loop_of_open_length_is_left_with_a_remark() -> None:
    found, result = operators(keras(GRU, steps="s"))
    assert found["Loop"] == 1
    assert any("may not run at all" in note and "--assume loops-run" in note for note in result.report.notes)
    found, _ = operators(keras(GRU, steps="s"), assume=["loops-run"])
    assert found["GRU"] == 1 and not found["Loop"]


def test_a_demand_for_elements_is_known_when_the_node_that_made_it_is_gone() -> None:
    taken = "f0 = Slice(X, no0, no1, no0) f1 = Squeeze(f0, no0) fs = Shape(f1) fb = Slice(fs, no0, no1, no0)"
    made = keras(GRU, steps="s", more=taken)
    assert operators(made)[0]["Loop"] == 1, "nothing needs it"
    made = keras(GRU, steps="s", more=f"{taken} fe = Concat<axis = 0>(fb, no2) first_h = ConstantOfShape(fe)")
    found, _ = operators(made)
    assert found["GRU"] == 1 and not found["Loop"]


def test_a_loop_that_may_end_early_is_left_with_a_remark() -> None:
    ends = COUNTS.replace("on = And(l1, l)", "hs = ReduceMax<keepdims = 0>(hk) lo = Less(hs, kf) on = And(l1, lo)")
    found, result = operators(keras(counts=ends))
    assert found["Loop"] == 1
    assert any("'on' compares something else than counters" in note for note in result.report.notes)


def test_a_remark_goes_with_the_loop() -> None:
    found, result = operators(keras(RNN))
    assert not found["Loop"] and found["Tanh"] == STEPS
    assert not any("holds states of a recurrent network" in note for note in result.report.notes)
