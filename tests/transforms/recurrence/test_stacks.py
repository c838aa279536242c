"""What is taken apart and stacked again stays whole, and what is computed of each part is computed of all."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from recurrent_models import model

import ortfuse

X = "float[3, b, 4] X"
WEIGHTS = {
    **{f"at{place}": np.int64(place) for place in range(3)}, **{f"no{place}": [place] for place in range(4)},
    "W": np.arange(8, dtype=np.float32).reshape(4, 2), "bias": np.ones(2, np.float32), "V": np.ones((4, 2), np.float32),
    "swapped": [1, 1, 4],
}  # fmt: skip
TAKEN = "x{t} = Gather(X, at{t})"
PART = "x{t} = Slice(X, no{t}, no{n}, no0)"
STACKED = "u{t} = Unsqueeze(y{t}, no0)"


def steps(*text: str, count: int = 3) -> str:
    return " ".join(one.format(t=t, n=t + 1) for t in range(count) for one in text)


def operators(body: str, outputs: str = "float[p, q, r] Y", inputs: str = X) -> Counter[str]:
    made = model(body, inputs, outputs, WEIGHTS)
    result = ortfuse.optimize(made, passes="canonicalize", verify="whole").model
    return Counter(node.op_type for node in result.graph.node)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        ("y{t} = Identity(x{t})", {}),
        ("y{t} = Tanh(x{t})", {"Tanh": 1}),
        ("m{t} = MatMul(x{t}, W) y{t} = Add(m{t}, bias)", {"MatMul": 1, "Add": 1}),
        ("m{t} = Gemm(x{t}, W, bias) y{t} = Softmax<axis = -1>(m{t})", {"MatMul": 1, "Add": 1, "Softmax": 1}),
        ("s{t} = Sigmoid(x{t}) y{t} = Mul(x{t}, s{t})", {"Sigmoid": 1, "Mul": 1}),
    ],
)
def test_layers_of_each_step_are_computed_at_once(layer: str, expected: dict[str, int]) -> None:
    found = operators(f"{steps(TAKEN, layer, STACKED)} Y = Concat<axis = 0>(u0, u1, u2) Z = Neg(Y)", "float[p, q, r] Z")
    assert found == Counter({"Neg": 1, **expected})


@pytest.mark.parametrize("axis", [0, 1])
def test_steps_may_keep_their_axis(axis: int) -> None:
    parts = "p{t} = Slice(X, no{t}, no{n}, no0) x{t} = Reshape(p{t}, swapped)" if axis else PART
    inputs = X.replace("b", "1") if axis else X
    body = f"{steps(parts, 'm{t} = MatMul(x{t}, W) y{t} = Tanh(m{t})')} Y = Concat<axis = {axis}>(y0, y1, y2)"
    found = operators(body, inputs=inputs)
    assert (found["MatMul"], found["Tanh"], found["Concat"], found["Slice"]) == (1, 1, 0, 0)


@pytest.mark.parametrize(("order", "gathers"), [("2 1 0", 1), ("2 0 1", 3)])
def test_steps_from_the_last_to_the_first_are_reversed_at_once(order: str, gathers: int) -> None:
    stacked = ", ".join(f"u{t}" for t in order.split())
    found = operators(f"{steps(TAKEN, 'y{t} = MatMul(x{t}, W)', STACKED)} Y = Concat<axis = 0>({stacked})")
    assert found["Gather"] == found["MatMul"] == gathers


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (steps(TAKEN, "y{t} = MatMul(x{t}, W)", STACKED).replace("(x1, W)", "(x1, V)"), "other weights"),
        (steps(TAKEN, "y{t} = MatMul(x{t}, W)", STACKED).replace("(X, at1)", "(X, at0)"), "a step twice"),
        (steps(TAKEN, "y{t} = MatMul(x{t}, W)", STACKED) + " Z = Neg(y1)", "a step is used otherwise"),
    ],
)
def test_what_stays(body: str, why: str) -> None:
    outputs = "float[p, q, r] Y" + (", float[p, q] Z" if "Z =" in body else "")
    assert operators(f"{body} Y = Concat<axis = 0>(u0, u1, u2)", outputs)["MatMul"] > 1, why


def test_steps_that_are_made_of_nothing_are_left() -> None:
    body = f"{steps('y{t} = RandomNormal<shape = [2]>()', STACKED)} Y = Concat<axis = 0>(u0, u1, u2)"
    result = ortfuse.optimize(model(body, X, "float[p, q] Y", WEIGHTS), passes="canonicalize")
    assert not result.report.failures
    assert Counter(node.op_type for node in result.model.graph.node)["RandomNormal"] == 3
