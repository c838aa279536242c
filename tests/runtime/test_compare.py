"""That comparing finds what is wrong, measures it well, and forgives what is only rounding."""

from __future__ import annotations

import json
import math

import ml_dtypes
import numpy as np
import pytest

from ortfuse.runtime.comparison import compare, compare_all

RNG = np.random.default_rng(0)
NORMAL = RNG.standard_normal((8, 16)).astype(np.float32)


def off(by: float, at: tuple[int, int] = (2, 5)) -> np.ndarray:
    changed = NORMAL.copy()
    changed[at] += by
    return changed


def test_equal_outputs_have_no_error_and_no_element() -> None:
    found = compare("y", NORMAL, NORMAL.copy())
    assert found.ok
    assert found.absolute == found.relative == 0
    assert found.element is None


def test_an_error_beyond_the_tolerance_names_element_and_both_values() -> None:
    found = compare("y", NORMAL, off(0.01))
    assert not found.ok
    assert found.output == "y"
    assert found.element == (2, 5)
    assert float(found.expected) == pytest.approx(NORMAL[2, 5])
    assert float(found.found) == pytest.approx(NORMAL[2, 5] + 0.01, rel=1e-5)
    assert found.absolute == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "fine", "wrong"),
    [(np.float64, 1e-11, 1e-8), (np.float32, 1e-5, 1e-3), (np.float16, 2e-3, 0.1), (ml_dtypes.bfloat16, 0.02, 0.5)],
)
def test_each_element_type_has_its_tolerance(kind: type, fine: float, wrong: float) -> None:
    ones = np.ones(4, np.float64)
    assert compare("y", ones.astype(kind), (ones + fine).astype(kind)).ok
    assert not compare("y", ones.astype(kind), (ones + wrong).astype(kind)).ok


@pytest.mark.parametrize(("kind", "fine", "wrong"), [(np.float16, 5e-3, 0.04), (ml_dtypes.bfloat16, 0.03, 0.2)])
def test_half_precision_that_is_exact_is_no_licence(kind: type, fine: float, wrong: float) -> None:
    """64 of its roundings would be more than the tolerance: a bias may be missing without being seen."""
    exact = np.ones(4, np.float64)
    assert compare("y", exact.astype(kind), (exact + fine).astype(kind), exact).ok
    assert not compare("y", exact.astype(kind), (exact + wrong).astype(kind), exact).ok


def test_masked_elements_do_not_make_errors_of_the_others_look_small() -> None:
    for hidden in (-1e4, -1e9, float(np.finfo(np.float32).min)):
        expected, found = NORMAL.copy(), off(0.01)
        expected[:, 8:] = found[:, 8:] = hidden
        assert not compare("y", expected, found).ok


def test_an_element_near_zero_is_measured_against_its_neighbours() -> None:
    expected = NORMAL.copy()
    expected[2, 5] = 1e-9
    found = expected.copy()
    found[2, 5] = 1e-6
    assert compare("y", expected, found).ok


def test_small_probabilities_are_measured_against_each_other_and_not_against_one() -> None:
    probabilities = np.full(1000, 1e-5, np.float32)
    probabilities[3] = 0.99
    changed = probabilities.copy()
    changed[7] *= 1.5
    found = compare("y", probabilities, changed)
    assert not found.ok
    assert found.element == (7,)


def test_noise_around_zeros_is_equal() -> None:
    zeros = np.zeros(5, np.float32)
    assert compare("y", zeros, zeros + np.float32(5e-8)).ok
    assert not compare("y", zeros, zeros + np.float32(1e-3)).ok


def test_nan_and_infinity_must_stand_where_they_stood() -> None:
    ones = np.ones((2, 2), np.float32)
    nan = np.array([[1, np.nan], [1, 1]], np.float32)
    inf = np.array([[1, np.inf], [1, 1]], np.float32)
    wrong = compare("y", ones, nan)
    assert not wrong.ok
    assert wrong.element == (0, 1)
    assert (wrong.expected, wrong.found) == ("1.0", "nan")
    assert not compare("y", nan, ones).ok
    assert compare("y", nan, nan).ok
    assert compare("y", inf, inf).ok
    assert not compare("y", inf, -inf).ok
    assert not compare("y", inf, nan).ok
    assert not compare("y", ones, inf).ok


def test_an_error_beside_nan_is_still_found() -> None:
    expected, found = NORMAL.copy(), off(0.01)
    expected[0, 0] = found[0, 0] = np.nan
    assert compare("y", expected, found).element == (2, 5)


@pytest.mark.parametrize(
    "values", [np.array([1, 2, 3]), np.array([True, False, True]), np.array(["a", "b", "c"], object)]
)
def test_integers_truth_values_and_strings_must_be_equal(values: np.ndarray) -> None:
    assert compare("y", values, values.copy()).ok
    wrong = compare("y", values, np.roll(values, -1))
    assert not wrong.ok
    assert wrong.element == (0,)
    assert "of 3 elements differ" in wrong.reason


def test_types_and_shapes_must_be_equal() -> None:
    assert "float32[2, 1] instead of float32[2]" in compare("y", np.ones(2, "f4"), np.ones((2, 1), "f4")).reason
    assert not compare("y", np.ones(2, np.float32), np.ones(2, np.float64)).ok


def test_sequences_are_compared_element_by_element() -> None:
    assert compare("y", [NORMAL, NORMAL], [NORMAL, NORMAL.copy()]).ok
    wrong = compare("y", [NORMAL, NORMAL], [NORMAL, off(1.0)])
    assert not wrong.ok
    assert wrong.output == "y[1]"
    assert not compare("y", [NORMAL], [NORMAL, NORMAL]).ok
    assert not compare("y", [NORMAL], NORMAL).ok


def test_empty_outputs_and_outputs_of_nothing_finite_are_equal() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert compare("y", empty, empty).ok
    nothing = np.full(3, np.nan, np.float32)
    assert compare("y", nothing, nothing).ok


def test_float64_forgives_what_the_original_does_worse() -> None:
    truth = NORMAL.astype(np.float64)
    assert not compare("y", off(5e-4), off(-5e-4)).ok
    judged = compare("y", off(5e-4), off(-5e-4), truth)
    assert judged.ok
    assert judged.criterion == "float64"
    assert judged.original_error == pytest.approx(5e-4, rel=1e-2)
    assert judged.optimised_error == pytest.approx(5e-4, rel=1e-2)


def test_float64_finds_what_the_tolerance_lets_pass() -> None:
    truth = NORMAL.astype(np.float64)
    assert compare("y", NORMAL, off(5e-5)).ok
    judged = compare("y", NORMAL, off(5e-5), truth)
    assert not judged.ok
    assert "against float64" in judged.reason


def test_float64_is_not_believed_where_the_original_is_far_from_it() -> None:
    truth = off(0.5).astype(np.float64)
    judged = compare("y", NORMAL, off(0.5), truth)
    assert not judged.ok
    assert judged.criterion == "tolerance"
    assert judged.original_error == pytest.approx(0.5, rel=1e-2)


def test_a_tolerance_of_the_caller_decides_alone() -> None:
    truth = NORMAL.astype(np.float64)
    assert compare("y", NORMAL, off(1e-3), truth, tolerance=1e-2).ok
    assert not compare("y", NORMAL, off(1e-5), truth, tolerance=1e-7).ok


def test_a_missing_output_is_a_difference() -> None:
    one, other = compare_all({"a": NORMAL, "b": NORMAL}, {"a": NORMAL}, None, None)
    assert one.ok
    assert not other.ok
    assert other.output == "b"


def test_differences_are_valid_json() -> None:
    content = compare("y", np.array([1]), np.array([2])).to_dict()
    assert content["absolute"] is None
    assert math.isinf(compare("y", np.array([1]), np.array([2])).absolute)
    json.loads(json.dumps(content, allow_nan=False))


def test_the_numbers_of_a_map_are_compared_as_float32() -> None:
    expected = [{0: 0.25, 1: 0.75}]
    assert compare("y", expected, [{0: 0.25, 1: 0.75 * (1 + 2.0**-22)}]).ok
    assert not compare("y", expected, [{0: 0.25, 1: 0.76}]).ok
    assert not compare("y", expected, [{0: 0.25, 2: 0.75}]).ok
