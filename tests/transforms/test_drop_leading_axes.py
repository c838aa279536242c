"""Axes that an Unsqueeze adds in front go where operators broadcast without them."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import operators
from small_models import apply

from ortfuse.transforms import CommonSubexpressionElimination, DropLeadingAxes

NUMBERS = "int64[1] first = {0}, int64[1] second = {1}, int64[2] front = {0, 1}, int64[2] around = {0, 2}, int64[3] wide = {0, 1, 3}, int64 step = {1}"

DROPPED = {
    "all": ("u = Unsqueeze(x, front) y = Add(u, z)", "Add"),
    "on the other side": ("u = Unsqueeze(x, front) y = Sub(z, u)", "Sub"),
    "those in front": ("u = Unsqueeze(x, wide) y = Mul(u, w)", "Unsqueeze Mul"),
    "of what is computed of it": ("u = Unsqueeze(x, front) v = Neg(u) y = Add(v, z)", "Neg Add"),
    "of both operands": (
        "u = Unsqueeze(x, front) v = Unsqueeze(x, wide) t = Sub(u, v) y = Add(t, w)",
        "Unsqueeze Sub Add",
    ),
    "of a condition": ("u = Unsqueeze(x, front) c = Less(u, step) y = Where(c, z, u)", "Less Where"),
}


def model_of(body: str) -> str:
    return f"""<ir_version: 8, opset_import: ["" : 18]>
        g (int64[s] x, int64[b, 3, s] z, int64[b, h, 1, s] w, int64[1, s] p) => (y) <{NUMBERS}> {{ {body} }}"""


def inputs() -> dict[str, np.ndarray]:
    made = {"x": (4,), "z": (2, 3, 4), "w": (2, 5, 1, 4), "p": (1, 4)}
    return {name: np.arange(np.prod(shape)).reshape(shape) for name, shape in made.items()}


@pytest.mark.parametrize("kind", DROPPED)
def test_axes_in_front_go(kind: str) -> None:
    body, expected = DROPPED[kind]
    model, _, _ = apply(model_of(body), DropLeadingAxes(), inputs=inputs())
    assert " ".join(operators(model)) == expected


KEPT = {
    "the result has them": "u = Unsqueeze(x, first) y = Neg(u)",
    "another operator reads them": "u = Unsqueeze(x, front) v = Concat<axis = 0>(u, u) y = Add(v, z)",
    "one reader of two needs them": "u = Unsqueeze(x, front) v = Transpose<perm = [2, 1, 0]>(u) t = Shape(v) s = Add(u, z) r = ReduceSum(t) y = Add(s, r)",
    "the first axis is another": "u = Unsqueeze(x, second) y = Add(u, x)",
    "a slope": "f = Cast<to = 1>(x) u = Unsqueeze(f, front) y = PRelu(u, u)",
}


@pytest.mark.parametrize("kind", KEPT)
def test_axes_that_are_needed_stay(kind: str) -> None:
    model, counts, _ = apply(model_of(KEPT[kind]), DropLeadingAxes(), inputs=inputs())
    assert counts == [0]
    assert "Unsqueeze" in operators(model)


def test_unsqueezes_of_one_value_become_equal() -> None:
    """As in decoders, whose masks and angles are made of the same positions."""
    body = """n = Gather<axis = 0>(x, step) r = Range(step, n, step) u = Unsqueeze(r, wide) c = Less(r, u) d = And(c, m)
        v = Unsqueeze(r, second) y = Cast<to = 1>(v)"""
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
        g (int64[s] x, bool[b, 1, 1, t] m) => (float[t, 1] y, bool[b, 1, t, t] d) <{NUMBERS}> {{ {body} }}"""
    given = {"x": np.array([3, 4]), "m": np.ones((2, 1, 1, 3), bool)}
    model, _, _ = apply(text, DropLeadingAxes(), CommonSubexpressionElimination(), inputs=given)
    assert operators(model).count("Unsqueeze") == 1


def test_unsqueezes_of_a_raised_opset_become_equal() -> None:
    text = """<ir_version: 8, opset_import: ["" : 12]> g (float[s] x, float[b, 1, t] m) => (float[b, s, t] y, float[s, 1] z) {
        u = Unsqueeze<axes = [0, 2]>(x) y = Add(u, m) v = Unsqueeze<axes = [1]>(x) z = Neg(v) }"""
    given = {"x": np.ones(3, np.float32), "m": np.ones((2, 1, 4), np.float32)}
    model, _, _ = apply(text, DropLeadingAxes(), CommonSubexpressionElimination(), inputs=given)
    assert operators(model).count("Unsqueeze") == 1
