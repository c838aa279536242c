"""What is expected on other inputs, by the errors on some."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from ortfuse.quantization.statistical_tolerance_limit import CLIPPING, CONFIDENCE, CONTENT, LEAST, factor, limit_of


@pytest.mark.parametrize(("count", "spread"), [(8, 0.1), (16, 0.1), (16, 0.3), (100, 0.2)])
def test_the_limit_is_above_nearly_all_errors_as_often_as_it_says(count: int, spread: float) -> None:
    errors = np.random.default_rng(0).normal(1.0, spread, (400, count))
    largest = 1.0 + spread * statistics.NormalDist().inv_cdf(CONTENT)
    covered = np.mean([limit_of(row.tolist()) >= largest for row in errors])
    assert covered >= CONFIDENCE - 0.04
    assert covered <= CONFIDENCE + 0.04 or factor(count) == LEAST


def test_more_inputs_make_the_limit_firmer_up_to_a_point() -> None:
    factors = [factor(count) for count in (4, 8, 16, 64, 256, 100_000)]
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] == factors[-2] == LEAST


def test_errors_that_are_much_smaller_than_most_do_not_raise_the_limit() -> None:
    most = np.exp(np.random.default_rng(0).normal(-5.0, 0.05, 20)).tolist()
    assert limit_of([*most, 1e-6, 1e-7]) < 1.2 * limit_of(most)


def test_no_limit_is_below_what_was_seen() -> None:
    assert limit_of([0.1] * 200 + [5.0]) >= 5.0
    assert limit_of([0.0] * 200 + [5.0]) >= 5.0
    assert limit_of([]) == 0.0
    assert math.isinf(limit_of([0.1, 0.1, 0.1, math.inf]))


def test_errors_that_are_the_same_need_no_margin_unless_they_are_few() -> None:
    assert limit_of([0.2] * 8) == pytest.approx(0.2)
    assert limit_of([0.2] * 3) == pytest.approx(0.25)


def test_where_values_are_clipped_large_errors_may_be_rare() -> None:
    often = np.exp(np.random.default_rng(0).normal(-7.0, 0.3, 5000))
    seen, largest = often[:100].tolist(), float(np.quantile(often, CONTENT))
    assert limit_of(seen, clips=True) > limit_of(seen) > largest
    assert limit_of([*seen, 0.01], clips=True) > 0.018, "one that was far above the others may not be the farthest"
    assert limit_of([0.0, 0.0, 0.0, 0.0, 0.01], clips=True) == pytest.approx(0.02)


def test_a_few_large_errors_are_not_hidden_by_many_that_are_alike() -> None:
    rng = np.random.default_rng(0)
    errors = np.exp(rng.normal(-5.0, 0.1, 20_000)) * np.where(rng.random(20_000) < 0.02, rng.uniform(1, 6, 20_000), 1.0)
    seen = [rng.choice(errors, 900, replace=False).tolist() for _ in range(50)]
    covered = [limit_of(some, clips=True) >= np.quantile(errors, CLIPPING) for some in seen]
    assert np.mean(covered) >= CONFIDENCE


def test_the_error_of_an_output_that_is_close_to_0_now_and_then_is_under_the_limit() -> None:
    """An error over the length of an output of six normally distributed numbers: its tail is that of a power, not normal."""
    rng = np.random.default_rng(0)
    errors = 1e-3 / np.sqrt(rng.chisquare(6, 200_000) / 6)
    above = [np.mean(errors > limit_of(rng.choice(errors, 900, replace=False).tolist())) for _ in range(50)]
    assert np.mean(above) < 2 * (1 - CLIPPING)
    normal = rng.normal(1.0, 0.1, 900).tolist()
    assert limit_of(normal) < 1.05 * (1.0 + LEAST * 0.1), "a tail that falls fast costs nothing"


def test_many_errors_that_are_alike_need_little_more() -> None:
    errors = np.exp(np.random.default_rng(0).normal(-5.0, 0.1, 900)).tolist()
    assert limit_of(errors, clips=True) < 1.2 * max(errors)
