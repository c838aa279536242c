"""Confidence interval of the median, and spread of measurements.

The interval is that of the sign test: each of n independent numbers is above the true median with probability 1/2, so
the true median lies between the k-th smallest and the k-th largest with a probability given by the binomial
distribution (Conover, Practical Nonparametric Statistics, section 3.2). It holds for any distribution of the numbers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95
"""Probability that the true median lies within the bounds."""


def median_bounds(numbers: Sequence[float]) -> tuple[float, float] | None:
    """The bounds of the median; `None` with fewer than six numbers, too few for the required confidence."""
    ordered, count = sorted(numbers), len(numbers)
    outside, cut = 0.0, 0
    while cut < count // 2:
        outside += 2 * math.comb(count, cut) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        cut += 1
    return (ordered[cut - 1], ordered[-cut]) if cut else None


def quartile_spread(numbers: Sequence[float]) -> float:
    """The interquartile range divided by the median."""
    if len(numbers) < 2:
        return 0.0
    low, median, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return (high - low) / median
