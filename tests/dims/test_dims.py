"""Dimensions: the algebra agrees with integers for all sizes of the symbols, and equal formulas are equal objects."""

from __future__ import annotations

import copy
import doctest
import pickle

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ortfuse.ir import dims
from ortfuse.ir.dims import (
    Dim,
    DimLike,
    at_most,
    bounds,
    broadcast,
    ceil_div,
    evaluate,
    exact_div,
    floor_div,
    fresh,
    is_broadcast_of,
    is_cut_of,
    is_nonnegative,
    is_nonzero,
    is_positive,
    lower_bound,
    maximum,
    minimum,
    mod,
    parse,
    product,
    substituted,
    substituting,
    symbol,
    symbols,
    uncut,
    upper_bound,
)

NAMES = ("b", "s", "t")
b, s, t = (symbol(name) for name in NAMES)

numbers = st.integers(-9, 9)
sizes = st.fixed_dictionaries({name: st.integers(0, 12) for name in NAMES})


def combine(parts: st.SearchStrategy[DimLike]) -> st.SearchStrategy[DimLike]:
    """Formulas one level deeper; divisors are positive, so that every formula has a value."""
    pairs = st.tuples(parts, parts)
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]),
        pairs.map(lambda p: p[0] - p[1]),
        pairs.map(lambda p: p[0] * p[1]),
        pairs.map(lambda p: minimum(*p)),
        pairs.map(lambda p: maximum(*p)),
        st.tuples(parts, st.integers(1, 8)).map(lambda p: floor_div(*p)),
        st.tuples(parts, st.integers(1, 8)).map(lambda p: mod(*p)),
    )


formulas = st.recursive(numbers | st.sampled_from((b, s, t)), combine, max_leaves=6)


@given(formulas, formulas, sizes)
def test_ring_operations_agree_with_integers(x: DimLike, y: DimLike, at: dict[str, int]) -> None:
    u, v = evaluate(x, at), evaluate(y, at)
    assert evaluate(x + y, at) == u + v
    assert evaluate(x - y, at) == u - v
    assert evaluate(x * y, at) == u * v
    assert evaluate(-x, at) == -u


@given(formulas, formulas, sizes)
def test_division_agrees_with_integers(x: DimLike, y: DimLike, at: dict[str, int]) -> None:
    assume(y != 0)
    u, v = evaluate(x, at), evaluate(y, at)
    assume(v != 0)
    assert evaluate(floor_div(x, y), at) == u // v
    assert evaluate(ceil_div(x, y), at) == -(-u // v)
    assert evaluate(mod(x, y), at) == u % v


@given(formulas, formulas, formulas, sizes)
def test_minimum_and_maximum_agree_with_integers(x: DimLike, y: DimLike, z: DimLike, at: dict[str, int]) -> None:
    u, v, w = (evaluate(dim, at) for dim in (x, y, z))
    assert evaluate(minimum(x, y), at) == min(u, v)
    assert evaluate(maximum(x, y), at) == max(u, v)
    assert evaluate(minimum(x, y, z), at) == min(u, v, w)
    assert evaluate(maximum(x, y, z), at) == max(u, v, w)


@given(formulas, sizes)
def test_what_is_cut_at_zero_is_found_again(x: DimLike, at: dict[str, int]) -> None:
    cut = maximum(0, x)
    assert max(0, evaluate(uncut(cut), at)) == max(0, evaluate(x, at))
    assert max(0, evaluate(uncut(x), at)) == max(0, evaluate(x, at))


@given(formulas, formulas, sizes)
def test_broadcast_agrees_where_it_is_defined(x: DimLike, y: DimLike, at: dict[str, int]) -> None:
    u, v = evaluate(x, at), evaluate(y, at)
    assume(u >= 0 and v >= 0 and (u == v or u == 1 or v == 1))
    assert evaluate(broadcast(x, y), at) == (v if u == 1 else u)


@given(formulas, st.sampled_from(NAMES), formulas, sizes)
def test_what_is_put_in_place_of_a_symbol(x: DimLike, name: str, y: DimLike, at: dict[str, int]) -> None:
    value = evaluate(y, at)
    assume(value >= 0)
    assert evaluate(substituted(x, {name: y}), at) == evaluate(x, {**at, name: value})


def test_substitution_reaches_all_sizes_of_a_broadcast() -> None:
    assert substituted(broadcast(broadcast(b, s), t), {"s": t}) == broadcast(b, t)


@given(formulas, formulas)
def test_exact_division_undoes_multiplication(x: DimLike, y: DimLike) -> None:
    assume(y != 0)
    assert exact_div(x * y, y) == x
    quotient = exact_div(x, y)
    assert quotient is None or quotient * y == x


@given(formulas, formulas, formulas)
def test_equal_polynomials_are_equal_objects(x: DimLike, y: DimLike, z: DimLike) -> None:
    for left, right in (
        (x + y, y + x),
        (x * y, y * x),
        ((x + y) + z, x + (y + z)),
        ((x * y) * z, x * (y * z)),
        (x * (y + z), x * y + x * z),
        (x - x, 0),
        (minimum(x, y), minimum(y, x)),
        (maximum(x, y), maximum(y, x)),
        (broadcast(x, y), broadcast(y, x)),
    ):
        assert left == right
        assert hash(left) == hash(right)


@given(formulas, sizes)
def test_bounds_hold(x: DimLike, at: dict[str, int]) -> None:
    low, high = bounds(x)
    value = evaluate(x, at)
    assert low is None or low <= value
    assert high is None or value <= high
    assert value != 0 or not is_nonzero(x)


@given(formulas)
def test_constants_are_plain_integers(x: DimLike) -> None:
    assert isinstance(x, int) or symbols(x)


@given(formulas)
def test_text_reads_back(x: DimLike) -> None:
    assert parse(str(x)) == x


@given(formulas)
def test_copies_are_equal(x: DimLike) -> None:
    assert copy.deepcopy(x) == x
    assert pickle.loads(pickle.dumps(x)) == x


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (2 * b * s + 1, "2*b*s + 1"),
        (s - 3 * t, "s - 3*t"),
        (-s, "-s"),
        (s * s, "s*s"),
        (floor_div(s, 2), "s//2"),
        (2 * floor_div(s + 1, 2), "2*((s + 1)//2)"),
        (minimum(64, s), "min(64, s)"),
        (broadcast(b, s), "broadcast(b, s)"),
        (fresh(3), "?3"),
    ],
)
def test_text(dim: DimLike, text: str) -> None:
    assert str(dim) == text


@pytest.mark.parametrize(
    ("text", "dim"),
    [
        ("seq", symbol("seq")),
        ("12", 12),
        ("s0 + 1", symbol("s0") + 1),
        ("2*s1", 2 * symbol("s1")),
        ("batch*seq", symbol("batch") * symbol("seq")),
        ("past_sequence_length + 1", symbol("past_sequence_length") + 1),
        ("s0//2", floor_div(symbol("s0"), 2)),
        ("(s0 - 1)//2 + 1", floor_div(symbol("s0") - 1, 2) + 1),
        ("floor(s0/2)", floor_div(symbol("s0"), 2)),
        ("s0/2", symbol("s0/2")),
        ("4*s0/2", 2 * symbol("s0")),
        ("s0**2", symbol("s0") * symbol("s0")),
        ("Min(64, sequence)", minimum(64, symbol("sequence"))),
        ("Max(1, s0)", maximum(1, symbol("s0"))),
        ("Mod(s0, 2)", mod(symbol("s0"), 2)),
        ("s0 % 2", mod(symbol("s0"), 2)),
        ("seq-len", symbol("seq-len")),
        ("batch size", symbol("batch size")),
        ("f(x)", symbol("f(x)")),
        ("s0//0", symbol("s0//0")),
        ("True", symbol("True")),
        ("ünïcode", symbol("ünïcode")),
        ("((", symbol("((")),
        ("s0 < 3", symbol("s0 < 3")),
    ],
)
def test_exporters_texts_are_understood(text: str, dim: DimLike) -> None:
    assert parse(text) == dim


def test_the_facts_example_of_the_design() -> None:
    assert exact_div(product((b, s, 64)), product((b, s, 16))) == 4


def test_division_that_is_not_provable() -> None:
    assert exact_div(s, 2) is None
    assert exact_div(s + 1, s) is None
    assert exact_div(s, 0) is None
    with pytest.raises(ZeroDivisionError):
        floor_div(s, 0)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (floor_div(6 * s + 3, 2), 3 * s + 1),
        (floor_div(floor_div(s, 2), 3), floor_div(s, 6)),
        (floor_div(floor_div(s - 1, 2) + 1, 2), floor_div(s + 1, 4)),
        (floor_div(2 * b * s, 2 * s), b),
        (floor_div(2 * b * s, 3 * s), floor_div(2 * b, 3)),
        (floor_div(4 * s + 2, 6), floor_div(2 * s + 1, 3)),
        (s + mod(7 - mod(s, 7), 7), 7 * ceil_div(s, 7)),
        (minimum(s, s + 1), s),
        (minimum(minimum(s, 8), 4), minimum(4, s)),
        (minimum(0, s - 1), minimum(1, s) - 1),
        (maximum(0, s - 1), s - minimum(1, s)),
        (maximum(0, s), s),
        (minimum(s, b * s + s), s),
        (broadcast(s, 64), 64),
        (broadcast(s, 1), s),
        (broadcast(s, 2 * t), 2 * t),
        (broadcast(s, minimum(64, s)), s),
        (broadcast(broadcast(b, s), s), broadcast(s, b)),
    ],
)
def test_formulas_are_brought_to_one_form(left: DimLike, right: DimLike) -> None:
    assert left == right


def test_what_is_broadcast_with_a_size_is_0_where_that_is() -> None:
    assert is_broadcast_of(broadcast(s, t), s)
    assert is_broadcast_of(broadcast(broadcast(s, b), t), b)
    assert is_broadcast_of(s, s)
    assert not is_broadcast_of(broadcast(s, 64), s)
    assert not is_broadcast_of(broadcast(s, t) + 1, s)


@pytest.mark.parametrize(("bound", "least", "expected"), [(1, 1, True), (1, 2, False), (2, 2, True), (t, 1, False)])
def test_what_is_cut_at_a_bound(bound: DimLike, least: int, expected: bool) -> None:
    assert is_cut_of(minimum(bound, s), s, least) == expected
    assert not is_cut_of(minimum(bound, s), b, least)


def test_what_is_provable_about_sizes() -> None:
    assert lower_bound(s) == 0
    assert lower_bound(b * s + 3) == 3
    assert upper_bound(minimum(64, s)) == 64
    assert bounds(mod(s, 7)) == (0, 6)
    assert bounds(mod(-3, s)) == (0, None) and at_most(mod(-3, s), s)
    assert lower_bound(s - floor_div(s, 2)) == 0
    assert lower_bound(maximum(4, s)) == 4
    assert lower_bound(s - t) is None
    assert is_positive(s + 1) and not is_positive(s)
    assert is_nonnegative(b * s) and not is_nonnegative(s - 1)
    assert is_nonzero(2 * s + 1) and is_nonzero(2 * s - 1) and not is_nonzero(2 * s - 2)
    assert at_most(minimum(64, s), s)


def test_a_symbol_may_be_zero() -> None:
    assert not is_nonzero(s)
    assert broadcast(s, t) not in (s, t)
    assert minimum(1, s) != 1


def test_evaluation_needs_every_symbol() -> None:
    with pytest.raises(KeyError):
        evaluate(b + s, {"b": 1})


def test_unknown_dimensions_are_marked() -> None:
    dim = 2 * floor_div(fresh(1), 2) + s
    assert isinstance(dim, Dim) and dim.fresh
    assert not s.fresh


def test_the_examples_in_the_documentation() -> None:
    assert doctest.testmod(dims).failed == 0


def test_equal_dimensions_are_one_object() -> None:
    a, b = symbol("a"), symbol("b")
    assert (a + b) * 3 is 3 * b + 3 * a
    assert (a - b) + b is a
    assert copy.deepcopy(a * b - 2) is a * b - 2


def test_substituting_puts_sizes_into_several_dimensions() -> None:
    seq = symbol("seq")
    half = floor_div(seq, 2)
    put = substituting({"seq": 2 * symbol("n") + 4})
    assert [put(dim) for dim in (half, half * seq, 7)] == [
        symbol("n") + 2,
        (symbol("n") + 2) * (2 * symbol("n") + 4),
        7,
    ]
    with pytest.raises(ZeroDivisionError):
        substituting({"seq": 0})(floor_div(symbol("n"), seq))
