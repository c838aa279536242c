"""Metrics: what each counts, and what is expected on inputs that were not measured."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from ortfuse.errors import OptionError
from ortfuse.quantization.error_bound_metadata import BoundVerdict
from ortfuse.quantization.metrics import (
    METRICS,
    cosine,
    error_words,
    metric_of,
    relative_l2,
    relative_max,
    tokens,
    top1,
)

A = np.array([[3.0, 4.0]], np.float32)


def test_l2_is_relative_to_the_norm() -> None:
    assert relative_l2(A, A + np.array([[0.0, 0.5]], np.float32)) == pytest.approx(0.1)


def test_max_is_relative_to_the_largest_magnitude() -> None:
    assert relative_max(A, A + np.array([[0.4, 0.0]], np.float32)) == pytest.approx(0.1)


def test_cosine_does_not_see_a_factor() -> None:
    assert cosine(A, 2 * A) == pytest.approx(0.0, abs=1e-9)
    assert cosine(A, -A) == pytest.approx(2.0)


def test_an_output_of_zeros_has_no_error_only_if_it_stays_zero() -> None:
    zeros = np.zeros((2, 2), np.float32)
    assert relative_l2(zeros, zeros) == 0.0
    assert math.isinf(relative_l2(zeros, zeros + 1))


def test_infinities_count_only_where_they_differ() -> None:
    masked = np.array([1.0, -np.inf], np.float32)
    assert relative_l2(masked, masked) == 0.0
    assert math.isinf(relative_l2(masked, np.array([1.0, 0.0], np.float32)))
    assert math.isinf(relative_l2(A, np.full_like(A, np.nan)))


def test_top1_counts_rows_with_another_largest_element() -> None:
    rows = np.array([[1.0, 2.0], [2.0, 1.0]], np.float32)
    assert top1(rows, rows[:, ::-1]) == 1.0
    assert top1(rows, rows * 3) == 0.0
    assert top1(rows, np.array([[1.0, 2.0], [1.0, 2.0]], np.float32)) == 0.5


@pytest.mark.parametrize("metric", [top1, tokens])
def test_rows_of_nan_decide_nothing(metric: Callable[..., float]) -> None:
    rows = np.array([[2.0, 1.0], [2.0, 1.0]], np.float32)
    nothing = np.full_like(rows, np.nan)
    assert metric(rows, nothing) == 1.0, "though the first of each row is called the largest"
    assert metric(nothing, rows) == 1.0
    assert metric(nothing, nothing) == 0.0


def test_tokens_counts_what_follows_the_first_difference() -> None:
    assert tokens(np.array([[5, 6, 7, 8]]), np.array([[5, 6, 0, 8]])) == 0.5


def test_decisions_are_looked_for_among_integers_first() -> None:
    expected = {"scores": np.array([[1.0, 2.0]], np.float32), "label": np.array([1])}
    found = {"scores": np.array([[2.0, 1.0]], np.float32), "label": np.array([1])}
    assert METRICS["top1"].of([expected], [found], [{}]).error == 0.0


def test_the_worst_output_of_the_worst_inputs_counts() -> None:
    expected = [{"a": A, "b": A}, {"a": A, "b": A}]
    found = [{"a": A, "b": A}, {"a": A, "b": A * np.float32(1.1)}]
    assert METRICS["l2"].of(expected, found, [{}, {}]).error == pytest.approx(0.1, rel=1e-5)


def test_outputs_that_are_not_judged_do_not_count() -> None:
    metric = metric_of("l2", ["a"])
    assert metric.of([{"a": A, "b": A}], [{"a": A, "b": 2 * A}], [{}]).error == 0.0


def test_on_other_inputs_more_is_expected_the_more_the_errors_scatter() -> None:
    def likely(*factors: float) -> float:
        found = [{"a": A * np.float32(factor)} for factor in factors]
        return METRICS["l2"].of([{"a": A}] * len(factors), found, [{}] * len(factors)).likely

    assert likely(1.1, 1.1, 1.1, 1.1) == pytest.approx(0.1, rel=1e-3)
    assert likely(1.1, 1.0, 1.1, 1.0) > 0.2
    assert likely(1.1) == pytest.approx(0.125, rel=1e-3)


def test_an_output_that_varies_much_is_not_hidden_by_one_that_is_worse() -> None:
    steady, varying = [1.1] * 8, [1.0, 1.09] * 4
    found = [{"a": A * one, "b": A * other} for one, other in zip(steady, varying, strict=True)]
    metric = METRICS["l2"]
    both = metric.of([{"a": A, "b": A}] * 8, found, [{}] * 8)
    alone = metric.of([{"b": A}] * 8, found, [{}] * 8)
    assert both.error == pytest.approx(0.1, rel=1e-3)
    assert both.likely == alone.likely > 0.3


def test_a_function_of_the_user_gets_all_sets() -> None:
    metric = metric_of(lambda expected, found, inputs: len(expected) + len(found) + len(inputs))
    assert metric.of([{}, {}], [{}, {}], [{}, {}]).error == 6.0


@pytest.mark.parametrize("name", ["accuracy", "math:", "nowhere:f", "math:nothing", "math:pi"])
def test_what_is_no_metric_is_refused(name: str) -> None:
    with pytest.raises(OptionError):
        metric_of(name)


def test_a_function_by_name() -> None:
    assert metric_of("math:fsum").name == "math:fsum"


def test_a_function_that_fails_is_named() -> None:
    with pytest.raises(OptionError, match="fails: KeyError"):
        metric_of(lambda expected, found, inputs: expected[0]["x"]).of([{}], [{}], [{}])
    with pytest.raises(OptionError, match="NaN"):
        metric_of(lambda *_: math.nan).of([{}], [{}], [{}])


def test_an_error_without_bounds_is_said_in_words() -> None:
    assert error_words(0.0123456) == "0.0123"
    assert error_words(math.inf).startswith("without bounds: infinity, NaN, shapes")
    assert "inf error" not in BoundVerdict([], [], error=math.inf, bound=0.1, metric="l2", label="1 set").summary()
    assert "l2 error without bounds" in BoundVerdict([], [], error=math.inf, bound=0.1, metric="l2").summary()


def test_maps_of_probabilities_are_compared_by_their_numbers() -> None:
    found = METRICS["l2"].of([{"p": [{0: 0.5, 1: 0.5}]}], [{"p": [{0: 0.5, 1: 0.6}]}], [{}])
    assert found.error == pytest.approx(0.1 / 0.5**0.5)
    assert METRICS["l2"].of([{"p": [{0: 0.5}]}], [{"p": [{1: 0.5}]}], [{}]).error == math.inf
