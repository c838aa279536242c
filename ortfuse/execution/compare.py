"""Comparing outputs: types and shapes, positions of NaN and infinity, and errors against tolerances or float64.

Every error is measured against a scale: the element's own magnitude, or the magnitude typical of its output where that
is larger (an element near zero in an output of large numbers is rounded like its neighbours), or the least scale of the
table, below which everything counts as zero. Without a float64 evaluation an element may differ by `relative` times its
scale:

    element type   relative   least scale   (the smallest error that matters)
    float64        1e-9       1e-6          1e-15
    float32        1e-4       1e-3          1e-7
    float16        1e-2       1e-2          1e-4
    bfloat16       5e-2       2e-2          1e-3
    others         equal

An output whose coarsest step (see `ortfuse.execution.precision`) is coarser than its type has that step's tolerance.

With a float64 evaluation of the original as the truth, the allowance is what the original itself is off, times
`FACTOR`, plus `FLOOR` roundings of the element type. That is stricter where the original is accurate and more lenient
where it is not. The evaluation is not trusted, and the table decides, when the original is off by more than `TRUST`
times the table's tolerance: then the model jumps (a comparison, an ArgMax, an overflow) where float64 does not, and any
result could be excused. A tolerance given by the caller is an order, and decides alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
Judge = Literal["equality", "tolerance", "float64"]

FACTOR = 4.0
"""How much further from float64 than the original the optimised model may be."""

FLOOR = 64.0
"""Roundings of the element type (epsilons, times the scale) that the optimised model may be off in any case."""

TRUST = 10.0
"""How many tolerances the original may be off float64 before float64 is no longer believed."""

MASKED = 1e4
"""Magnitudes of this many times the smallest tenth are masks or outliers, not what is typical of an output."""


@dataclass(frozen=True)
class Tolerance:
    """What an element may differ by, `relative` to a scale of at least `least`; `epsilon` is the type's rounding."""

    relative: float
    least: float
    epsilon: float


TOLERANCES = {
    "float64": Tolerance(1e-9, 1e-6, 2.0**-52),
    "float32": Tolerance(1e-4, 1e-3, 2.0**-23),
    "float16": Tolerance(1e-2, 1e-2, 2.0**-10),
    "bfloat16": Tolerance(5e-2, 2e-2, 2.0**-7),
}
"""By the name of the numpy type."""


@dataclass(frozen=True)
class Difference:
    """How one output compares.

    Attributes:
        output: Its name.
        ok: Whether it is as it should be.
        absolute: The largest absolute error against the original (0 for equal outputs of other types).
        relative: The largest error against the original, each divided by the scale of its element.
        element: Index of the worst element (by `relative`, or the first wrong one), `None` if nothing differs.
        expected: What stands there in the original.
        found: What stands there in the optimised model.
        judged_by: What decided.
        original_error: Largest absolute distance of the original from the float64 evaluation, `None` without one.
        original_relative: The same, divided by the scale of its element.
        optimised_error: Largest absolute distance of the optimised model from the float64 evaluation.
        optimised_relative: The same, divided by the scale of its element.
        reason: Why it is not ok, in words.
    """

    output: str
    ok: bool
    absolute: float
    relative: float
    element: tuple[int, ...] | None = None
    expected: str = ""
    found: str = ""
    judged_by: Judge = "equality"
    original_error: float | None = None
    original_relative: float | None = None
    optimised_error: float | None = None
    optimised_relative: float | None = None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The fields as data for JSON, which knows no infinity: an error without measure is `None`."""
        content = asdict(self)
        for field in fields(self):
            if isinstance(value := content[field.name], float) and not math.isfinite(value):
                content[field.name] = None
        return content


def failed(name: str, reason: str) -> Difference:
    """An output that cannot be compared element by element."""
    return Difference(name, False, math.inf, math.inf, reason=reason)


def compare_all(
    expected: Mapping[str, Any],
    found: Mapping[str, Any],
    reference: Mapping[str, Any] | None,
    tolerance: float | None,
    precision: Mapping[str, str] | None = None,
) -> list[Difference]:
    """Compare the outputs of one run by name; an output that is missing is a difference. See `compare`."""
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
        name: The output.
        expected: From the original: an array of any shape and element type, or a list or map of such.
        found: From the optimised model.
        reference: From the original evaluated in float64, of the same shape.
        tolerance: Allowed relative error, instead of what the module's docstring says.
        precision: The coarsest floating-point type in which the model computes, if it is coarser than the output's.
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
    """Sequences and maps, by their worst element."""
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
    """The first element that is NaN or infinite on one side only, or infinite with the other sign."""
    nan = np.isnan(expected)
    wrong = nan != np.isnan(found)
    infinite = (np.isinf(expected) | np.isinf(found)) & ~nan
    wrong |= infinite & (expected != found)
    return _first(wrong) if wrong.any() else None


def _compare_numbers(
    name: str, expected: Array, found: Array, truth: Array | None, limits: Tolerance, tolerance: float | None
) -> Difference:
    """Compare floating-point outputs whose special values are in the same places."""
    finite = np.isfinite(expected)
    if not finite.any():
        return Difference(name, True, 0.0, 0.0, judged_by="tolerance")
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
            bound = FACTOR * theirs_relative + FLOOR * limits.epsilon
            ok = ours_relative <= bound
            reason = (
                f"its error against float64 is {ours_relative:.3g} of the scale, the original's {theirs_relative:.3g}"
            )
            return Difference(ok=ok, judged_by="float64", reason="" if ok else reason, **common)
    ok = relative <= allowed
    reason = f"the error {error:.3g} is {relative:.3g} of the scale, more than {allowed:.3g}"
    return Difference(ok=ok, judged_by="tolerance", reason="" if ok else reason, **common)


def _distance(values: Array, target: Array, scale: Array) -> tuple[float, float]:
    """The largest absolute distance, and the largest divided by the scale."""
    error = np.abs(values - target)
    return float(error.max()), float((error / scale).max())


def _scale(values: Array, least: float) -> Array:
    """What errors of each element are measured against; at least `least`.

    Typical of an output is the root mean square of its elements, without those that dwarf the smallest tenth: a few
    masked scores of -1e9 would make every error look small.
    """
    magnitudes = np.abs(values)
    nonzero = magnitudes[magnitudes > 0]
    if not nonzero.size:
        return np.full_like(values, least)
    smallest_tenth = np.quantile(nonzero, 0.1)
    typical = math.sqrt(float(np.mean(np.square(nonzero[nonzero <= MASKED * smallest_tenth]))))
    return np.maximum(magnitudes, max(typical, least))
