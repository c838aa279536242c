"""Operators between two reversals of time run in the other direction."""

from __future__ import annotations

import onnx
import pytest
from recurrent_models import HIDDEN, INPUTS, constants, model

import ortfuse

PASSES = "canonicalize, fuse_recurrent, canonicalize"
FLIP = "Slice({0}, from, to, {1}, back)"


def flipped(
    kind: str = "LSTM", end: str = "Y = " + FLIP.format("s", "no0"), options: str = "", sequence: str = "t"
) -> onnx.ModelProto:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind] * HIDDEN
    found = constants() | {"w": constants()["W"][None, :gates], "r": constants()["R"][None, :gates]}
    found |= {"from": [-1], "to": [-(2**63)], "back": [-1], "some": [-3], "order": [3, 2, -3, 0]}
    body = f"""f = {FLIP.format("X", "no0")} o, last = {kind}<hidden_size = {HIDDEN}{options}>(f, w, r)
        s = Squeeze(o, no1) {end}"""
    outputs = f"float[{sequence}, b, {HIDDEN}] Y, float[1, b, {HIDDEN}] last"
    return model(body, f"float[{sequence}, b, {INPUTS}] X", outputs, found)


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


def test_elements_from_the_last_to_the_first_are_a_reversal() -> None:
    made = flipped(end="Y = Gather(s, order)", sequence="4")
    made.graph.node[0].CopyFrom(onnx.helper.make_node("Gather", ["X", "order"], ["f"]))
    assert directions(made) == ["reverse"]
    assert "Gather" not in {node.op_type for node in ortfuse.optimize(made, passes=PASSES).model.graph.node}


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_sequences_reversed_by_their_lengths(kind: str) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind] * HIDDEN
    found = constants() | {"w": constants()["W"][None, :gates], "r": constants()["R"][None, :gates]}
    body = f"""l = Clip(L, at1, at5) n = Cast<to = 6>(l) f = ReverseSequence(X, l) o, last = {kind}<hidden_size = {HIDDEN}>(f, w, r, , n)
        s = Squeeze(o, no1) Y = ReverseSequence(s, l)"""
    outputs = f"float[5, b, {HIDDEN}] Y, float[1, b, {HIDDEN}] last"
    made = model(body, f"float[5, b, {INPUTS}] X, int64[b] L", outputs, found)
    graph = ortfuse.optimize(made, passes=PASSES, verify="whole").model.graph
    assert "ReverseSequence" not in {node.op_type for node in graph.node}


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
