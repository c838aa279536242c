"""Compare outputs: types and shapes, positions of NaN and infinity, and errors against tolerances or float64.

Every error is measured relative to a scale: the largest of the element's own magnitude, the typical magnitude of its output
(an element near zero in an output of large numbers is rounded like its neighbours), and the least scale in the table, below
which everything counts as zero. Without a float64 evaluation an element may differ by `relative` times its scale:

    element type   relative   least scale   (the smallest error that matters)
    float64        1e-9       1e-6          1e-15
    float32        1e-4       1e-3          1e-7
    float16        1e-2       1e-2          1e-4
    bfloat16       5e-2       2e-2          1e-3
    others         equal

An output computed in a step coarser than its own type (see `ortfuse.runtime.float64.coarsest_output_precision`) gets that step's
tolerance.

With a float64 evaluation of the original as the truth, the allowed error is the original's own error times `FACTOR`, plus
`FLOOR` roundings of the element type, but no more of these than the table allows (64 roundings of float16 are 6 % of the scale).
The test is stricter where the original is accurate, and more lenient where it is not. If the original is off by more than `TRUST`
times the table's tolerance, the evaluation is not trusted and the table decides: the model then has a discontinuity (a
comparison, an ArgMax, an overflow) where float64 has none, and any result could be excused. A tolerance given by the caller
takes precedence over everything else. A failure is weighed against the model's own sensitivity
(`ortfuse.verification.sensitivity_verdict`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ortfuse.serialization import Record

Array = np.ndarray[Any, Any]
Judge = Literal["equality", "tolerance", "float64", "the same level", "near ties", "sensitivity"]

FACTOR = 4.0
"""How many times further from float64 than the original the optimised model may be."""

FLOOR = 64.0
"""Roundings of the element type (epsilons, times the scale) that are allowed in any case."""

TRUST = 10.0
"""The float64 evaluation is trusted while the original is off by at most this many tolerances."""

MASKED = 1e4
"""Magnitudes above this multiple of the smallest tenth are masks or outliers, not typical of an output."""


@dataclass(frozen=True)
class Tolerance:
    """The error allowed for an element: `relative` to a scale of at least `least`; `epsilon` is the type's rounding."""

    relative: float
    least: float
    epsilon: float


TOLERANCES = {
    "float64": Tolerance(1e-9, 1e-6, 2.0**-52),
    "float32": Tolerance(1e-4, 1e-3, 2.0**-23),
    "float16": Tolerance(1e-2, 1e-2, 2.0**-10),
    "bfloat16": Tolerance(5e-2, 2e-2, 2.0**-7),
}
"""Tolerances by the name of the numpy type."""


@dataclass(frozen=True)
class Difference(Record):
    """The comparison of one output.

    Attributes:
        output: The name of the output.
        ok: Whether it passes.
        absolute: The largest absolute error against the original (0 for equal outputs of non-floating-point types).
        relative: The largest error against the original relative to the scale of the element.
        element: Index of the worst element (by `relative`, or the first wrong one), `None` if nothing differs.
        expected: The value of that element in the original.
        found: The value of that element in the optimised model.
        criterion: The criterion that decided.
        original_error: Largest absolute distance of the original from the float64 evaluation; `None` if there is none.
        original_relative: The same, relative to the scale of the element.
        optimised_error: Largest absolute distance of the optimised model from the float64 evaluation.
        optimised_relative: The same, relative to the scale of the element.
        reason: Why it does not pass, or why it does although it differs, as text.
    """

    output: str
    ok: bool
    absolute: float
    relative: float
    element: tuple[int, ...] | None = None
    expected: str = ""
    found: str = ""
    criterion: Judge = "equality"
    original_error: float | None = None
    original_relative: float | None = None
    optimised_error: float | None = None
    optimised_relative: float | None = None
    reason: str = ""


def allowed(array: Array) -> Array:
    """The error that the table allows for each element of an array, which is 0 for types that are not in it."""
    limits = TOLERANCES.get(array.dtype.name)
    if limits is None:
        return np.zeros(array.shape)
    finite = np.where(np.isfinite(array), array, 0).astype(np.float64)
    return np.asarray(limits.relative * _scale(finite, limits.least))


def failed(name: str, reason: str) -> Difference:
    """The result for an output that cannot be compared element by element."""
    return Difference(name, False, math.inf, math.inf, reason=reason)


def compare_all(
    expected: Mapping[str, Any],
    found: Mapping[str, Any],
    reference: Mapping[str, Any] | None,
    tolerance: float | None,
    precision: Mapping[str, str] | None = None,
) -> list[Difference]:
    """Compare the outputs of one run by name; a missing output counts as a difference. See `compare`."""
    return [
        compare(name, array, found[name], (reference or {}).get(name), tolerance, (precision or {}).get(name, ""))
        if name in found
        else failed(name, "the optimised model has no such output")
        for name, array in expected.items()
    ]


def compare(
    name: str,
    expected: Any,
    found: Any,
    reference: Any = None,
    tolerance: float | None = None,
    precision: str = "",
) -> Difference:
    """Compare one output of the original with that of the optimised model, and both with `reference` if given.

    Args:
        name: The name of the output.
        expected: From the original: an array of any shape and element type, or a list or map of arrays.
        found: From the optimised model.
        reference: From the original evaluated in float64, with the same shape.
        tolerance: Allowed relative error, used instead of the rules in the module's docstring.
        precision: The coarsest floating-point type used in computing the output, if coarser than the output's own.
    """
    if not isinstance(expected, np.ndarray) or not isinstance(found, np.ndarray):
        return _compare_collections(name, expected, found, reference, tolerance, precision)
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return failed(name, f"it is {found.dtype}{list(found.shape)} instead of {expected.dtype}{list(expected.shape)}")
    limits = TOLERANCES.get(expected.dtype.name)
    if limits is None:
        return _compare_exactly(name, expected, found)
    coarse = max(limits, TOLERANCES.get(precision, limits), key=lambda limit: limit.relative)
    limits = replace(coarse, epsilon=limits.epsilon)
    misplaced = _misplaced(expected, found)
    if misplaced is not None:
        where = "NaN or infinity stands where the original has none, or the other way round"
        return _at(name, misplaced, expected, found, where)
    truth = reference if isinstance(reference, np.ndarray) and reference.shape == expected.shape else None
    return _compare_numbers(name, expected, found, truth, limits, tolerance)


def _compare_collections(
    name: str, expected: Any, found: Any, reference: Any, tolerance: float | None, precision: str
) -> Difference:
    """Compare sequences or maps by their worst element; the floating-point numbers of a map are float32."""
    if isinstance(expected, float) and isinstance(found, float):
        old, new = np.asarray(expected, np.float32), np.asarray(found, np.float32)
        return compare(name, old, new, None if reference is None else np.asarray(reference), tolerance, precision)
    if type(expected) is not type(found) or not isinstance(expected, list | dict):
        same = type(expected) is type(found) and expected == found
        return Difference(name, True, 0.0, 0.0) if same else failed(name, f"{expected!r} became {found!r}"[:200])
    keys: Any = expected if isinstance(expected, dict) else range(len(expected))
    if len(expected) != len(found) or (isinstance(expected, dict) and expected.keys() != found.keys()):
        return failed(name, f"it has {len(found)} elements where the original has {len(expected)}, or other keys")
    truths = reference if type(reference) is type(expected) and len(reference) == len(expected) else {}
    parts = [
        compare(f"{name}[{key}]", expected[key], found[key], truths[key] if truths else None, tolerance, precision)
        for key in keys
    ]
    return max(parts, key=lambda part: (not part.ok, part.relative), default=Difference(name, True, 0.0, 0.0))


def _compare_exactly(name: str, expected: Array, found: Array) -> Difference:
    wrong = np.asarray(expected != found)
    if not wrong.any():
        return Difference(name, True, 0.0, 0.0)
    element = _first(wrong)
    return _at(name, element, expected, found, f"{int(wrong.sum())} of {wrong.size} elements differ")


def _at(name: str, element: tuple[int, ...], expected: Array, found: Array, reason: str) -> Difference:
    return Difference(
        name, False, math.inf, math.inf, element, str(expected[element]), str(found[element]), reason=reason
    )


def _first(wrong: Array) -> tuple[int, ...]:
    return tuple(int(index) for index in np.unravel_index(int(wrong.argmax()), wrong.shape))


def _misplaced(expected: Array, found: Array) -> tuple[int, ...] | None:
    """The first element that is NaN or infinite on one side only, or infinite with opposite signs."""
    nan = np.isnan(expected)
    wrong = nan != np.isnan(found)
    infinite = (np.isinf(expected) | np.isinf(found)) & ~nan
    wrong |= infinite & (expected != found)
    return _first(wrong) if wrong.any() else None


def _compare_numbers(
    name: str, expected: Array, found: Array, truth: Array | None, limits: Tolerance, tolerance: float | None
) -> Difference:
    """Compare floating-point outputs whose special values are at the same positions."""
    finite = np.isfinite(expected)
    if not finite.any():
        return Difference(name, True, 0.0, 0.0, criterion="tolerance")
    original = np.where(finite, expected, 0).astype(np.float64)
    optimised = np.where(finite, found, 0).astype(np.float64)
    allowed = limits.relative if tolerance is None else tolerance
    scale = _scale(original, limits.least)
    error, relative = _distance(optimised, original, scale)
    element = _first(np.abs(optimised - original) / scale)
    common: dict[str, Any] = {
        "output": name,
        "absolute": error,
        "relative": relative,
        "element": element if error else None,
        "expected": f"{original[element]:.9g}",
        "found": f"{optimised[element]:.9g}",
    }
    if truth is not None:
        usable = finite & np.isfinite(truth)
        exact = np.where(usable, truth, 0)
        theirs, theirs_relative = _distance(np.where(usable, original, 0), exact, scale)
        ours, ours_relative = _distance(np.where(usable, optimised, 0), exact, scale)
        common |= {
            "original_error": theirs,
            "original_relative": theirs_relative,
            "optimised_error": ours,
            "optimised_relative": ours_relative,
        }
        if tolerance is None and usable.sum() == finite.sum() and theirs_relative <= TRUST * limits.relative:
            bound = FACTOR * theirs_relative + min(FLOOR * limits.epsilon, limits.relative)
            ok = ours_relative <= bound
            reason = (
                f"its error against float64 is {ours_relative:.3g} of the scale, the original's {theirs_relative:.3g}"
            )
            if ok and relative > limits.relative:
                reason = f"more than {limits.relative:g} is allowed, since {reason.replace('its error', 'the error')}"
            elif ok:
                reason = ""
            return Difference(ok=ok, criterion="float64", reason=reason, **common)
    ok = relative <= allowed
    reason = f"the error {error:.3g} is {relative:.3g} of the scale, more than {allowed:.3g}"
    return Difference(ok=ok, criterion="tolerance", reason="" if ok else reason, **common)


def _distance(values: Array, target: Array, scale: Array) -> tuple[float, float]:
    """The largest absolute distance, and the largest divided by the scale."""
    error = np.abs(values - target)
    return float(error.max()), float((error / scale).max())


def _scale(values: Array, least: float) -> Array:
    """The scale that errors of each element are measured against; at least `least`.

    The typical magnitude of an output is the root mean square of its elements, leaving out those that dwarf the smallest
    tenth: a few masked scores of -1e9 would make every error look small.
    """
    magnitudes = np.abs(values)
    nonzero = magnitudes[magnitudes > 0]
    if not nonzero.size:
        return np.full_like(values, least)
    smallest_tenth = np.quantile(nonzero, 0.1)
    typical = math.sqrt(float(np.mean(np.square(nonzero[nonzero <= MASKED * smallest_tenth]))))
    return np.maximum(magnitudes, max(typical, least))
