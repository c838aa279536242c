"""Bound the error on other inputs of the same kind by a one-sided tolerance limit of the measured errors.

The limit is median + k * deviation. The deviation is that of all errors or of those above the median, whichever is larger.
Errors much smaller than most say nothing about the largest. So below the median none counts as farther away than twice the
distance of the largest. With the k below for n errors, the limit is above a share of all errors, `CONTENT`, in `CONFIDENCE`
of all cases, if they are normally distributed (M. G. Natrella: Experimental Statistics, NBS Handbook 91, section 2-2.2).
Sums of many rounding errors are; clipping errors are not. For these, the same is done with the logarithms of the errors. The
limit is then as far above the largest error, at least, as that is above the next one (D. S. Robson, J. H. Whitlock:
Estimation of a truncation point, Biometrika 51, 1964):

    k = (z_p + sqrt(z_p^2 - a b)) / a,   a = 1 - z_c^2 / (2 (n - 1)),   b = z_p^2 - z_c^2 / n

Most errors say little about a few that are much larger, such as those of inputs with values out of a range. So with many
errors, the limit is not below that of the tail of the largest m alone. Let e be the next one (I. Weissman: Estimation of
parameters and large quantiles based on the k largest observations, JASA 73, 1978):

    e (m / (n (1 - p)))^h,   h = mean(log(e_i / e))
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

CONTENT = 0.999
"""The share of the inputs whose error is to be under the limit."""

CLIPPING = 0.9999
"""The same where values out of a range are clipped, and by the tail of many errors."""

CONFIDENCE = 0.95
"""How certain that is to be."""

LEAST = 4.5
"""The least number of standard deviations: 3 of 1,500 inputs were farther from the median than in a normal distribution."""

BELOW = 2.0
"""How many times farther below the median an error counts at most than the largest is above it."""

MANY = 50
"""From so many errors on, the largest of them, the square root of their number, show how the tail falls."""

FEW = 4
"""With fewer errors than this their spread is not known."""

IF_FEW = 1.25
"""The largest error times this is expected at most where the spread is not known."""


def factor(count: int, content: float = CONTENT) -> float:
    """The distance of the limit of so many numbers, at least `FEW`, from the median, in standard deviations."""
    covered, certain = (statistics.NormalDist().inv_cdf(share) for share in (content, CONFIDENCE))
    a, b = 1 - certain**2 / (2 * (count - 1)), covered**2 - certain**2 / count
    return max(LEAST, (covered + math.sqrt(covered**2 - a * b)) / a)


def limit_of_rounding(errors: Sequence[float]) -> float:
    """The same for errors of rounding in relation to what may be near 0: where many are known, as if they clipped."""
    return limit_of(errors, clips=len(errors) >= MANY)


def limit_of(errors: Sequence[float], clips: bool = False) -> float:
    """The largest error to be expected on other inputs, never less than the largest that was seen; infinite if one is.

    Args:
        errors: The errors on some inputs.
        clips: Whether values out of an observed range are clipped.
    """
    worst = max(errors, default=0.0)
    if len(errors) < FEW or not math.isfinite(worst):
        return worst * IF_FEW
    tail = _limit_of_tail(errors, CLIPPING) if len(errors) >= MANY else 0.0
    if not clips:
        return max(worst, _limit(errors, CONTENT), tail)
    logarithms = [math.log(error) for error in errors if error > 0.0]
    next_worst = sorted(errors)[-2]
    whole = math.exp(_limit(logarithms, CLIPPING)) if len(logarithms) >= FEW else 0.0
    return max(2 * worst - next_worst, whole, tail)


def _limit_of_tail(errors: Sequence[float], content: float) -> float:
    """The limit by the largest errors alone."""
    count = math.isqrt(len(errors))
    *largest, last = sorted(errors, reverse=True)[: count + 1]
    if last <= 0.0:
        return 0.0
    falls = statistics.fmean(math.log(error / last) for error in largest)
    return float(last * max(1.0, count / (len(errors) * (1 - content))) ** falls)


def _limit(errors: Sequence[float], content: float) -> float:
    middle = statistics.median(errors)
    lowest = -BELOW * (max(errors) - middle)
    distances = [max(error - middle, lowest) for error in errors]
    above = [distance for distance in distances if distance >= 0.0]
    deviation = max(_deviation(distances, len(errors) - 1), _deviation(above, len(above)))
    return middle + factor(len(errors), content) * deviation


def _deviation(distances: Sequence[float], count: int) -> float:
    return math.sqrt(sum(distance * distance for distance in distances) / count)
