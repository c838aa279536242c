"""All elements of an axis, added one by one, are a sum over that axis."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from graphs import operators
from small_models import apply, floats

from ortfuse.transforms import DeadCodeElimination, UnrolledSumToReduce

NUMBERS = ", ".join(f"int64 i{number} = {{{number}}}" for number in range(4))


def text(body: str, shape: str = "n,3,5", kind: str = "float", outputs: str = "[y0, y1] y") -> str:
    return f"""<ir_version: 8, opset_import: ["" : 20]> agraph ({kind}[{shape}] x) => ({kind}{outputs})
        <{NUMBERS}, int64 last = {{-1}}, int64[1] one = {{1}}> {{ {body} }}"""


def taken(*indices: str) -> str:
    return " ".join(f"{name} = Gather<axis = 1>(x, {index})" for name, index in zip("abcd", indices, strict=False))


ALL = taken("i1", "i0", "last")


def whole(*shape: int) -> dict[str, np.ndarray[Any, Any]]:
    """Whole numbers, of which sums are exact in any order."""
    return {"x": np.round(9 * floats(*shape))}


X = whole(2, 3, 5)


def test_all_elements_of_an_axis_are_summed_over() -> None:
    model, counts, _ = apply(
        text(f"{ALL} s = Add(a, b) y = Add(c, s)"), UnrolledSumToReduce(), DeadCodeElimination(), inputs=X
    )
    assert counts[0] == 1
    assert operators(model) == ["ReduceSum"]


def test_what_else_is_added_is_still_added() -> None:
    body = f"{ALL} z = ReduceMax<keepdims = 0>(x, one) s = Add(a, z) t = Add(s, b) y = Add(c, t)"
    model, counts, _ = apply(text(body), UnrolledSumToReduce(), DeadCodeElimination(), inputs=X)
    assert counts[0] == 1
    assert operators(model).count("Add") == 1


def test_elements_of_two_axes_are_summed_over_at_once() -> None:
    nodes = " ".join(f"r{row} = Gather<axis = 1>(x, i{row})" for row in range(3))
    names = []
    for row, column in product(range(3), range(2)):
        nodes += f" e{row}{column} = Gather<axis = 2>(r{row}, i{column})"
        names.append(f"e{row}{column}")
    total = names[0]
    for place, name in enumerate(names[1:]):
        nodes += f" {'y' if place == 4 else f's{place}'} = Add({total}, {name})"
        total = f"s{place}"
    model, counts, _ = apply(
        text(nodes, "n,3,4,2"), UnrolledSumToReduce(), DeadCodeElimination(), inputs=whole(2, 3, 4, 2)
    )
    assert counts[0] == 1
    assert operators(model) == ["ReduceSum"]


def test_nothing_is_summed_if_there_are_no_others() -> None:
    model, counts, _ = apply(
        text(f"{ALL} s = Add(a, b) y = Add(c, s)"), UnrolledSumToReduce(), DeadCodeElimination(), inputs=whole(0, 3, 5)
    )
    assert counts[0] == 1
    assert operators(model) == ["ReduceSum"]


LEFT = {
    "an element that is not added": f"{taken('i0', 'i1')} y = Add(a, b)",
    "an element twice": f"{taken('i0', 'i1', 'i1')} s = Add(a, b) y = Add(c, s)",
    "an element twice beside all": f"{ALL} q = Add(a, a) s = Add(q, b) y = Add(c, s)",
    "an element that is read elsewhere": f"{ALL} e = Exp(a) s = Add(a, b) t = Add(c, s) y = Mul(t, e)",
    "a sum that is read elsewhere": f"{ALL} s = Add(a, b) e = Exp(s) t = Add(c, s) y = Mul(t, e)",
    "an element that is not known": f"w = Size(x) {taken('i0', 'i1', 'w')} s = Add(a, b) y = Add(c, s)",
    "a part that keeps its axis": f"{taken('i0', 'i1')} c = Gather<axis = 1>(x, one) s = Add(a, b) t = Add(c, s) y = Squeeze(t)",
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_what_is_left_alone(case: str) -> None:
    assert apply(text(LEFT[case]), UnrolledSumToReduce())[1] == [0]


@pytest.mark.parametrize("shape", ["n,3,5,m", "n,k,5"])
def test_an_axis_of_unknown_size_is_left_alone(shape: str) -> None:
    outputs = "[y0, y1, y2] y" if shape.endswith("m") else "[y0, y1] y"
    assert apply(text(f"{ALL} s = Add(a, b) y = Add(c, s)", shape, outputs=outputs), UnrolledSumToReduce())[1] == [
        int("k" not in shape)
    ]


def test_a_type_that_the_runtime_does_not_sum_is_left_alone() -> None:
    assert apply(text(f"{ALL} s = Add(a, b) y = Add(c, s)", kind="float16"), UnrolledSumToReduce())[1] == [0]
