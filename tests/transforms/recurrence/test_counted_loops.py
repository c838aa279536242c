"""Loops that count besides with integers of their own, and end by a condition on them, as TensorFlow and Keras write them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import run
from recurrent_models import model

import ortfuse
from ortfuse.io.convert_model_objects import enter
from ortfuse.ir.walk import nodes

FLOAT, INT, LONG = 1, 6, 7
NAMES = {FLOAT: "float", INT: "int32", LONG: "int64"}


def counted(
    condition: str,
    kind: int = INT,
    start: int = 0,
    step: int = 1,
    limit: str = "",
    counting: str = "k = Add(j, step)",
    numbers: dict[str, Any] | None = None,
) -> onnx.ModelProto:
    """A Loop with a counter j of a type, next to the number i of the iteration: S grows by a third in each."""
    name = NAMES[kind]
    text = f"""
        start = Constant<value = {name} {{{start}}}>() step = Constant<value = {name} {{{step}}}>()
        end = Constant<value = {name} {{12}}>() end32 = Constant<value = int32 {{12}}>()
        S, J = Loop<body = one (int64 i, bool go, float[n] s, {name} j) => (bool on, float[n] r, {name} k) {{
            {counting} r = Add(s, third) {condition} }}>({limit}, yes, first, start)"""
    constants = {"third": np.float32(1 / 3), "eight": np.float32(8), "yes": np.bool_(True), **(numbers or {})}
    return model(text, "float[n] first", f"float[n] S, {name} J", constants)


def iterations(made: onnx.ModelProto) -> int | None:
    """How often the Loop provably runs: as often as it is unrolled, with the same results; `None` if it stays."""
    result = ortfuse.optimize(made, passes="fixpoint(unroll_loops{runs=40, nodes=400}, dce)").model
    feeds = {"first": np.zeros(2, np.float32)}
    for old, new in zip(run(made, feeds), run(result, feeds), strict=True):
        np.testing.assert_array_equal(new, old)
    found = Counter(node.op_type for node in nodes(enter(result)[0]))
    if found["Loop"]:
        return None
    assert round(float(run(made, feeds)[0][0]) * 3) == round(float(run(result, feeds)[0][0]) * 3)
    return round(float(run(result, feeds)[0][0]) * 3)


LIMIT = {"limit": "n", "numbers": {"n": np.int64(9)}}
BOTH = "a = Less(k, end) f = Cast<to = 1>(i) b = Less(f, eight) on = And(a, b)"


@pytest.mark.parametrize("kind", [INT, LONG, FLOAT])
@pytest.mark.parametrize(
    ("condition", "options", "count"),
    [
        ("on = Less(k, end)", {}, 12),
        ("on = LessOrEqual(k, end)", {}, 13),
        ("on = Greater(end, j)", {}, 13),
        ("l = GreaterOrEqual(k, end) on = Not(l)", {}, 12),
        ("on = Less(k, end)", {"start": 3}, 9),
        ("on = Greater(k, end)", {"start": 20, "step": -1}, 8),
        ("on = Less(k, end)", {"start": 12}, 1),
        ("on = Less(k, end)", LIMIT, 9),
        ("on = Less(k, end)", {**LIMIT, "start": 5}, 7),
        (BOTH, {}, 9),
        ("a = GreaterOrEqual(k, end) b = Not(go) c = Or(a, b) on = Not(c)", {}, 12),
        ("d = Sub(end, k) on = Greater(d, start)", {}, 12),
        ("on = Less(k, end)", {"counting": "m = Sub(j, start) k = Add(m, step)"}, 12),
    ],
)
def test_the_number_of_iterations(kind: int, condition: str, options: dict[str, Any], count: int) -> None:
    assert iterations(counted(condition, kind, **options)) == count


@pytest.mark.parametrize(
    ("condition", "options", "count"),
    [
        ("on = Less(k, end)", {"step": 5}, 3),
        ("d = Mul(k, step) on = Less(d, end)", {"step": 2}, 3),
        ("c = Cast<to = 7>(k) d = Cast<to = 6>(c) on = Less(d, end32)", {}, 12),
    ],
)
def test_other_steps_of_integers(condition: str, options: dict[str, Any], count: int) -> None:
    assert iterations(counted(condition, INT, **options)) == count


@pytest.mark.parametrize(
    ("condition", "options", "why"),
    [
        ("q = ReduceMax<keepdims = 0>(r) on = Less(q, eight)", {}, "it depends on what is computed"),
        ("a = Less(k, end) b = Not(go) on = Or(a, b)", {}, "one of several conditions may hold it"),
        ("on = Less(k, end)", {"counting": "k = Mul(j, step)", "start": 1, "step": 2}, "it grows by a factor"),
        (
            "c = Cast<to = 9>(k) d = Cast<to = 6>(c) on = Less(d, step)",
            {**LIMIT, "start": -6},
            "truth values are no counters",
        ),
        ("on = Less(k, end)", {"counting": "l = Add(j, step) k = Where(go, l, j)"}, "it may not count"),
        ("c = Cast<to = 3>(k) d = Cast<to = 6>(c) on = Less(d, end)", LIMIT, "8 bits do not hold all numbers"),
    ],
)
def test_what_is_not_counted(condition: str, options: dict[str, Any], why: str) -> None:
    assert iterations(counted(condition, **options)) is None, why


LOST = "b = Add(a, much) c = Sub(b, much)"


@pytest.mark.parametrize(
    ("counting", "condition", "numbers"),
    [
        (f"f = Cast<to = 1>(j) a = Add(f, one) {LOST} k = Cast<to = 6>(c)", "on = Less(j, end)", {"one": np.float32(1), "much": np.float32(2**24)}),
        ("f = Cast<to = 7>(j) a = Sub(f, much) d = Cast<to = 6>(a) b = Cast<to = 7>(d) c = Add(b, more) k = Cast<to = 6>(c)", "on = Less(j, end)",
         {"much": np.int64(2**31 - 1), "more": np.int64(2**31)}),
        ("k = Add(j, step)", "e = Cast<to = 6>(much) on = Less(k, e)", {"much": np.float32(2**33)}),
    ],
)  # fmt: skip
def test_numbers_that_a_type_between_does_not_hold_are_not_counted(
    counting: str, condition: str, numbers: dict[str, Any]
) -> None:
    made = counted(condition, start=1, counting=counting, limit="n", numbers={"n": np.int64(30), **numbers})
    assert iterations(made) is None


def test_an_integer_that_wraps_around_is_not_counted() -> None:
    made = counted("on = Greater(k, start)", INT, start=2**31 - 6, step=2, **LIMIT)  # type: ignore[arg-type]
    assert iterations(made) is None
