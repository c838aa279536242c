"""Ranges told from what was seen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from ortfuse.errors import PrecisionError
from ortfuse.quantization.calibration import METHODS, Calibration, Seen, calibrate
from ortfuse.quantization.kl_divergence import least_divergent

TEXT = '<ir_version: 9, opset_import: ["": 18]> g (float[n] x) => (float[n] y) { a = Neg(x) b = Relu(a) y = Neg(b) }'


def test_ranges_are_those_of_all_runs() -> None:
    inputs = [{"x": np.array(numbers, np.float32)} for numbers in ([1, -3], [2, 0], [-1, -4])]
    found = calibrate(ir.from_onnx_text(TEXT), ["x", "a", "b"], inputs)
    assert {name: seen.extremes() for name, seen in found.seen.items()} == {"x": (-4, 2), "a": (-2, 4), "b": (0, 4)}
    assert found.range("missing", "extremes") is None


def test_a_range_has_room_for_what_other_runs_may_have() -> None:
    inputs = [{"x": np.array([-1, high], np.float32)} for high in (9, 10, 11, 11, 9)]
    found = calibrate(ir.from_onnx_text(TEXT), ["x", "b"], inputs)
    assert found.range("x", "extremes") == pytest.approx((-1, 13))  # a deviation of 1: two more
    assert found.range("b", "extremes") == pytest.approx((0, 1))  # the same in all runs


def test_very_few_runs_and_one_that_is_far_off_do_not_make_a_range_too_wide() -> None:
    few = calibrate(ir.from_onnx_text(TEXT), ["x"], [{"x": np.array([-1, high], np.float32)} for high in (2, 3, 4)])
    assert few.range("x", "extremes") == (-1, 4)
    far = calibrate(ir.from_onnx_text(TEXT), ["x"], [{"x": np.array([0, high], np.float32)} for high in (1, 1, 1, 60)])
    assert far.range("x", "extremes") == (0, pytest.approx(90))


def test_what_is_cut_off_in_other_runs_is_little_although_few_were_observed() -> None:
    rng = np.random.default_rng(0)
    runs = [rng.uniform(0.5, 1.5) * rng.standard_normal(200).astype(np.float32) for _ in range(1000)]
    found = calibrate(ir.from_onnx_text(TEXT), ["x"], [{"x": run} for run in runs[:9]])
    for method in ("extremes", "percentile_9999", "least_squares"):
        seen, wider = METHODS[method](found.seen["x"]), found.range("x", method) or (0.0, 0.0)
        without, lost = (
            [np.linalg.norm(run - np.clip(run, *ends)) / np.linalg.norm(run) for run in runs[9:]]
            for ends in (seen, wider)
        )
        assert np.mean(np.array(lost) > 0.05) < 0.2 * np.mean(np.array(without) > 0.05), method


def test_numbers_that_are_none_are_an_error() -> None:
    with pytest.raises(PrecisionError, match="'a' is infinite or not a number"):
        calibrate(ir.from_onnx_text(TEXT), ["a"], [{"x": np.array([np.nan], np.float32)}])


def test_methods_cut_off_outliers_that_extremes_keep() -> None:
    seen = Seen()
    for part in np.split(np.random.default_rng(0).standard_normal(100_000).astype(np.float32), 10):
        seen.add(part)
    seen.add(np.array([60], np.float32))
    found = {name: method(seen) for name, method in METHODS.items()}
    assert all(-6 < low < -3 for low, _ in found.values())
    assert found["extremes"][1] == 60
    assert 3 < found["percentile_999"][1] < found["percentile_9999"][1] < 5
    assert found["entropy"][1] < 40


def test_least_squares_weighs_a_finer_grid_against_what_is_cut_off() -> None:
    seen = Seen()
    seen.add(np.random.default_rng(0).standard_normal(100_000).astype(np.float32))
    low, high = seen.least_squares(levels=15)
    step = np.subtract(*reversed(seen.extremes())) / 15
    assert -3.5 < low < -2
    assert 2 < high < 3.5
    assert (high - low) / 15 < step


def test_a_histogram_grows_without_losing_a_number() -> None:
    seen = Seen()
    for size in (1e-6, 1.0, 1e-3, 1e4):
        seen.add(np.linspace(-size, size, 1001).astype(np.float32))
    assert seen.counts.sum() == 4 * 1001
    assert seen.without(0.5) == pytest.approx((-0.001, 0.001), abs=20)


def test_a_mean_is_nearer_to_zero_the_more_it_differs_from_run_to_run() -> None:
    found, same, one = Seen(), Seen(), Seen()
    one.add(np.ones((3, 2), np.float32))
    for number in (0.9, 1.1):
        same.add(np.ones((5, 2), np.float32))
        found.add(np.array([[number, 10 * number - 10]], np.float32))
    known = Calibration({"x": found, "same": same, "one": one})
    assert known.means("same") == (1.0, 1.0)
    assert known.means("one") is None
    assert known.means("y") is None
    first, second = known.means("x") or ()
    assert 0.98 < first < 1.0
    assert abs(second) < 1e-6
    found.add(np.ones((2, 3), np.float32))
    assert known.means("x") is None, "columns are not always as many"


@pytest.mark.parametrize("seed", range(4))
def test_the_least_divergent_range_is_the_one_that_the_runtime_finds(seed: int) -> None:
    calibrate = pytest.importorskip("onnxruntime.quantization.calibrate")
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal(20_000) if seed % 2 else np.abs(rng.standard_normal(300)) ** 3
    counts, edges = np.histogram(numbers, 160, (-5, 5))
    collector = calibrate.HistogramCollector("entropy", True, 160, 128, 99.999, "same")
    expected = collector.get_entropy_threshold((counts, edges, np.float64(-9), np.float64(9), 5.0), 128)
    start, end = least_divergent(counts, 128)
    assert (edges[start], edges[end]) == expected


@pytest.mark.parametrize("spread", [lambda x: x, np.abs, np.exp, lambda x: -np.exp(x)])
def test_least_squares_loses_no_more_than_any_other_range(spread: Callable[[np.ndarray], np.ndarray]) -> None:
    numbers = spread(np.random.default_rng(0).standard_normal(20_000)).astype(np.float32)
    seen = Seen()
    seen.add(numbers)
    levels = 15

    def lost(low: float, high: float) -> float:
        step = (high - low) / levels
        cut = numbers - np.clip(numbers, low, high)
        return float((cut * cut).sum() + (cut == 0).sum() * step**2 / 12)

    parts = np.linspace(1.0, 0.2, 9)
    low, high = min(seen.low, 0.0), max(seen.high, 0.0)
    assert lost(*seen.least_squares(levels)) <= 1.01 * min(lost(low * a, high * b) for a in parts for b in parts)


def test_a_value_that_is_always_zero_has_its_own_range() -> None:
    seen = Seen()
    seen.add(np.zeros(9, np.float32))
    assert seen.least_squares() == (0.0, 0.0)
    assert seen.entropy() == (0.0, 0.0)
