"""What a loop counts and asks besides is not computed in its runs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from recurrent_models import model

import ortfuse

NUMBERS = {
    "runs": np.int64(12), "zero": np.int64(0), "first": np.int64(1), "one": np.int64(1), "end": np.float32(12),
    "early": np.float32(7),
}  # fmt: skip
COUNTED = """
    Y, J, Z = Loop<body = one (int64 i, bool go, float[n] s, int64 j) => (bool on, float[n] r, int64 k, float[n] t) {
        x = Gather(X, j) k = Add(j, one) s1 = Sub(x, s) r = Tanh(s1) t = Identity(r)
        f = Cast<to = 1>(k) h = Cast<to = 1>(i) g = Less(f, end) l = Less(h, end) on = And(g, l) }>(runs, , S, zero)"""


def found(text: str, outputs: str = "float[n] Y, float[p, n] Z") -> Counter[str]:
    """The operators in the body of the loop; both sides of each change are compared."""
    made = model(text, "float[12, n] X, float[n] S", outputs, NUMBERS)
    result = ortfuse.optimize(made, passes="fixpoint(licm, dce)", verify="sites")
    assert {check.state for check in result.sites} <= {"equal"}
    (node,) = result.model.graph.node
    (body,) = [attribute.g for attribute in node.attribute if attribute.name == "body"]
    return Counter(node.op_type for node in body.node if node.op_type != "Identity")


def test_a_loop_goes_by_the_number_of_its_run() -> None:
    assert found(COUNTED) == Counter(Gather=1, Sub=1, Tanh=1)


@pytest.mark.parametrize(
    ("text", "kept", "why"),
    [
        (
            COUNTED.replace("Less(f, end)", "Less(f, late)").replace(
                "h = Cast", "q = ReduceSum<keepdims = 0>(r) late = Cast<to = 1>(q) h = Cast"
            ),
            Counter(Less=2, And=1, Cast=2),
            "it may end early",
        ),
        (
            COUNTED.replace("on = And(g, l)", "on = And(g, l) c = Cast<to = 1>(on) t = Mul(r, c)").replace(
                "t = Identity(r)", ""
            ),
            Counter(Less=2),
            "is read besides",
        ),
    ],
)
def test_what_is_asked_for(text: str, kept: Counter[str], why: str) -> None:
    assert not kept - found(text), why


def test_an_early_end_is_the_number_of_runs() -> None:
    assert found(COUNTED.replace("Less(f, end)", "Less(f, early)")) == Counter(Gather=1, Sub=1, Tanh=1)


def test_a_counter_that_is_a_result_stays() -> None:
    assert found(COUNTED, "float[n] Y, float[p, n] Z, int64 J") == Counter(Gather=1, Sub=1, Tanh=1, Add=1)


def test_elements_by_a_counter_that_is_ahead_stay_theirs() -> None:
    text = COUNTED.replace("(runs, , S, zero)", "(runs, , S, first)").replace("Gather(X, j)", "Gather(X, m)")
    assert found(text.replace("x = ", "m = Sub(j, one) x = "))["Gather"] == 1
