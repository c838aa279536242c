"""Tensors that go through sequences are passed on directly, where it is known which is which."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import operators
from small_models import apply, floats, model_of

import ortfuse
from ortfuse.transforms import DeadCodeElimination, EliminateSequences

HEAD = '<ir_version: 8, opset_import: ["" : {opset}]>\n'
CONSTANTS = """<int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 five = {5}, int64 last = {-1}, int64[2] sizes = {1, 3},
    int64 pairs = {2}>"""
X = {"x": floats(3, 4)}


def text(body: str, outputs: str = "float[p, q] y", inputs: str = "float[3, 4] x", opset: int = 17) -> str:
    return HEAD.format(opset=opset) + f"g ({inputs}) => ({outputs})\n{CONSTANTS} {{ {body} }}"


def resolved(written: str, **inputs: np.ndarray) -> list[str]:
    """The operators after the pass, which must not change a bit."""
    model, _, _ = apply(written, EliminateSequences(), DeadCodeElimination(), inputs=inputs or X)
    return operators(model)


@pytest.mark.parametrize("opset", [11, 12, 13, 18])
@pytest.mark.parametrize(
    ("split", "parts", "made"),
    [
        ("SplitToSequence<axis = 1>(x, sizes)", ("zero", "one"), ["Split"]),
        ("SplitToSequence<axis = -1>(x, pairs)", ("last", "zero"), ["Split"]),
        ("SplitToSequence(x, pairs)", ("one", "zero"), ["Split"]),
        ("SplitToSequence(x)", ("zero", "one", "two"), ["Split"]),
        ("SplitToSequence<keepdims = 0>(x)", ("two", "one", "zero"), ["Split", *["Squeeze"] * 3]),
        ("SplitToSequence<axis = 1, keepdims = 0>(x)", ("one", "last"), ["Slice", "Squeeze"] * 2),
        ("SplitToSequence<keepdims = 0>(x, one)", ("two", "one", "zero"), ["Split", *["Squeeze"] * 3]),
        ("SplitToSequence<axis = 1>(x, sizes)", ("one",), ["Slice"]),
        ("SplitToSequence(x, pairs)", ("one",), ["Slice"]),
    ],
)
def test_parts_of_a_tensor(split: str, parts: tuple[str, ...], made: list[str], opset: int) -> None:
    reads = " ".join(f"y{number} = SequenceAt(s, {place})" for number, place in enumerate(parts))
    rank = "p" if "keepdims" in split else "p, q"
    outputs = ", ".join(f"float[{rank}] y{number}" for number in range(len(parts)))
    found = resolved(text(f"s = {split} {reads}", outputs, opset=opset))
    assert [name for name in found if name != "Identity"] == made


def test_a_size_that_is_not_known_is_cut_only_into_given_parts() -> None:
    ops = {
        split: resolved(text(f"s = {split} y = SequenceAt(s, one)", inputs="float[3, n] x"))
        for split in ("SplitToSequence<axis = 1>(x, sizes)", "SplitToSequence<axis = 1>(x, pairs)")
    }
    # A Slice would accept sizes on which the original fails.
    assert [*ops.values()] == [["Split"], ["SplitToSequence", "SequenceAt"]]


@pytest.mark.parametrize(
    ("sequence", "place", "expected"),
    [
        ("s = SequenceConstruct(a, b, x)", "one", "Tanh"),
        ("s = SequenceConstruct(a, b, x)", "last", None),
        ("e = SequenceEmpty() f = SequenceInsert(e, a) s = SequenceInsert(f, b, last)", "zero", "Tanh"),
        ("e = SequenceConstruct(a) s = SequenceInsert(e, b, one)", "one", "Tanh"),
        ("e = SequenceConstruct(a, b, x) s = SequenceErase(e)", "last", "Tanh"),
        ("e = SequenceConstruct(a, b, x) s = SequenceErase(e, zero)", "last", None),
        ("e = SequenceConstruct(a, b, x) s = SequenceErase(e, last)", "zero", "Neg"),
    ],
)
def test_what_was_put_into_a_sequence(sequence: str, place: str, expected: str | None) -> None:
    found = resolved(text(f"a = Neg(x) b = Tanh(x) {sequence} z = SequenceAt(s, {place}) y = Exp(z)"))
    assert found == [expected, "Exp"] if expected else found == ["Exp"]


@pytest.mark.parametrize("new_axis", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("opset", [11, 17])
def test_a_sequence_that_is_joined_is_a_concat(new_axis: int, axis: int, opset: int) -> None:
    join = f"y = ConcatFromSequence<axis = {axis}, new_axis = {new_axis}>(s)"
    outputs = "float[p, q, r] y" if new_axis else "float[p, q] y"
    found = resolved(text(f"a = Neg(x) s = SequenceConstruct(a, x) {join}", outputs, opset=opset))
    assert found == ["Neg", *["Unsqueeze"] * 2 * new_axis, "Concat"]


def test_an_element_may_come_out_of_another_sequence() -> None:
    body = """s = SplitToSequence<axis = 1>(x, sizes) a = SequenceAt(s, zero) t = SequenceConstruct(a, x) b = SequenceAt(t, zero)
        u = SequenceInsert(t, b) c = ConcatFromSequence<axis = 1>(u) v = SequenceConstruct(c) y = SequenceAt(v, last)"""
    assert resolved(text(body)) == ["Slice", "Concat"]


@pytest.mark.parametrize(
    "body",
    [
        "s = SequenceConstruct(x, x) y = SequenceAt(s, five)",
        "s = SequenceConstruct(x, x) y = SequenceAt(s, place)",
        "s = SequenceConstruct(x, x) t = SequenceInsert(s, x, place) y = SequenceAt(t, zero)",
        "s = SequenceEmpty() y = ConcatFromSequence<axis = 0>(s)",
        "a = SequenceConstruct(x) b = SequenceConstruct(x, x) s = If (c) <then_branch = f () => (seq(float) r) { r = "
        "SequenceInsert(a, x) }, else_branch = g () => (seq(float) q) { q = SequenceInsert(b, x) }> y = SequenceAt(s, zero)",
        "s = SplitToSequence(x, two_of_four) y = SequenceAt(s, zero)",
    ],
)
def test_what_is_not_known_or_fails_is_left_alone(body: str) -> None:
    written = text(body, inputs="float[3, 4] x, int64 place, bool c").replace(
        "<int64 zero", "<int64[2] two_of_four = {2, 2}, int64 zero"
    )
    model, counts, _ = apply(written, EliminateSequences())
    assert counts == [0]
    assert operators(model) == operators(model_of(written))


def test_a_sequence_that_is_an_output_stays_while_what_is_known_of_it_is_used() -> None:
    body = "a = Neg(x) s = SequenceConstruct(a, x) z = SequenceAt(s, zero) y = Exp(z)"
    model, _, _ = apply(text(body, "float[p, q] y, seq(float[p, q]) s"), EliminateSequences(), DeadCodeElimination())
    assert sorted(operators(model)) == ["Exp", "Neg", "SequenceConstruct"]


def test_sequences_are_resolved_on_the_way_to_the_canonical_form_and_checked() -> None:
    body = "s = SplitToSequence<axis = 1>(x, sizes) a = SequenceAt(s, zero) b = SequenceAt(s, one) c = Neg(b) y = Concat<axis = 1>(a, c)"
    result = ortfuse.optimize(model_of(text(body)), verify="sites")
    assert [node.op_type for node in result.model.graph] == ["Split", "Neg", "Concat"]
    (check,) = [check for check in result.sites or () if check.rule == "eliminate_sequences"]
    assert check.state == "equal"


@pytest.mark.parametrize(
    ("split", "place"),
    [
        ("SplitToSequence<axis = 1, keepdims = 0>(x)", "place"),
        ("SplitToSequence<axis = -1>(x)", "place"),
        ("SplitToSequence(x, one)", "place"),
        ("SplitToSequence<keepdims = 0>(x, one)", "place"),
        ("SplitToSequence<keepdims = 0>(x)", "one"),
    ],
)
def test_an_element_at_a_computed_place(split: str, place: str) -> None:
    rank = "p" if "keepdims" in split else "p, q"
    written = text(f"s = {split} y = SequenceAt(s, {place})", f"float[{rank}] y", "float[n, m] x, int64 place")
    for number in (0, -2):
        found = resolved(written, place=np.array(number), **X)
        assert "SequenceAt" not in found and "Gather" in found


def test_a_loop_takes_elements_of_a_tensor() -> None:
    body = """s = SplitToSequence<keepdims = 0>(x) go = Cast<to = 9>(one)
        last_, y = Loop<body = g (int64 i, bool c, float[4] a) => (bool d, float[4] b, float[4] o)
        { d = Identity(c) e = SequenceAt(s, i) b = Add(a, e) o = Tanh(b) }>(two, go, first)"""
    found = resolved(text(body, inputs="float[3, 4] x, float[4] first"), first=floats(4), **X)
    assert "SplitToSequence" not in found
