"""Bodies that keep the states of rows that have ended are operators with lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from graphs import run
from recurrent_models import HIDDEN, INPUTS, constants, gru_sized, model, step

import ortfuse

PASSES = "canonicalize, vectorize_loops{always=true}, canonicalize"
LSTM = "lstm of two Gemms"
STATE, X = f"float[b, {HIDDEN}]", f"float[t, b, {INPUTS}] X"
MASK = "sx = Shape(X) n = Gather(sx, at0) r = Range(at0, n, at1) rc = Unsqueeze(r, no1) m0 = Less(rc, L) M = Unsqueeze(m0, no2)"
KEPT = "{0}k = Where(m, {0}1, {0}0)"
ZERO = "y1 = Where(m, h1, zero)"
HELD = "y1 = Identity(hk)"


def weights(spelling: str = LSTM) -> dict[str, Any]:
    found = gru_sized(constants()) if spelling.startswith("gru") else constants()
    return found | {"zero": np.float32(0), "count": np.int64(5), "yes": np.bool_(True), "float1": np.float32(1)}


def states(spelling: str) -> list[str]:
    return ["h", "c"] if spelling.startswith("lstm") else ["h"]


def scan(
    spelling: str = LSTM,
    mask: str = MASK,
    kept: str = KEPT,
    result: str = ZERO,
    direction: int = 0,
    initial: str = "zeros",
    lengths: str = "int64[b] L",
    more: str = "",
) -> onnx.ModelProto:
    """A Scan of one cell over X and the mask M, from zeros or from inputs."""
    names = states(spelling)
    head = ", ".join([*(f"{STATE} {name}0" for name in names), "float[b, n] x1, bool[b, 1] m"])
    out = ", ".join([*(f"{STATE} {name}k" for name in names), f"{STATE} y1"])
    body = f"{step(spelling, 'x1', 'h0', 'c0', 1)} {' '.join(kept.format(name) for name in names)} {result}"
    left = ", ".join([*(f"last_{name}" for name in names), "Y"])
    given = [f"first_{name}" for name in names]
    zeros = " ".join(f"{name} = ConstantOfShape(size)" for name in given) if initial == "zeros" else ""
    options = f"scan_input_directions = [{direction}, {direction}], scan_output_directions = [{direction}],"
    text = f"""{mask} ss = Shape(X) b1 = Gather(ss, no1) size = Concat<axis = 0>(b1, no{HIDDEN}) {zeros} {more}
        {left} = Scan<num_scan_inputs = 2, {options} body = one ({head}) => ({out}) {{ {body} }}>({", ".join([*given, "X", "M"])})"""
    inputs = ", ".join([X, lengths, *(() if initial == "zeros" else (f"{STATE} {name}" for name in given))])
    outputs = ", ".join([f"float[t, b, {HIDDEN}] Y", *(f"{STATE} last_{name}" for name in names)])
    return model(text, inputs, outputs, weights(spelling))


def is_one_operator(made: onnx.ModelProto, lengths: tuple[int, ...] = (0, 2, 5, 9)) -> bool:
    """Whether the result is an operator with lengths, which gives the same for rows of any length."""
    result = ortfuse.optimize(made, passes=PASSES, verify="whole").model
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {"X": rng.standard_normal((5, len(lengths), INPUTS)).astype(np.float32)}
    for value in made.graph.input:
        if value.name == "L":
            feeds["L"] = np.array(lengths, np.int32 if value.type.tensor_type.elem_type == 6 else np.int64)
        elif value.name != "X":
            feeds[value.name] = rng.standard_normal((len(lengths), HIDDEN)).astype(np.float32)
    for old, new in zip(run(made, feeds), run(result, feeds), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-6)
    found = [node for node in result.graph.node if node.op_type in ("LSTM", "GRU", "RNN")]
    return (
        len(found) == 1
        and bool(found[0].input[4])
        and not any(node.op_type in ("Scan", "Loop") for node in result.graph.node)
    )


@pytest.mark.parametrize("spelling", [LSTM, "gru", "gru that resets first", "rnn"])
@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("result", [ZERO, HELD])
def test_rows_that_keep_their_states_have_lengths(spelling: str, direction: int, result: str) -> None:
    assert is_one_operator(scan(spelling, direction=direction, result=result))


@pytest.mark.parametrize(
    "mask",
    [
        MASK.replace("Less(rc, L)", "Greater(L, rc)"),
        MASK.replace("m0 = Less(rc, L)", "ge = GreaterOrEqual(rc, L) m0 = Not(ge)"),
        MASK.replace("m0 = Less(rc, L)", "rp = Add(rc, no1) m0 = LessOrEqual(rp, L)").replace("Range(at0, n, at1)", "Range(at0, n, at1)"),
        MASK.replace("Less(rc, L)", "Less(rc, L)").replace("Unsqueeze(m0, no2)", "Cast<to = 9>(mf)").replace("M =", "m2 = Unsqueeze(m0, no2) mf = Cast<to = 1>(m2) M ="),
        "sx = Shape(X) n = Gather(sx, at0) r = Range(at0, n, at1) rr = Unsqueeze(r, no0) lc = Unsqueeze(L, no1) m0 = Less(rr, lc) "
        "mt = Transpose<perm = [1, 0]>(m0) M = Unsqueeze(mt, no2)",
    ],
)  # fmt: skip
def test_the_mask_may_be_spelled_in_any_way(mask: str) -> None:
    assert is_one_operator(scan(mask=mask))


@pytest.mark.parametrize(
    ("kept", "result"),
    [
        ("nm{0} = Not(m) {0}k = Where(nm{0}, {0}0, {0}1)", ZERO),
        ("w{0} = Cast<to = 1>(m) v{0} = Sub(float1, w{0}) a{0} = Mul(w{0}, {0}1) e{0} = Mul({0}0, v{0}) {0}k = Add(a{0}, e{0})", HELD),
        ("w{0} = Cast<to = 1>(m) v{0} = Sub({0}1, {0}0) a{0} = Mul(v{0}, w{0}) {0}k = Add({0}0, a{0})", "mf = Cast<to = 1>(m) y1 = Mul(h1, mf)"),
    ],
)  # fmt: skip
def test_the_choice_may_be_spelled_in_any_way(kept: str, result: str) -> None:
    assert is_one_operator(scan(kept=kept, result=result))


def test_lengths_of_32_bits_in_a_loop() -> None:
    body = f"""body = one (int64 i, bool go, {STATE} h0, {STATE} c0, {STATE} o0) => (bool on, {STATE} hk, {STATE} ck, {STATE} ok, {STATE} y1) {{
        on = Identity(go) x1 = Gather(X, i) i32 = Cast<to = 6>(i) ml = Less(i32, L) m = Unsqueeze(ml, no1)
        {step(LSTM, "x1", "h0", "c0", 1)} hk = Where(m, h1, h0) ck = Where(m, c1, c0) ok = Where(m, h1, o0) y1 = Identity(ok) }}"""
    text = f"""ss = Shape(X) b1 = Gather(ss, no1) size = Concat<axis = 0>(b1, no2) z = ConstantOfShape(size)
        last_h, last_c, last_o, Y = Loop<{body}>(count, yes, z, z, z)"""
    inputs = f"float[5, b, {INPUTS}] X, int32[b] L"
    made = model(text, inputs, f"float[5, b, {HIDDEN}] Y, {STATE} last_c, {STATE} last_o", weights())
    assert is_one_operator(made)


def test_runs_that_are_counted_down() -> None:
    falling = MASK.replace("Range(at0, n, at1)", "Neg(rn)").replace("r =", "rn = Range(at0, n, at1) r =")
    assert is_one_operator(scan(mask=falling), lengths=(-9, -4, -2, 0, 3))


@pytest.mark.parametrize("spelling", [LSTM, "gru"])
@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("result", [ZERO, HELD])
def test_empty_rows_keep_their_initial_states(spelling: str, direction: int, result: str) -> None:
    assert is_one_operator(scan(spelling, direction=direction, result=result, initial="given"))


def test_initial_states_of_rows_that_are_not_empty() -> None:
    clipped = MASK.replace("Less(rc, L)", "Less(rc, Lc)").replace("sx =", "Lc = Max(L, no1) sx =")
    assert is_one_operator(scan(mask=clipped, initial="given"))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (scan(mask="M = Unsqueeze(L, no2)", lengths="bool[t, b] L", direction=1), "a mask may have holes, backwards"),
        (scan(result="y1 = Tanh(h1)"), "what is computed behind the end is used"),
        (scan(kept="{0}k = Where(m, {0}0, {0}1)"), "states are kept before the end"),
        (scan(mask=MASK.replace("Less(rc, L)", "Less(rc, Lc)"), lengths="int64[t, b] Lc, int64[b] L", direction=1), "lengths for each run, backwards"),
    ],
)  # fmt: skip
def test_what_stays_a_loop(made: onnx.ModelProto, why: str) -> None:
    result = ortfuse.optimize(made, passes=PASSES).model
    assert "Scan" in {node.op_type for node in result.graph.node}, why
