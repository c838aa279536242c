"""The error that is to be expected on other inputs of the same kind, by the errors on some of them: a one-sided tolerance limit.

The limit is median + k * deviation. Errors that are much smaller than most say nothing about the largest: below the median, none
counts as farther away than twice the distance of the largest. With the k below for n errors, the limit is above `CONTENT` of all
errors in `CONFIDENCE` of all cases, if they are normally distributed (M. G. Natrella: Experimental Statistics, NBS Handbook 91,
section 2-2.2):

    k = (z_p + sqrt(z_p^2 - a b)) / a,   a = 1 - z_c^2 / (2 (n - 1)),   b = z_p^2 - z_c^2 / n
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

CONTENT = 0.999
"""The share of the inputs whose error is to be under the limit."""

CONFIDENCE = 0.95
"""How certain that is to be."""

BELOW = 2.0
"""How many times farther below the median an error counts at most than the largest is above it."""

FEW = 4
"""With fewer errors than this their spread is not known."""

IF_FEW = 1.25
"""The largest error times this is expected at most where the spread is not known."""


def factor(count: int) -> float:
    """How many standard deviations above the mean the limit of so many numbers is, at least `FEW`."""
    content, certain = (statistics.NormalDist().inv_cdf(share) for share in (CONTENT, CONFIDENCE))
    a, b = 1 - certain**2 / (2 * (count - 1)), content**2 - certain**2 / count
    return (content + math.sqrt(content**2 - a * b)) / a


def limit_of(errors: Sequence[float]) -> float:
    """The largest error to be expected on other inputs, never less than the largest that was seen; infinite if one is."""
    worst = max(errors, default=0.0)
    if len(errors) < FEW or not math.isfinite(worst):
        return worst * IF_FEW
    middle = statistics.median(errors)
    lowest = -BELOW * (worst - middle)
    distances = [max(error - middle, lowest) for error in errors]
    deviation = math.sqrt(sum(distance * distance for distance in distances) / (len(errors) - 1))
    return max(worst, middle + factor(len(errors)) * deviation)
