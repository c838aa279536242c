"""Comparing outputs: shapes and types, positions of NaN and infinity, and errors against tolerances.

Tolerances are relative to the largest magnitude of an output, for an element near zero of an output of large numbers is
rounded like its neighbours:

    element type   allowed error / largest magnitude
    float64        1e-9
    float32        1e-4
    float16        1e-2
    bfloat16       5e-2
    others         equal
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}

REFERENCE_FACTOR = 4.0
"""How much further from float64 than the original the optimised model may be."""


@dataclass(frozen=True)
class Difference:
    """How one output compares.

    Attributes:
        output: Its name.
        ok: Whether it is within tolerance.
        absolute: The largest absolute error (0 for equal non-floating outputs).
        relative: That error divided by the largest magnitude of the expected output.
        element: Index of the worst element, `None` if nothing differs.
        expected: What stands there in the original.
        found: What stands there in the optimised model.
        original_error: Largest distance of the original from the float64 evaluation, `None` without one.
        optimised_error: Largest distance of the optimised model from it.
        reason: Why it is not ok, in words.
    """

    output: str
    ok: bool
    absolute: float
    relative: float
    element: tuple[int, ...] | None = None
    expected: str = ""
    found: str = ""
    original_error: float | None = None
    optimised_error: float | None = None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The fields as data for JSON."""
        return asdict(self)


def compare(name: str, expected: Any, found: Any, reference: Any = None, tolerance: float | None = None) -> Difference:
    """Compare one output of the original with that of the optimised model, and both with `reference` if given."""
    if not isinstance(expected, np.ndarray) or not isinstance(found, np.ndarray):
        same = type(expected) is type(found) and repr(expected) == repr(found)
        return Difference(name, same, 0.0, 0.0, reason="" if same else "sequences or maps differ")
    if expected.shape != found.shape or expected.dtype != found.dtype:
        what = f"is {found.dtype}{list(found.shape)} instead of {expected.dtype}{list(expected.shape)}"
        return Difference(name, False, np.inf, np.inf, reason=what)
    kind = expected.dtype.name
    if kind not in TOLERANCES:
        return _equal(name, expected, found)
    allowed = TOLERANCES[kind] if tolerance is None else tolerance
    return _close(name, expected.astype(np.float64), found.astype(np.float64), reference, allowed, _epsilon(kind))


def _equal(name: str, expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> Difference:
    wrong = np.asarray(expected != found)
    if not wrong.any():
        return Difference(name, True, 0.0, 0.0)
    element = tuple(int(index) for index in np.argwhere(wrong)[0])
    reason = f"{int(wrong.sum())} of {wrong.size} elements differ"
    return Difference(name, False, np.inf, np.inf, element, str(expected[element]), str(found[element]), reason=reason)


def _epsilon(kind: str) -> float:
    return {"float64": 2.2e-16, "float32": 1.2e-7, "float16": 9.8e-4}.get(kind, 7.8e-3)


def _close(
    name: str,
    expected: np.ndarray[Any, Any],
    found: np.ndarray[Any, Any],
    reference: Any,
    allowed: float,
    epsilon: float,
) -> Difference:
    special = np.isnan(expected) != np.isnan(found)
    special |= (np.isinf(expected) | np.isinf(found)) & (expected != found) & ~(np.isnan(expected) & np.isnan(found))
    if special.any():
        element = tuple(int(index) for index in np.argwhere(special)[0])
        text = "NaN or infinity stands where the original has none, or the other way round"
        return Difference(
            name, False, np.inf, np.inf, element, str(expected[element]), str(found[element]), reason=text
        )
    finite = np.isfinite(expected) & np.isfinite(found)
    error = np.where(finite, np.abs(np.where(finite, expected, 0) - np.where(finite, found, 0)), 0.0)
    if not error.size:
        return Difference(name, True, 0.0, 0.0)
    scale = float(np.abs(np.where(finite, expected, 0)).max())
    element = tuple(int(index) for index in np.unravel_index(int(error.argmax()), error.shape))
    absolute = float(error.max())
    relative = absolute / scale if scale else absolute
    ours, theirs = _distances(expected, found, reference, finite)
    ok = relative <= allowed
    if not ok and ours is not None and theirs is not None:
        ok = ours <= REFERENCE_FACTOR * theirs + 32 * epsilon * scale
    reason = (
        "" if ok else f"the error {absolute:.3g} is {relative:.3g} of the largest magnitude, more than {allowed:.3g}"
    )
    return Difference(
        name, ok, absolute, relative, element, f"{expected[element]:.9g}", f"{found[element]:.9g}", theirs, ours, reason
    )


def _distances(expected: Any, found: Any, reference: Any, finite: Any) -> tuple[float | None, float | None]:
    """The largest distances of the optimised model and of the original from the float64 evaluation."""
    if reference is None or np.shape(reference) != expected.shape:
        return None, None
    usable = finite & np.isfinite(reference)
    if not usable.any():
        return 0.0, 0.0
    truth = np.asarray(reference, dtype=np.float64)[usable]
    return float(np.abs(found[usable] - truth).max()), float(np.abs(expected[usable] - truth).max())


def compare_all(
    expected: Mapping[str, Any], found: Mapping[str, Any], reference: Mapping[str, Any] | None, tolerance: float | None
) -> list[Difference]:
    """Compare outputs by name; an output that is missing is a difference."""
    differences = []
    for name, array in expected.items():
        if name not in found:
            differences.append(Difference(name, False, np.inf, np.inf, reason="the optimised model has no such output"))
            continue
        differences.append(compare(name, array, found[name], (reference or {}).get(name), tolerance))
    return differences
