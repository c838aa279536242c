"""Loops and Scans that keep the last elements of a sequence as a state compute all their runs from the sequence."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import operator_counts
from recurrent_models import model

PASSES = "canonicalize, vectorize_loops, canonicalize"
ENTRY, JOINED = "xu = Unsqueeze(x, m1)", "j = Concat<axis = 2>(W0, xu)"
NEXT, LAST = "W1 = Slice(j, i1, far, i2)", "o = Squeeze(c, i2)"
CONV = "c = Conv<group = 5>(j, kernel, bias)"
SPELLINGS = {
    "a convolution": (3, f"{ENTRY} {JOINED} {CONV} {LAST} {NEXT}"),
    "negative bounds": (3, f"{ENTRY} {JOINED} {CONV} {LAST} W1 = Slice(j, im3, far, i2)"),
    "channels mixed": (3, f"{ENTRY} {JOINED} c = Conv(j, dense) {LAST} {NEXT}"),
    "with gaps": (6, f"{ENTRY} {JOINED} c = Conv<group = 5, dilations = [2]>(j, kernel) {LAST} {NEXT}"),
    "a window that holds more": (5, f"{ENTRY} {JOINED} {CONV} e = Slice(c, m1, far, i2) o = Squeeze(e, i2) {NEXT}"),
    "moved first": (4, f"{ENTRY} s = Slice(W0, i1, far, i2) W1 = Concat<axis = 2>(s, xu) c = Conv<group = 5>(W1, kernel) {LAST}"),
    "a sum": (3, f"{ENTRY} {JOINED} t = Mul(j, taps) o = ReduceSum<keepdims = 0>(t, m1) {NEXT}"),
    "what is projected": (3, f"p = MatMul(x, square) xu = Unsqueeze(p, m1) {JOINED} {CONV} a = Squeeze(c, i2) g = Sigmoid(a) o = Mul(a, g) {NEXT}"),
    "the window before": (3, f"{ENTRY} {JOINED} o = ReduceMax<keepdims = 0, axes = [2]>(W0) {NEXT}"),
}  # fmt: skip


def weights() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"kernel": (5, 1, 4), "dense": (5, 5, 4), "bias": 5, "taps": (5, 4), "square": (5, 5)}
    found = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**found, "i1": [1], "i2": [2], "m1": [-1], "im3": [-3], "far": [2**62], "count": np.int64(6), "yes": np.bool_(True)}  # fmt: skip


def scan(size: int, body: str, options: str = "") -> onnx.ModelProto:
    inner = (
        f"body = one (float[b, 5, {size}] W0, float[b, 5] x) => (float[b, 5, {size}] W1, float[b, 5] o) {{ {body} }}"
    )
    text = f"last, Y = Scan<num_scan_inputs = 1, {options} {inner}>(first, X)"
    return model(
        text,
        f"float[b, 5, {size}] first, float[t, b, 5] X",
        f"float[t, b, 5] Y, float[b, 5, {size}] last",
        weights(),
    )


optimised = partial(operator_counts, passes=PASSES, verify="whole")


@pytest.mark.parametrize("kind", SPELLINGS)
def test_all_windows_are_parts_of_the_sequence(kind: str) -> None:
    found = optimised(scan(*SPELLINGS[kind]))
    assert (found["Scan"], found["Conv"]) == (0, "Conv" in SPELLINGS[kind][1])


@pytest.mark.parametrize("kind", ["a convolution", "a sum"])
def test_the_final_window_alone(kind: str) -> None:
    made = scan(*SPELLINGS[kind])
    del made.graph.output[0]
    assert optimised(made) == Counter({"Transpose": 1, "Concat": 1, "Slice": 1})


def test_a_loop_of_known_length() -> None:
    inner = f"body = one (int64 i, bool go, float[b, 5, 3] W0) => (bool on, float[b, 5, 3] W1, float[b, 5] o) {{ on = Identity(go) x = Gather<axis = 1>(X, i) {SPELLINGS['a convolution'][1]} }}"
    text = f"last, Y = Loop<{inner}>(count, yes, first)"
    made = model(text, "float[b, 5, 3] first, float[b, 6, 5] X", "float[r, b, 5] Y, float[b, 5, 3] last", weights())
    found = optimised(made)
    assert (found["Loop"], found["Conv"]) == (0, 1)


@pytest.mark.parametrize(
    ("body", "options", "why"),
    [
        (f"{ENTRY} y = Tanh(W0) l = Slice(y, m1, far, i2) xx = Add(xu, l) j = Concat<axis = 2>(W0, xx) {CONV} {LAST} {NEXT}", "", "what enters is computed from the window"),
        (f"{ENTRY} j = Concat<axis = 2>(xu, W0) {CONV} {LAST} {NEXT}", "", "the entry is put in front, and goes again"),
        (f"{ENTRY} {JOINED} {CONV} {LAST} z = Tanh(j) W1 = Slice(z, i1, far, i2)", "", "the window is squashed"),
        (SPELLINGS["a convolution"][1], "scan_input_directions = [1], scan_output_directions = [1],", "from the last to the first"),
        (f"{ENTRY} {JOINED} c = Conv<group = 5, pads = [0, 1]>(j, kernel) e = Slice(c, m1, far, i2) o = Squeeze(e, i2) {NEXT}", "", "what is padded is no element"),
    ],
)  # fmt: skip
def test_what_is_no_window_is_left_alone(body: str, options: str, why: str) -> None:
    assert optimised(scan(3, body, options))["Scan"] == 1, why


def test_a_layer_of_windows_and_linear_attention_has_no_loop() -> None:
    mixed = f"{ENTRY} {JOINED} {CONV} a = Squeeze(c, i2) k, v = Split<axis = 1>(a, sizes) {NEXT}"
    inner = f"""body = one (float[b, 5, 3] W0, float[b, 2, 3] S0, float[b, 5] x) => (float[b, 5, 3] W1, float[b, 2, 3] S1, float[b, 3] o) {{
        {mixed} kc = Unsqueeze(k, i2) vr = Unsqueeze(v, i1) kv = Mul(kc, vr) S1 = Add(S0, kv) qr = Unsqueeze(k, i1)
        p = MatMul(qr, S1) o = Squeeze(p, i1) }}"""
    text = f"last, memory, Y = Scan<num_scan_inputs = 1, {inner}>(first, second, X)"
    inputs = "float[b, 5, 3] first, float[b, 2, 3] second, float[t, b, 5] X"
    outputs = "float[t, b, 3] Y, float[b, 5, 3] last, float[b, 2, 3] memory"
    found = optimised(model(text, inputs, outputs, weights() | {"sizes": [2, 3]}))
    assert (found["Scan"], found["Conv"], found["LinearAttention"]) == (0, 1, 1)
