"""The knapsack: equal to trying everything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from ortfuse.quantization.knapsack import Option, choose, linear_error, total

pytest.importorskip("scipy")


def random_sites(seed: int, count: int, rows: int = 2) -> list[list[Option]]:
    rng = np.random.default_rng(seed)
    return [
        [Option("", float(rng.normal()), (0.0,) * rows, float(rng.normal()) / 4)]
        + [
            Option(
                str(n), float(rng.normal()) - 1, tuple(map(float, rng.random(rows) ** 2 * scale)), float(rng.normal())
            )
            for n, scale in enumerate(rng.choice([0.0, 1.0, 1.0, 1e3, np.inf], int(rng.integers(1, 3))))
        ]
        for _ in range(count)
    ]


def best_by_trying_all(sites: list[list[Option]], limits: Sequence[float], slowest: float | None) -> list[float]:
    """The least cost under each of the limits."""
    least = [math.inf] * len(limits)
    for taken in itertools.product(*(range(len(options)) for options in sites)):
        whole = total(sites, taken)
        if slowest is None or whole.seconds <= slowest:
            error = max(whole.errors)
            least = [
                min(known, whole.cost) if error <= limit**2 else known
                for known, limit in zip(least, limits, strict=True)
            ]
    return least


@pytest.mark.parametrize("slowest", [None, 0.0])
@pytest.mark.parametrize("count", [1, 4, 7, 10])
@pytest.mark.parametrize("seed", range(3))
def test_the_choice_costs_as_little_as_the_best_of_all(seed: int, count: int, slowest: float | None) -> None:
    sites = random_sites(seed, count)
    limits = (0.3, 0.8, 2.0)
    for limit, best in zip(limits, best_by_trying_all(sites, limits, slowest), strict=True):
        taken = choose(sites, limit, slowest=slowest)
        whole = total(sites, taken)
        assert max(whole.errors) <= limit**2 * (1 + 1e-6)
        assert whole.cost == pytest.approx(best, abs=1e-6)


def test_nothing_is_taken_where_nothing_fits() -> None:
    assert choose([[Option("", 0.0, (0.0,)), Option("a", -1.0, (1.0,))]], 0.5) == [0]
    assert choose([[Option("", 0.0, (0.0,)), Option("a", -1.0, (0.0,))]], 0.0) == [0]
    assert choose([], 1.0) == []


def test_numbers_of_very_different_size_are_told_apart() -> None:
    sites = [
        [Option("", 0.0, (0.0,)), Option("a", -1e-9, (1e-14,))],
        [Option("", 0.0, (0.0,)), Option("a", -1e-3, (9e-9,))],
    ]
    assert choose(sites, 1e-4) == [1, 1]


def test_the_linear_error_is_the_sum_of_the_roots() -> None:
    sites = [[Option("a", 0.0, (0.09, 0.0))], [Option("a", 0.0, (0.16, 0.01))]]
    assert linear_error(sites, [0, 0]) == pytest.approx(0.7)
