"""Weights are rounded so that the errors of their rows make up for each other on what comes in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from scheme_models import distance, model

import ortfuse
from ortfuse.quantization import lowered
from ortfuse.quantization.activation_hessian import Factor, SecondMoments
from ortfuse.quantization.calibration import Calibration, calibrate
from ortfuse.quantization.gptq import compensated

Array = np.ndarray

RNG = np.random.default_rng(0)
MIXING = RNG.standard_normal((8, 64)).astype(np.float32)
"""Makes 64 columns of 8 numbers, so that each nearly follows from others."""


def rows(seed: int, count: int = 40) -> Array:
    rng = np.random.default_rng(seed)
    made = rng.standard_normal((count, 8)) @ MIXING + 0.1 * rng.standard_normal((count, 64)) + 0.5
    return made.astype(np.float32)


def unrelated(seed: int, count: int = 40) -> Array:
    return np.random.default_rng(seed).standard_normal((count, 64)).astype(np.float32)


def moments_of(runs: dict[str, list[Array]]) -> SecondMoments:
    def again(names: object) -> Iterator[tuple[str, Array]]:
        return ((name, array) for name, arrays in runs.items() if name in names for array in arrays)  # type: ignore[operator]

    def means(name: str) -> list[float]:
        return list(np.mean([array.mean(axis=0) for array in runs[name]], axis=0))

    return SecondMoments(tuple(runs), means, again)


def by_hand(weight: Array, scales: Array, zeros: Array, block: int, most: int, factor: Factor) -> Array:
    """The definition, a row at a time, in float64."""
    left, made = weight.astype(np.float64), np.zeros(weight.shape)
    for place, row in enumerate(factor.order):
        scale, zero = scales[row // block].astype(np.float64), zeros[row // block].astype(np.float64)
        made[row] = np.clip(np.rint(left[row] / scale) + zero, 0, most)
        lost = (left[row] - (made[row] - zero) * scale) / factor.upper[place, place]
        for behind in range(place + 1, len(weight)):
            left[factor.order[behind]] -= factor.upper[place, behind] * lost
    return made


@pytest.mark.parametrize("block", [16, 32, 40])
def test_rows_make_up_for_what_those_before_them_lost(block: int) -> None:
    weight = RNG.standard_normal((64, 5)).astype(np.float32)
    factor = moments_of({"x": [rows(seed) for seed in range(6)]}).of("x").factor()
    assert factor is not None
    scales = np.full((-(-64 // block), 5), 0.3, np.float32)
    zeros = np.full(scales.shape, 8, np.uint8)
    made = compensated(weight, scales, zeros, block, 15, factor)
    assert made.dtype == np.uint8
    # Where a number is halfway between two integers in float32, the rows behind it may differ.
    assert (made == by_hand(weight, scales, zeros, block, 15, factor)).mean() > 0.98


def test_the_factor_is_that_of_the_inverse() -> None:
    seen = [rows(seed, 400) for seed in range(20)]
    factor = moments_of({"x": seen}).of("x").factor()
    assert factor is not None
    inverse = np.zeros((64, 64))
    inverse[np.ix_(factor.order, factor.order)] = factor.upper.T.astype(np.float64) @ factor.upper
    centred = [one - np.mean([each.mean(axis=0) for each in seen], axis=0) for one in seen]
    expected = np.mean([one.T @ one / len(one) for one in centred], axis=0)
    found = np.linalg.inv(inverse)
    assert np.linalg.norm(found - expected) < 0.02 * np.linalg.norm(expected)
    assert np.allclose(factor.upper, np.triu(factor.upper))


def test_the_less_runs_agree_the_less_rows_make_up_for_each_other() -> None:
    def off_diagonal(seen: list[Array]) -> float:
        factor = moments_of({"x": seen}).of("x").factor()
        assert factor is not None
        upper = factor.upper / np.diag(factor.upper)[:, None]
        return float(np.linalg.norm(upper - np.eye(64)))

    assert off_diagonal([rows(seed) for seed in range(40)]) > 2 * off_diagonal([rows(seed, 3) for seed in range(3)])


@pytest.mark.parametrize(
    "seen", [[], [rows(0)], [np.zeros((3, 64), np.float32)] * 4, [unrelated(seed, 1) for seed in range(4)]]
)
def test_of_too_few_runs_or_numbers_nothing_is_known(seen: list[Array]) -> None:
    runs = {"x": seen}
    found = SecondMoments(("x",), lambda name: [0.0] * 64, lambda names: (("x", one) for one in runs["x"])).of("x")
    assert found is not None
    assert found.factor() is None


def test_matrices_are_made_in_groups_and_given_up_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {name: [rows(seed) for seed in range(4)] for name in "abcd"}
    asked: list[tuple[str, ...]] = []

    def again(names: tuple[str, ...]) -> Iterator[tuple[str, Array]]:
        asked.append(tuple(names))
        return ((name, array) for name in names for array in runs[name])

    monkeypatch.setattr("ortfuse.quantization.activation_hessian.HELD_BYTES", 2 * 4 * 64 * 64)
    found = SecondMoments(tuple("abcd"), lambda name: [0.5] * 64, again)
    factors = [found.of(name).factor() for name in "abcd"]
    assert all(factor is not None for factor in factors)
    assert asked == [("a", "b"), ("c", "d")]
    found.of("d").factor()
    assert len(asked) == 2
    assert found.of("d").factor(about_zero=True) is not None
    assert len(asked) == 2
    found.of("a").factor()
    assert len(asked) == 3


def product(**weights: tuple[int, ...]) -> object:
    return model("y = MatMul(x, w)", "float[b,64] x", "float[b,7] y", w=(64, 7), **weights)


@pytest.mark.parametrize(
    "scheme", ["weight_int4.block32_level1", "weight_int4.block64_level1_zeros", "weight_int8.block64_level1"]
)
def test_the_error_on_other_inputs_of_the_kind_is_smaller(scheme: str) -> None:
    made = product()
    low = lowered(made, {"y": scheme}, calibrate(made, ("x",), [{"x": rows(seed)} for seed in range(8)]))
    plain = lowered(made, {"y": scheme})
    others = [{"x": rows(seed)} for seed in range(100, 104)]
    assert all(distance(made, low, one) < 0.5 * distance(made, plain, one) for one in others)


SCHEMES8 = ["dynamic_int8.channel", "dynamic_int8.tensor", "dynamic_int8.channel_u8", "static_int8.extremes"]


@pytest.mark.parametrize("scheme", SCHEMES8)
def test_8_bit_weights_of_products_of_integers_make_up_for_their_errors_too(scheme: str) -> None:
    made = product()
    seen = [{"x": rows(seed)} for seed in range(8)]
    known, means = calibrate(made, ("x",), seen), calibrate(made, ("x",), seen)
    means.again = None  # ranges alone
    others = [{"x": rows(seed)} for seed in range(100, 104)]

    def error(calibration: Calibration) -> float:
        """Of the weight alone: what comes in is rounded in both."""
        low = lowered(made, {"y": scheme}, calibration)
        return float(np.mean([distance(made, low, one) for one in others]))

    assert error(known) < 0.95 * error(means)


def test_means_that_nothing_makes_up_for_count() -> None:
    """The means are far larger than what differs from row to row."""
    made = product()

    def moved(seed: int) -> dict[str, Array]:
        return {"x": rows(seed) + 100}

    calibration = calibrate(made, ("x",), [moved(seed) for seed in range(8)])
    low = lowered(made, {"y": "dynamic_int8.channel"}, calibration)
    assert distance(made, low, moved(100)) < 1.05 * distance(
        made, lowered(made, {"y": "dynamic_int8.channel"}), moved(100)
    )


def test_inputs_that_do_not_hang_together_do_no_harm() -> None:
    made, scheme = product(), "weight_int4.block32_level1"
    low = lowered(made, {"y": scheme}, calibrate(made, ("x",), [{"x": unrelated(seed)} for seed in range(8)]))
    plain, others = lowered(made, {"y": scheme}), {"x": unrelated(100, 400)}
    assert distance(made, low, others) < 1.05 * distance(made, plain, others)


def test_weights_that_other_nodes_use_too_stay_the_same_for_all() -> None:
    body = "t = Transpose<perm = [1, 0]>(w) r = Gather(t, i) y = MatMul(x, w)"
    shared = model(body, "float[b,64] x, int64[2] i", "float[b,300] y, float[2,64] r", w=(64, 300))
    shared = ortfuse.optimize(shared).model
    calibration = calibrate(shared, ("x",), [{"x": rows(seed), "i": np.array([0, 1])} for seed in range(4)])
    assert calibration.moments("x") is None
    assert calibrate(product(), ("x",), [{"x": rows(0)}] * 2).moments("x") is not None


def test_what_was_not_observed_has_no_moments() -> None:
    assert Calibration().moments("x") is None
