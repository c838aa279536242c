"""Delta debugging: find the smallest part of a set that still shows an effect.

Source: A. Zeller, R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28 (2002), algorithm ddmin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_TESTS = 200
"""The search stops after this many tests with the smallest set found so far."""


def smallest(units: Sequence[T], shows: Callable[[Sequence[T]], bool], most_tests: int = MOST_TESTS) -> list[T]:
    """A subset that shows the effect and from which no single unit can be left out.

    Args:
        units: All units, which together show the effect; the result keeps their order.
        shows: Whether a subset shows the effect. Never called with the empty set, nor twice with the same subset.
        most_tests: The search stops after this many calls of `shows`; the result may then be larger than necessary.
    """
    asked: dict[tuple[int, ...], bool] = {}

    def ask(chosen: list[int]) -> bool:
        key = tuple(chosen)
        if key not in asked:
            asked[key] = len(asked) < most_tests and shows([units[index] for index in chosen])
        return asked[key]

    current, parts = list(range(len(units))), 2
    while len(current) > 1 and len(asked) < most_tests:
        chunks = [current[len(current) * i // parts : len(current) * (i + 1) // parts] for i in range(parts)]
        rests = [[index for index in current if index not in set(chunk)] for chunk in chunks]
        found = next((chunk for chunk in chunks if ask(chunk)), None)
        if found is not None:
            current, parts = found, 2
            continue
        found = next((rest for rest in rests if rest and ask(rest)), None) if parts > 2 else None
        if found is not None:
            current, parts = found, max(parts - 1, 2)
        elif parts >= len(current):
            break
        else:
            parts = min(len(current), 2 * parts)
    return [units[index] for index in current]


def first_showing(count: int, shows: Callable[[int], bool], known: int = 0) -> int:
    """The `n` at which the effect first shows, found by binary search between `known`, which does not show it, and `count`.

    For the result, `shows(n)` holds and `shows(n - 1)` does not. If the effect comes and goes as `n` grows, this is one
    such place.
    """
    low, high = known, count
    while high - low > 1:
        middle = (low + high) // 2
        if shows(middle):
            high = middle
        else:
            low = middle
    return high
