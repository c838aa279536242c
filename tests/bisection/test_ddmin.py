"""That delta debugging finds small sets and asks little."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ortfuse.verification.bisection.delta_debugging import first_showing, smallest


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_exactly_the_units_that_are_needed_together_are_left(case: tuple[int, set[int]]) -> None:
    count, needed = case
    found = smallest(range(count), lambda some: needed <= set(some), most_tests=10_000)
    assert found == sorted(needed)


def test_no_question_is_asked_twice_nor_about_nothing() -> None:
    asked: list[tuple[int, ...]] = []

    def shows(some: Sequence[int]) -> bool:
        asked.append(tuple(some))
        return {3, 11} <= set(some)

    assert smallest(range(16), shows) == [3, 11]
    assert len(asked) == len(set(asked))
    assert () not in asked


def test_the_search_ends_when_it_has_asked_enough() -> None:
    asked: list[int] = []

    def shows(some: Sequence[int]) -> bool:
        asked.append(len(some))
        return {0, 99} <= set(some)

    assert {0, 99} <= set(smallest(range(100), shows, most_tests=10))
    assert len(asked) == 10


@given(st.integers(1, 1000).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_halving_finds_the_first_that_shows(case: tuple[int, int]) -> None:
    count, first = case
    assert first_showing(count, lambda number: number >= first) == first
