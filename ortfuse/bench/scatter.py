"""How far a measurement can be trusted: how its numbers scatter, and between which bounds their median lies.

The bounds are those of the sign test: of n independent numbers, each is above the true median with probability 1/2, so
the true median lies between the k-th smallest and the k-th largest with a probability that the binomial distribution
gives (Conover, Practical Nonparametric Statistics, section 3.2). Nothing is assumed of how the numbers are distributed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95
"""Probability with which the true median lies within the bounds."""


def median_bounds(numbers: Sequence[float]) -> tuple[float, float] | None:
    """The bounds of the median, `None` where there are too few numbers (less than six) for the confidence asked for."""
    ordered, count = sorted(numbers), len(numbers)
    outside, cut = 0.0, 0
    while cut < count // 2:
        outside += 2 * math.comb(count, cut) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        cut += 1
    return (ordered[cut - 1], ordered[-cut]) if cut else None


def quartile_spread(numbers: Sequence[float]) -> float:
    """The distance of the quartiles as a part of the median."""
    if len(numbers) < 2:
        return 0.0
    low, median, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return (high - low) / median
