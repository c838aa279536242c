"""Operators above a selection from constants instead of below it."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import operators
from small_models import apply

from ortfuse.transforms import ConstantFolding, DeadCodeElimination, HoistAboveSelection

NUMBERS = "float two = {2}, float[3] row = {1, 2, 3}, float[2, 1] column = {1, 2}, float zero = {0}, float low = {-9}, float[2] values = {0, 1}, int64 depth = {4}, int64[3] sizes = {2, 2, 3}"

HOISTED = {
    "a scale": ("t = Gather(w, i) y = Mul(t, two)", "Gather"),
    "on the other side": ("t = Gather(w, i) y = Sub(two, t)", "Gather"),
    "a row": ("t = Gather(w, i) y = Add(t, row)", "Gather"),
    "one after the other": ("t = Gather(w, i) s = Add(t, row) y = Sqrt(s)", "Gather"),
    "of the last axis": ("t = Gather<axis = 1>(w, i) y = Div(t, two)", "Gather"),
    "a choice": ("t = Where(m, zero, low) y = Max(t, two)", "Where"),
    "a choice of rows": ("t = Where(m, zero, row) y = Mul(row, t)", "Where"),
    "one of several": ("t = OneHot(i, depth, values) y = Cast<to = 7>(t)", "OneHot"),
}


def model_of(body: str) -> str:
    table = ", ".join(map(str, range(12)))
    return f"""<ir_version: 8, opset_import: ["" : 18]> g (int64[2, 2] i, bool[2, 1] m) => (y)
        <{NUMBERS}, float[4, 3] w = {{{table}}}> {{ {body} }}"""


def inputs() -> dict[str, np.ndarray]:
    return {"i": np.array([[0, 2], [1, 0]]), "m": np.array([[True], [False]])}


@pytest.mark.parametrize("kind", HOISTED)
def test_an_operator_is_computed_before_elements_are_selected(kind: str) -> None:
    body, expected = HOISTED[kind]
    passes = (HoistAboveSelection(), HoistAboveSelection(), ConstantFolding(), DeadCodeElimination())
    model, _, _ = apply(model_of(body), *passes, inputs=inputs())
    assert operators(model) == [expected]


@pytest.mark.parametrize("twice", [False, True])
def test_a_constant_branch_is_expanded_instead_of_the_choice(twice: bool) -> None:
    """As of masks of keys, which attention needs for each query."""
    body = "t = Where(m, zero, low) y = Expand(t, sizes)" + " u = Expand(t, others) z = Neg(u)" * twice
    text = f"""<ir_version: 8, opset_import: ["" : 18]> g (bool[b, 1, s] m) => (y{", z" * twice})
        <float zero = {{0}}, float low = {{-9}}, int64[3] sizes = {{1, 4, 1}}, int64[4] others = {{2, 1, 3, 1}}> {{ {body} }}"""
    passes = (HoistAboveSelection(), ConstantFolding(), DeadCodeElimination())
    model, _, _ = apply(text, *passes, inputs={"m": np.array([[[True, False]]])})
    assert operators(model) == (["Where", "Where"] if twice else ["Where"])


@pytest.mark.parametrize("sizes", ["{1, 4, 1}", "{1, 1, 9}"])
def test_a_choice_that_is_read_elsewhere_or_expanded_far_is_expanded_as_a_whole(sizes: str) -> None:
    read = "z = Neg(t)" if "4" in sizes else "z = Neg(y)"
    text = f"""<ir_version: 8, opset_import: ["" : 18]> g (bool[b, 1, 1] m) => (y, z)
        <float zero = {{0}}, float[999, 1] low = {{{", ".join(["1"] * 999)}}}, int64[3] sizes = {sizes}> {{
        t = Where(m, low, low) y = Expand(t, sizes) {read} }}"""
    assert apply(text, HoistAboveSelection())[1] == [0]


KEPT = {
    "a column": "t = Gather(w, i) y = Mul(t, column)",
    "something else reads what is selected": "t = Gather(w, i) s = Mul(t, two) y = Add(s, t)",
    "the scale varies": "t = Gather(w, i) c = Cast<to = 1>(m) y = Mul(t, c)",
    "a row for a number": "t = OneHot(i, depth, values) y = Add(t, column)",
    "truth values, of which the runtime selects none": "t = Where(m, zero, low) y = Cast<to = 9>(t)",
    "an operator along an axis": "t = Gather(w, i) y = Softmax(t)",
}


@pytest.mark.parametrize("kind", KEPT)
def test_others_stay(kind: str) -> None:
    text = model_of(KEPT[kind])
    _, counts, _ = apply(text, HoistAboveSelection(), inputs=inputs() if "column" not in KEPT[kind] else None)
    assert counts == [0]


@pytest.mark.parametrize(("cast", "count"), [("y = Cast<to = 11>(t)", 0), ("y = Cast<to = 10>(t)", 1)])
def test_a_table_does_not_take_more_memory(cast: str, count: int) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 18]> g (int64[2] i, float[8192] x) => (y)
        <float[8192] w = {{{", ".join(["1"] * 8192)}}}> {{ t = Gather(w, i) {cast} }}"""
    assert apply(text, HoistAboveSelection())[1] == [count]
