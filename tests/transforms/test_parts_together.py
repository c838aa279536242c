"""Parts of one tensor are transposed together where fewer Transposes are executed."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import operators
from small_models import apply, floats

from ortfuse.transforms import MergeSiblingTransposes

OUTPUTS = ", ".join(f"float[{name}0, {name}1, {name}2, {name}3] {name}" for name in "abc")


def text(body: str, outputs: str = OUTPUTS, shape: str = "n,5,3,2,4") -> str:
    return f"""<ir_version: 8, opset_import: ["" : 20]> agraph (float[{shape}] x) => ({outputs})
        <int64 first = {{0}}, int64 second = {{1}}, int64 third = {{-1}}, int64[1] one = {{1}}> {{ {body} }}"""


def parts(*perms: str, taken: tuple[str, ...] = ("first", "second", "third")) -> str:
    return " ".join(
        f"g{name} = Gather<axis = 2>(x, {index}) {name} = Transpose<perm = [{perm}]>(g{name})"
        for name, index, perm in zip("abc", taken, perms, strict=True)
    )


ALIKE = parts("0,2,1,3", "0,2,1,3", "0,2,1,3")
X = {"x": floats(2, 5, 3, 2, 4)}


def test_parts_that_are_transposed_alike_are_transposed_as_one() -> None:
    model, counts, _ = apply(text(ALIKE), MergeSiblingTransposes(), inputs=X)
    assert counts == [1]
    assert operators(model) == ["Transpose", "Gather", "Gather", "Gather"]


@pytest.mark.parametrize(("reader", "merged"), [("MatMul(a, b)", 1), ("Abs(b)", 0)])
def test_a_part_is_transposed_the_rest_of_the_way_where_a_product_reads_it_as_it_is(reader: str, merged: int) -> None:
    body = f"""ga = Gather<axis = 2>(x, first) a = Transpose<perm = [0,2,1,3]>(ga)
        gb = Gather<axis = 2>(x, third) b = Transpose<perm = [0,2,3,1]>(gb) y = {reader} z = Neg(a)"""
    outputs = "float[y0, y1, y2, y3] y, float[z0, z1, z2, z3] z"
    model, counts, _ = apply(
        text(body, outputs, "n,5,2,3,4"), MergeSiblingTransposes(), inputs={"x": floats(2, 5, 2, 3, 4)}
    )
    assert counts == [merged]
    perms = [node.attributes["perm"].as_ints() for node in model.graph if node.op_type == "Transpose"]
    assert ((0, 1, 3, 2) in perms) == bool(merged)


LEFT = {
    "transposed in three ways": parts("0,2,1,3", "0,3,2,1", "1,0,2,3"),
    "an element twice": parts("0,2,1,3", "0,2,1,3", "0,2,1,3", taken=("first", "second", "second")),
    "read by something else": ALIKE.replace("c = Transpose<perm = [0,2,1,3]>(gc)", "t = Abs(gc) c = Transpose(t)"),
    "elements that are not known": "n = Size(x) " + parts("0,2,1,3", "0,2,1,3", "0,2,1,3", taken=("first", "second", "n")),
    "a part that keeps its axis": ALIKE.replace("(x, second)", "(x, one)").replace("b = Transpose<perm = [0,2,1,3]>(gb)",
                                                                                "h = Squeeze(gb) b = Transpose(h)"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_what_is_left_alone(case: str) -> None:
    assert apply(text(LEFT[case]), MergeSiblingTransposes())[1] == [0]


def test_large_tensors_are_transposed_in_parts() -> None:
    large = text(ALIKE, shape="n,1000,3,12,64")
    assert apply(large, MergeSiblingTransposes())[1] == [0]


def test_nothing_is_moved_for_one_transposition() -> None:
    body = parts("0,2,1,3", "0,1,2,3", "0,1,2,3")
    assert apply(text(body), MergeSiblingTransposes(), inputs={"x": np.ones((2, 5, 3, 2, 4), np.float32)})[1] == [0]
