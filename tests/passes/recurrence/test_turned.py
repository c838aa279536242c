"""Operators between two reversals of time run in the other direction."""

from __future__ import annotations

import onnx
import pytest
from recurrent_models import HIDDEN, INPUTS, constants, model

import ortfuse

PASSES = "canonicalize, recurrent, canonicalize"
FLIP = "Slice({0}, from, to, {1}, back)"


def flipped(kind: str = "LSTM", end: str = "Y = " + FLIP.format("s", "no0"), options: str = "") -> onnx.ModelProto:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind] * HIDDEN
    found = constants() | {"w": constants()["W"][None, :gates], "r": constants()["R"][None, :gates]}
    found |= {"from": [-1], "to": [-(2**63)], "back": [-1], "some": [-3]}
    body = f"""f = {FLIP.format("X", "no0")} o, last = {kind}<hidden_size = {HIDDEN}{options}>(f, w, r)
        s = Squeeze(o, no1) {end}"""
    outputs = f"float[t, b, {HIDDEN}] Y, float[1, b, {HIDDEN}] last"
    return model(body, f"float[t, b, {INPUTS}] X", outputs, found)


def directions(made: onnx.ModelProto, verify: str = "whole") -> list[str | None]:
    """The directions of the operators of the result if it has no reversal; `None` if it has one."""
    graph = ortfuse.optimize(made, passes=PASSES, verify=verify).model.graph
    if any(node.op_type == "Slice" for node in graph.node):
        return [None]
    found = [node for node in graph.node if node.op_type in ("LSTM", "GRU", "RNN")]
    return [next((one.s.decode() for one in node.attribute if one.name == "direction"), "forward") for node in found]


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_an_operator_between_reversals_runs_back(kind: str) -> None:
    assert directions(flipped(kind)) == ["reverse"]
    assert directions(flipped(kind, options=', direction = "reverse"')) == ["forward"]


def test_it_is_checked_where_it_happens() -> None:
    assert directions(flipped(), verify="sites") == ["reverse"]


def test_axes_may_be_moved_in_between() -> None:
    end = "m = Transpose<perm = [1, 0, 2]>(s) n = " + FLIP.format("m", "no1") + " Y = Transpose<perm = [1, 0, 2]>(n)"
    assert directions(flipped(end=end)) == ["reverse"]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (flipped(end="n = " + FLIP.format("s", "no0") + " e = Exp(s) Y = Add(n, e)"), "the output is used as it is"),
        (flipped(end="Y = " + FLIP.format("s", "no1")), "another axis is reversed"),
        (flipped(end="Y = Slice(s, from, some, no0, back)"), "a part is reversed"),
    ],
)  # fmt: skip
def test_what_stays(made: onnx.ModelProto, why: str) -> None:
    assert directions(made) == [None], why
