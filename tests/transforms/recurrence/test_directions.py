"""Operators of both directions of one sequence are one."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import onnx
import pytest
from graphs import operator_counts
from recurrent_models import HIDDEN, INPUTS, constants, model

PASSES = "canonicalize, fuse_recurrent, canonicalize"
FLIP = "Slice({0}, from, to, {1}, back)"
JOINED = "Y = Concat<axis = 2>(sf, sb)"


def both(
    kind: str = "LSTM",
    end: str = JOINED,
    outputs: str = f"float[t, b, {2 * HIDDEN}] Y",
    back: str = "B, bh = {0}(fx, w2, r2)",
    options: str = "",
    forward: str = "F, fh = {0}(X, w, r)",
    more: str = "",
) -> onnx.ModelProto:
    """An operator, one between two reversals, and what joins them."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind] * HIDDEN
    found, other = constants(), constants(1)
    found |= {"w": found["W"][None, :gates], "r": found["R"][None, :gates], "two": [HIDDEN] * 2}
    found |= {
        "w2": other["W"][None, :gates],
        "r2": other["R"][None, :gates],
        "bias": found["b"][None, :gates].repeat(2, 1),
    }
    found |= {"from": [-1], "to": [-(2**63)], "back": [-1]}
    name = f"{kind}<hidden_size = {HIDDEN}{options}>"
    body = f"""{more} {forward.format(name)} fx = {FLIP.format("X", "no0")} {back.format(name)}
        sf = Squeeze(F, no1) sr = Squeeze(B, no1) sb = {FLIP.format("sr", "no0")} {end}"""
    return model(body, f"float[t, b, {INPUTS}] X", outputs, found)


operators = partial(operator_counts, passes=PASSES, verify="whole")


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_states_that_are_joined_are_of_one_operator(kind: str) -> None:
    assert operators(both(kind)) == Counter({kind: 1, "Transpose": 1, "Reshape": 1})


def test_activations_and_lengths_of_both() -> None:
    options = ', activations = ["HardSigmoid", "Tanh", "Relu"], activation_alpha = [0.3], activation_beta = [0.4]'
    assert operators(both(options=options))["LSTM"] == 1


def test_it_is_checked_where_it_happens() -> None:
    assert operators(both(), verify="sites")["LSTM"] == 1


def test_final_states_are_parts_or_joined() -> None:
    end = JOINED + " hf = Squeeze(fh, no0) hb = Squeeze(bh, no0) H = Concat<axis = 1>(hf, hb) N = Neg(fh)"
    outputs = f"float[t, b, {2 * HIDDEN}] Y, float[b, {2 * HIDDEN}] H"
    assert operators(both(end=end, outputs=outputs)) == Counter({"LSTM": 1, "Transpose": 2, "Reshape": 2})
    found = operators(both(end=end, outputs=outputs + f", float[1, b, {HIDDEN}] N"))
    assert (found["LSTM"], found["Neg"]) == (1, 1)


def test_a_reshape_may_drop_the_axis_of_the_directions() -> None:
    made = both()
    text = (
        onnx.printer.to_text(made).replace("[t,b,3] X", "[5,2,3] X").replace("Squeeze (F, no1)", "Reshape (F, shape)")
    )
    made = onnx.parser.parse_model(text.replace("Squeeze (B, no1)", "Reshape (B, shape)"))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array([5, 2, HIDDEN]), "shape"))
    assert operators(made)["LSTM"] == 1


def test_joined_along_the_directions_and_behind_moves() -> None:
    end = "H = Concat<axis = 0>(fh, bh) mf = Transpose<perm = [1, 0, 2]>(sf) mb = Transpose<perm = [1, 0, 2]>(sb) Y = Concat<axis = 2>(mf, mb)"
    found = operators(both(end=end, outputs=f"float[b, t, {2 * HIDDEN}] Y, float[2, b, {HIDDEN}] H"))
    assert found == Counter({"LSTM": 1, "Transpose": 1, "Reshape": 1})


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (both(end="Y = Add(sf, sb)", outputs=f"float[t, b, {HIDDEN}] Y"), "nowhere joined"),
        (both(end="Y = Concat<axis = 2>(sb, sf)"), "backward first"),
        (both(end=JOINED + " N = Neg(sf)", outputs=f"float[t, b, 4] Y, float[t, b, {HIDDEN}] N"), "used otherwise too"),
        (both(back="B, bh = {0}(fx, w2, r2, bias)"), "only one has biases"),
        (both(back="B, bh = {0}(fx, w2, r2, , , fh)", forward="F, fh = {0}(X, w, r, , , h)", more="h0 = ReduceSum<axes = [0, 2]>(X) "
              if False else "hs = ReduceMax<axes = [0], keepdims = 1>(X) h = Slice(hs, no0, no2, no2)"), "one begins with the state of the other"),
    ],
)  # fmt: skip
def test_what_stays(made: onnx.ModelProto, why: str) -> None:
    assert operators(made)["LSTM"] == 2, why
