"""Chains of data movement: which become shorter, and that elements stay what and where they were."""

from __future__ import annotations

import pytest
from graphs import operators
from small_models import apply, floats

from ortfuse.transforms import SimplifyDataMovement

NUMBERS = (
    "int64 first = {0}, int64 third = {2}, int64[1] none = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, "
    "int64[1] last = {-1}, int64[1] far = {9223372036854775807}, int64[1] before = {-9223372036854775808}, "
    "int64[2] rows = {6, 4}, int64[2] long = {12, 2}, int64[2] short = {6, 2}, int64[3] back = {2, 3, 4}, int64[3] wide = {0, 2, 6}, "
    "int64[2] all = {0, 12}, int64[4] apart = {2, 3, 2, 2}, int64[2] turned = {1, 0}, int64[3] uneven = {0, 1, 3}, "
    "int64[4] heads = {0, 3, 2, 2}, int64[3] half = {0, 3, 2}, "
    "int64[3] twice = {1, 2, 1}, int64[4] repeated = {2, 5, 3, 4}, int64[3] merged = {2, 15, 4}"
)


def text(body: str, shape: str = "2, 3, 4", dtype: str = "float") -> str:
    return f"g ({dtype}[{shape}] x, int64[1] i, {dtype}[4, 5] w) => (y) <{NUMBERS}> {{ {body} }}"


SHORTER = {
    "a Reshape that adds an axis too": ("r = Reshape(x, rows) y = Unsqueeze(r, none)", "Reshape"),
    "the element of a Slice": ("s = Slice(x, one, two, one) y = Squeeze(s, one)", "Gather"),
    "reshaped back": ("r = Reshape(x, rows) t = Reshape(r, back) y = Relu(t)", "Relu"),
    "reversed twice": ("r = Slice(x, last, before, two, last) s = Slice(r, last, before, two, last) y = Relu(s)", "Relu"),
    "an element of reversed ones": ("s = Slice(x, last, before, one, last) y = Gather<axis = 1>(s, first)", "Gather"),
    "an element of some": ("s = Slice(x, one, far, two) y = Gather<axis = 2>(s, third)", "Gather"),
    "elements one after the other": ("s = Slice(x, one, far, two) y = Gather<axis = 2>(s, turned)", "Slice"),
    "what is kept of a split axis": ("r = Reshape(x, apart) s = Slice(r, one, two, three) y = Reshape(s, short)", "Slice Reshape"),
    "axes that stay together": (
        "a = Transpose<perm = [1, 2, 0]>(x) b = Reshape(a, long) c = Transpose<perm = [1, 0]>(b) d = Reshape(c, back) y = Relu(d)", "Relu",
    ),
    "one of repeated ones": ("t = Tile(x, twice) s = Slice(t, three, far, one) y = Relu(s)", "Relu"),
    "rows that are repeated": ("u = Unsqueeze(x, one) e = Expand(u, repeated) r = Reshape(e, merged) y = Relu(r)", "Gather Relu"),
    "an axis of one element": ("u = Unsqueeze(x, one) g = Gather<axis = 3>(u, first) t = Transpose<perm = [1, 0, 2]>(g) y = Relu(t)", "Gather Unsqueeze Relu"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SHORTER)
def test_chains_become_the_shortest_of_the_same_effect(kind: str) -> None:
    body, left = SHORTER[kind]
    model, _, _ = apply(text(body), SimplifyDataMovement(), inputs={"x": floats(2, 3, 4), "i": [0], "w": floats(4, 5)})
    assert operators(model) == left.split()


ANY_SIZE = {
    "reshaped back": ("r = Reshape(x, all) s = Reshape(r, wide) t = Flatten(s) y = Relu(t)", "Reshape Relu"),
    "reversed twice": ("r = Slice(x, last, before, none, last) s = Slice(r, last, before, none, last) y = Relu(s)", "Relu"),
    "a head that is not the first": ("h = Reshape(x, heads) g = Gather<axis = 2>(h, one) r = Reshape(g, half) y = Relu(r)", "Slice Relu"),
    "behind an axis of any size": ("s = Slice(x, one, two, one) q = Squeeze(s, one) y = Relu(q)", "Gather Relu"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ANY_SIZE)
@pytest.mark.parametrize("size", [0, 3])
def test_an_axis_may_have_any_size(kind: str, size: int) -> None:
    body, left = ANY_SIZE[kind]
    inputs = {"x": floats(size, 3, 4), "i": [0], "w": floats(4, 5)}
    model, _, _ = apply(text(body, "n, 3, 4"), SimplifyDataMovement(), inputs=inputs)
    assert operators(model) == left.split()


OTHERS = {
    "a part that is used elsewhere": "s = Slice(x, one, two, one) q = Squeeze(s, one) r = Squeeze(s, one) t = Relu(s) u = Add(q, r) y = Add(u, t)",
    "elements that are not evenly spaced": "s = Slice(x, one, far, one) y = Gather<axis = 2>(s, uneven)",
    "a bound that is computed": "s = Slice(x, i, far, one) y = Gather<axis = 2>(s, first)",
    "two that are needed": "t = Transpose<perm = [1, 0, 2]>(x) y = Reshape(t, rows)",
    "another operator between": "s = Slice(x, one, two, one) t = Relu(s) y = Squeeze(t, one)",
    "a Slice of which an axis of any size may have nothing": "s = Slice(x, none, one, i) y = Squeeze(s, none)",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_chains_stay(kind: str) -> None:
    assert apply(text(OTHERS[kind]), SimplifyDataMovement())[1] == [0]


def test_wide_transposes_are_not_made() -> None:
    """The runtime transposes five axes several times slower than four: Reshapes around a Transpose stay."""
    body = "a = Transpose<perm = [2, 0, 4, 1, 3]>(x) y = Relu(a)"
    shape = "2, 3, 2, 2, 5"
    assert apply(text(body, shape), SimplifyDataMovement())[1] == [0]


def test_a_transpose_may_stay_for_others() -> None:
    body = "t = Transpose<perm = [1, 0, 2]>(x) s = Slice(t, one, two, two) q = Squeeze(s, two) u = Relu(t) v = ReduceSum(u) y = Add(q, v)"
    model, _, _ = apply(text(body), SimplifyDataMovement(), inputs={"x": floats(2, 3, 4), "i": [0], "w": floats(4, 5)})
    assert operators(model) == ["Transpose", "Gather", "Relu", "ReduceSum", "Add"]


@pytest.mark.parametrize(("dtype", "count"), [("float", 1), ("float16", 0)])
def test_products_of_float16_get_no_transpose(dtype: str, count: int) -> None:
    """The runtime may crash on them, so that a rule spells the Transpose with an axis more."""
    body = "u = Unsqueeze(x, none) t = Transpose<perm = [0, 2, 1, 3]>(u) s = Squeeze(t, none) y = MatMul(s, w)"
    assert apply(text(body, dtype=dtype), SimplifyDataMovement())[1] == [count]
