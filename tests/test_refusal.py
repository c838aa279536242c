"""What a refusal says is made of its fields."""

from __future__ import annotations

from typing import get_args

import onnx_ir as ir
import pytest

from ortfuse.ir.dims import symbol
from ortfuse.ir.refusal import ANY, Code, Refusal, Subject, refuse, words

X = ir.Value(name="x")
MASK = Subject.of(X, "mask")
b, s = symbol("b"), symbol("s")


@pytest.mark.parametrize("code", get_args(Code))
def test_every_code_has_a_reason_and_a_remedy_without_gaps(code: Code) -> None:
    refusal = refuse(code, X, found="this", needed="that")
    assert "{" not in refusal.reason + refusal.remedy
    assert refusal.to_dict()["code"] == code
    assert not refusal.reason.endswith((" ", "."))


def test_of_two_shapes_the_remedy_names_the_sizes_that_differ() -> None:
    refusal = refuse("shape", MASK, found=(b, 1, 4), needed=(b, s, 4))
    assert refusal.reason == "'x' (mask) has the shape [b, 1, 4], not provably [b, s, 4]"
    assert refusal.remedy.startswith("dimension 1 of 'x' (mask) were s, not 1: declare")
    assert refuse("shape", MASK, found=(2, 3), needed=(ANY, 4)).remedy == "dimension 1 of 'x' (mask) were 4, not 3"


def test_what_is_not_known_is_to_be_declared() -> None:
    refusal = refuse("dtype", X, found=None, needed=ir.DataType.FLOAT)
    assert refusal.reason == "the element type of 'x' is not known"
    assert "declare the types" in refusal.remedy


def test_a_remedy_of_the_author_goes_before_the_template() -> None:
    assert refuse("rank", X, found=3, needed=4, remedy="it were split into heads").remedy == "it were split into heads"


def test_the_names_are_those_at_the_time_of_the_refusal() -> None:
    value = ir.Value(name="before")
    refusal = refuse("used_elsewhere", value, found=value)
    value.name = "after"
    assert "after" not in refusal.reason
    assert refusal == Refusal("used_elsewhere", Subject("value", "before"), "'before'")


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (ir.DataType.DOUBLE, "float64"),
        (ir.DataType.INT8, "int8"),
        (frozenset({2, 3}), "2 or 3"),
        ((b, 2 * s), "[b, 2*s]"),
        (0.1, "0.1"),
        (None, "not known"),
    ],
)
def test_things_in_words(thing: object, text: str) -> None:
    assert words(thing) == text
