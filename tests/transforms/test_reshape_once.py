"""What Reshapes do to each part of a Split or Concat, one of them does to all."""

from __future__ import annotations

import pytest
from graphs import operators
from small_models import apply, floats

from ortfuse.transforms import DeadCodeElimination, SlicesToSplit

NUMBERS = "int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 last = {-1}, int64[1] first = {0}, int64[1] second = {1}, int64[1] third = {2}"

TAKEN = {
    "of a middle axis": (
        "n, 3, 4",
        "a = Gather<axis = 1>(x, zero) b = Gather<axis = 1>(x, one) c = Gather<axis = 1>(x, last)",
    ),
    "of the first axis": ("3, 4, n", "c = Gather(x, two) b = Gather(x, one) a = Gather(x, zero)"),
    "by a Split": (
        "n, 3, 4",
        "p, q, r = Split<axis = 1, num_outputs = 3>(x) a = Squeeze(p, second) b = Squeeze(q, second) c = Squeeze(r, second)",
    ),
}


def model_of(body: str, shape: str, outputs: str = "a, b, c") -> str:
    return f'<ir_version: 8, opset_import: ["" : 18]> g (float[{shape}] x) => ({outputs}) <{NUMBERS}> {{ {body} }}'


@pytest.mark.parametrize("kind", TAKEN)
@pytest.mark.parametrize("rows", [0, 2])
def test_all_elements_of_an_axis_are_parts_of_one_split(kind: str, rows: int) -> None:
    shape, body = TAKEN[kind]
    sizes = [rows if size == "n" else int(size) for size in shape.split(", ")]
    model, _, _ = apply(model_of(body, shape), SlicesToSplit(), DeadCodeElimination(), inputs={"x": floats(*sizes)})
    assert operators(model) == ["Reshape", "Split"]


def test_elements_of_the_last_axis_are_parts_of_a_transposed_one() -> None:
    shape = "2, 4"
    body = (
        "p, q, r, s = Split<axis = -1, num_outputs = 4>(x) a = Squeeze(p, second) b = Squeeze(q, second) "
        "c = Squeeze(r, second) d = Squeeze(s, second)"
    )
    model, _, _ = apply(
        model_of(body, shape, "a, b, c, d"), SlicesToSplit(), DeadCodeElimination(), inputs={"x": floats(2, 4)}
    )
    assert operators(model) == ["Transpose", "Reshape", "Split"]


def test_four_elements_of_the_last_axis_are_taken_apart_at_once() -> None:
    body = "a = Gather<axis = 1>(x, zero) b = Gather<axis = 1>(x, one) c = Gather<axis = 1>(x, two) d = Gather<axis = 1>(x, last)"
    model, _, _ = apply(model_of(body, "n, 4", "a, b, c, d"), SlicesToSplit(), inputs={"x": floats(0, 4)})
    assert operators(model) == ["Transpose", "Reshape", "Split"]


KEPT = {
    "not all": ("n, 4, 4", "a = Gather<axis = 1>(x, zero) b = Gather<axis = 1>(x, one) c = Gather<axis = 1>(x, two)"),
    "a size that is no number": (
        "n, 3, m",
        "a = Gather<axis = 1>(x, zero) b = Gather<axis = 1>(x, one) c = Gather<axis = 1>(x, two)",
    ),
    "of the last axis": (
        "n, 3",
        "a = Gather<axis = 1>(x, zero) b = Gather<axis = 1>(x, one) c = Gather<axis = 1>(x, two)",
    ),
}


@pytest.mark.parametrize("kind", KEPT)
def test_other_elements_stay(kind: str) -> None:
    shape, body = KEPT[kind]
    sizes = [{"n": 2, "m": 3}.get(size) or int(size) for size in shape.split(", ")]
    model, _, _ = apply(model_of(body, shape), SlicesToSplit(), inputs={"x": floats(*sizes)})
    assert operators(model) == ["Gather"] * 3


STACKED = {
    "before an axis": ("n, 4", "second", 1, ["Concat", "Reshape"]),
    "as the last axis": ("n, 4", "third", 2, ["Concat", "Reshape", "Transpose"]),
    "as the first axis": ("3, 4", "first", 0, ["Concat", "Reshape"]),
    "as the last of two": ("n", "second", 1, ["Concat", "Reshape", "Transpose"]),
}


@pytest.mark.parametrize("kind", STACKED)
@pytest.mark.parametrize("rows", [0, 2])
def test_a_stack_is_reshaped_once(kind: str, rows: int) -> None:
    shape, axes, axis, wanted = STACKED[kind]
    body = (
        f"u = Relu(x) v = Neg(x) w = Exp(x) p = Unsqueeze(u, {axes}) q = Unsqueeze(v, {axes}) r = Unsqueeze(w, {axes}) "
        f"a = Concat<axis = {axis}>(p, q, r)"
    )
    sizes = [rows if size == "n" else int(size) for size in shape.split(", ")]
    model, _, _ = apply(model_of(body, shape, "a"), SlicesToSplit(), inputs={"x": floats(*sizes)})
    assert operators(model)[3:] == wanted


def test_a_stack_of_two_unknown_sizes_stays() -> None:
    body = "u = Relu(x) v = Neg(x) p = Unsqueeze(u, third) q = Unsqueeze(v, third) r = Unsqueeze(x, third) a = Concat<axis = 2>(p, q, r)"
    model, _, _ = apply(model_of(body, "n, m", "a"), SlicesToSplit(), inputs={"x": floats(2, 3)})
    assert operators(model).count("Unsqueeze") == 3


def test_parts_of_several_elements_are_reshaped_together() -> None:
    body = (
        "u = Relu(x) v = Neg(x) w = Exp(x) p = Unsqueeze(u, first) q = Unsqueeze(v, first) s = Concat<axis = 0>(u, v) "
        "r = Unsqueeze(w, first) t = Unsqueeze(s, first) a = Concat<axis = 1>(p, q, r, t)"
    )
    model, _, _ = apply(model_of(body, "n, 4", "a"), SlicesToSplit(), inputs={"x": floats(2, 4)})
    assert operators(model).count("Unsqueeze") + operators(model).count("Reshape") == 1


def test_a_part_that_something_else_reads_stays() -> None:
    body = (
        "u = Relu(x) v = Neg(x) w = Exp(x) p = Unsqueeze(u, second) q = Unsqueeze(v, second) r = Unsqueeze(w, second) "
        "a = Concat<axis = 1>(p, q, r) b = Neg(p)"
    )
    model, _, _ = apply(model_of(body, "n, 4", "a, b"), SlicesToSplit(), inputs={"x": floats(2, 4)})
    assert operators(model).count("Unsqueeze") == 3
