"""Operators that follow each other are one."""

from __future__ import annotations

from collections import Counter
from functools import partial

import onnx
import pytest
from graphs import operator_counts
from recurrent_models import HIDDEN, INPUTS, constants, model

import ortfuse

PASSES = "canonicalize, fuse_recurrent, canonicalize"
STATE = f"float[1, b, {HIDDEN}]"


def chain(
    kind: str = "LSTM",
    steps: int = 4,
    taken: str = "x{t} = Unsqueeze(e{t}, no0)",
    end: str = "",
    outputs: str = "",
    changed: tuple[str, str] = ("", ""),
) -> onnx.ModelProto:
    """One operator for each step, and the states of all steps stacked."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind] * HIDDEN
    found = constants()
    found |= {"w": found["W"][None, :gates], "r": found["R"][None, :gates], "w2": constants(1)["W"][None, :gates]}
    body = []
    for t in range(1, steps + 1):
        memory = (f", c{t}", f", c{t - 1}") if kind == "LSTM" else ("", "")
        body.append(f"e{t} = Gather(X, at{t - 1}) {taken.format(t=t)}")
        body.append(
            f"y{t}, h{t}{memory[0]} = {kind}<hidden_size = {HIDDEN}>(x{t}, w, r, , , h{t - 1}{memory[1]}) s{t} = Squeeze(y{t}, no1)"
        )
    text = f"{' '.join(body)} {end or 'Y = Concat<axis = 0>(' + ', '.join(f's{t}' for t in range(1, steps + 1)) + ')'}"
    states = f"{STATE} h0, {STATE} c0" if kind == "LSTM" else f"{STATE} h0"
    outputs = outputs or f"float[t, b, {HIDDEN}] Y, {STATE} h{steps}"
    return model(
        text.replace(*changed) if changed[0] else text,
        f"float[{steps}, b, {INPUTS}] X, {states}",
        outputs,
        found,
    )


operators = partial(operator_counts, passes=PASSES, verify="whole")


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_one_operator_for_each_step_is_one_for_all(kind: str) -> None:
    assert operators(chain(kind)) == Counter({kind: 1, "Squeeze": 1})


def test_states_in_between_are_parts() -> None:
    end = "a = Neg(h2) q = Tanh(s3)"
    found = operators(chain(end=end, outputs=f"{STATE} a, {STATE} q, {STATE} h4, {STATE} c4"))
    assert (found["LSTM"], found["Neg"], found["Tanh"]) == (1, 1, 1)


def test_it_is_checked_where_it_happens() -> None:
    assert operators(chain(end="a = Neg(h2)", outputs=f"{STATE} a, {STATE} h4"), verify="sites")["LSTM"] == 1


@pytest.mark.parametrize(
    ("made", "count", "why"),
    [
        (chain(end="a = Neg(c2)", outputs=f"{STATE} a, {STATE} h4"), 2, "a cell state is used: 2 and 2"),
        (chain(changed=("(x3, w,", "(x3, w2,")), 3, "other weights in one step"),
        (chain(changed=("x3 = Unsqueeze(e3, no0)", "q2 = Concat<axis = 2>(h2, h2) x3 = Slice(q2, no0, no3, no2)")), 2, "fed back"),
    ],
)  # fmt: skip
def test_what_stays(made: onnx.ModelProto, count: int, why: str) -> None:
    assert operators(made)["LSTM"] == count, why


def test_an_operator_in_a_loop_is_one_for_all_runs() -> None:
    body = f"""body = one ({STATE} h0, {STATE} c0, float[b, {INPUTS}] e) => ({STATE} h1, {STATE} c1, {STATE} o) {{
        x = Unsqueeze(e, no0) y, h1, c1 = LSTM<hidden_size = {HIDDEN}>(x, w, r, , , h0, c0) s = Squeeze(y, no1) o = Tanh(s) }}"""
    found = constants() | {"w": constants()["W"][None], "r": constants()["R"][None]}
    made = model(
        f"h, c, Y = Scan<num_scan_inputs = 1, {body}>(a, b0, X)",
        f"float[t, b, {INPUTS}] X, {STATE} a, {STATE} b0",
        f"float[t, 1, b, {HIDDEN}] Y, {STATE} h, {STATE} c",
        found,
    )
    result = ortfuse.optimize(made, passes="canonicalize, vectorize_loops, canonicalize", verify="whole").model
    found_operators = Counter(node.op_type for node in result.graph.node)
    assert (found_operators["LSTM"], found_operators["Scan"], found_operators["Tanh"]) == (1, 0, 1)
