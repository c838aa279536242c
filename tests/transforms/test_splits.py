"""Slices that take a tensor apart: which become a Split, and that parts are what they were."""

from __future__ import annotations

import pytest
from graphs import operators
from small_models import apply, floats

from ortfuse.transforms import SlicesToSplit

NUMBERS = (
    "int64[1] a = {0}, int64[1] b = {2}, int64[1] c = {5}, int64[1] d = {8}, int64[1] last = {-1}, int64[1] far = {9223372036854775807}, "
    "int64[1] seven = {7}, int64[1] one = {1}, int64[1] two = {2}, int64[2] from = {0, 0}, int64[2] to = {2, 2}"
)


def text(body: str, shape: str = "n, 8") -> str:
    return f"g (float[{shape}] x, int64[1] i) => (p, q, r) <{NUMBERS}> {{ {body} }}"


SPLIT = {
    "neighbours": "p = Slice(x, a, b, one) q = Slice(x, b, c, one) r = Slice(x, c, d, one)",
    "in another order": "r = Slice(x, c, far, one) p = Slice(x, a, b, last) m = Neg(x) s = Slice(x, b, c, one) q = Add(s, s)",
    "with steps of 1": "p = Slice(x, a, b, one, one) q = Slice(x, b, c, one, one) r = Slice(x, c, d, one)",
}


@pytest.mark.parametrize("kind", SPLIT)
def test_slices_of_one_axis_are_one_split(kind: str) -> None:
    model, counts, _ = apply(text(SPLIT[kind]), SlicesToSplit(), inputs={"x": floats(3, 8), "i": [0]})
    assert counts == [3]
    assert operators(model).count("Split") == 1
    assert "Slice" not in operators(model)


def test_numbers_that_nothing_reads_any_more_are_gone() -> None:
    body = "p = Slice(x, a, b, one) q = Slice(x, b, c, one) s = Slice(x, c, d, one) r = Gather(s, c)"
    model, _, _ = apply(text(body, "9, 8"), SlicesToSplit(), inputs={"x": floats(9, 8), "i": [0]})
    before = set(apply(text("p = Neg(x) q = Neg(p) r = Gather(q, c)", "9, 8"), SlicesToSplit())[0].graph.initializers)
    assert before - set(model.graph.initializers) == {"a", "b", "d", "one"}


def test_sizes_are_an_attribute_before_opset_13() -> None:
    head = '<ir_version: 8, opset_import: ["" : 11]>\n'
    model, counts, _ = apply(head + text(SPLIT["neighbours"]), SlicesToSplit(), inputs={"x": floats(3, 8), "i": [0]})
    assert counts == [3]
    assert operators(model) == ["Split"]


LEFT = {
    "the last": "p = Slice(x, a, b, one) q = Slice(x, b, four, one) r = Slice(x, four, six, one)",
    "the first": "p = Slice(x, six, d, one) q = Slice(x, b, four, one) r = Slice(x, four, six, one)",
    "more than one takes": "p = Slice(x, one, b, one) q = Slice(x, four, six, one) r = Slice(x, six, seven, one)",
    "one between": "p = Slice(x, a, b, one) q = Slice(x, four, six, one) r = Slice(x, six, d, one)",
}


@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_small_part_that_nothing_reads_is_split_off_too(left: str, rows: int) -> None:
    written = text(LEFT[left]).replace("int64[1] a", "int64[1] four = {4}, int64[1] six = {6}, int64[1] a")
    model, counts, _ = apply(written, SlicesToSplit(), inputs={"x": floats(rows, 8), "i": [0]})
    assert counts == [3]
    assert operators(model) == ["Split"]


OTHERS = {
    "more is left than is taken": "p = Slice(x, a, one, one) q = Slice(x, one, b, one) r = Slice(x, seven, d, one)",
    "some is left of two": "p = Slice(x, a, c, one) q = Slice(x, c, seven, one) r = Neg(x)",
    "they overlap": "p = Slice(x, a, c, one) q = Slice(x, b, d, one) r = Neg(x)",
    "some is left": "p = Slice(x, a, one, one) q = Slice(x, one, c, one) r = Neg(x)",
    "bounds are computed": "p = Slice(x, a, i, one) q = Slice(x, i, d, one) r = Neg(x)",
    "every second element": "p = Slice(x, a, d, one, two) q = Slice(x, one, d, one, two) r = Neg(x)",
    "several axes": "p = Slice(x, from, to) q = Slice(x, b, d, one) r = Neg(x)",
    "different axes": "p = Slice(x, a, b, one) q = Slice(x, b, d, a) r = Neg(x)",
    "an axis of any size": "p = Slice(x, a, b, a) q = Slice(x, b, far, a) r = Neg(x)",
    "different tensors": "m = Neg(x) p = Slice(x, a, b, one) q = Slice(m, b, d, one) r = Neg(m)",
    "nothing": "p = Slice(x, b, b, one) q = Slice(x, a, d, one) r = Neg(x)",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_slices_stay(kind: str) -> None:
    assert apply(text(OTHERS[kind]), SlicesToSplit())[1] == [0]


def unsqueezes(body: str, outputs: str, shape: str) -> str:
    return f"g (float[{shape}] x) => ({outputs}) <int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] last = {{-1}}> {{ {body} }}"


def unsqueezed(axis: int, *axes: str) -> str:
    parts = " ".join(f"{name} = Unsqueeze(p{name}, {added})" for name, added in zip("abc", axes, strict=True))
    return f"s = Constant<value_ints = [1, 3, 2]>() pa, pb, pc = Split<axis = {axis}>(x, s) {parts}"


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("added", ["one", "two", "last"])
def test_parts_that_get_an_axis_get_it_together(axis: int, added: str) -> None:
    shape, x = ("6,n", floats(6, 5)) if axis == 0 else ("n,6", floats(5, 6))
    outputs = ", ".join(f"float[{name}0, {name}1, {name}2] {name}" for name in "abc")
    model, counts, _ = apply(
        unsqueezes(unsqueezed(axis, added, added, added), outputs, shape), SlicesToSplit(), inputs={"x": x}
    )
    assert counts == [3]
    assert [kind for kind in operators(model) if kind != "Constant"] == ["Unsqueeze", "Split"]


@pytest.mark.parametrize(
    "body",
    [
        unsqueezed(1, "one", "one", "two"),
        unsqueezed(1, "one", "one", "one").replace("Unsqueeze(pc, one)", "Expand(pc, one)"),
    ],
)
def test_parts_that_get_other_axes_keep_them(body: str) -> None:
    outputs = ", ".join(f"float[{name}0, {name}1, {name}2] {name}" for name in "ab")
    assert apply(unsqueezes(body, outputs, "n,6"), SlicesToSplit())[1] == [0]
