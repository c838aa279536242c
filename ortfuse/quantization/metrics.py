"""Measure the distance between outputs of the quantised and the original model as one number: 0 if equal.

With a and b the same output of the original and of the lowered model, for one set of inputs:

    l2       |a - b| / |a|, the Euclidean norm over all elements
    max      max |a - b| / max |a|
    cosine   1 - a.b / (|a| |b|)
    top1     the share of rows (along the last axis) whose largest element is another one
    tokens   the share of positions from the first one on at which a greedy decoder would have written something else

`l2`, `max` and `cosine` are the worst over all outputs and all sets of inputs; integers and booleans count by the share of
elements that differ. `top1` and `tokens` are means over the sets of inputs, and look at the integers among the outputs or,
without any, at the first output of floating-point numbers. A user's own function gets all sets of inputs at once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ortfuse.errors import OptionError, VerificationError
from ortfuse.quantization.statistical_tolerance_limit import limit_of
from ortfuse.quantization.user_functions import function_of, is_function

Array = np.ndarray[Any, Any]
Arrays: TypeAlias = Mapping[str, Any]

UserFunction: TypeAlias = Callable[[Sequence[Arrays], Sequence[Arrays], Sequence[Arrays]], float]
"""Takes the original's outputs by name, the lowered model's, and the inputs, a list each; returns the error."""


@dataclass(frozen=True)
class Measured:
    """The error of a model.

    Attributes:
        error: The error on the inputs that were run.
        likely: The largest error to be expected on other inputs of the same kind, by the spread over those that were run.
    """

    error: float
    likely: float


def error_words(error: float, digits: int = 3) -> str:
    """An error in words; one without bounds is of no size that could be compared."""
    finite = f"{error:.{digits}g}"
    return (
        finite if math.isfinite(error) else "without bounds: infinity, NaN, shapes or zeros differ from the original's"
    )


@dataclass(frozen=True)
class Metric:
    """One way to measure the error.

    Attributes:
        name: Its name.
        of_output: The error of one output; `None` if the user's function measures.
        decides: Whether it counts decisions, which differ or do not, so that it says nothing about small errors.
        judged: The names of the outputs that count; empty for all.
        function: The user's function.
    """

    name: str
    of_output: Callable[[Array, Array], float] | None
    decides: bool = False
    judged: tuple[str, ...] = ()
    function: UserFunction | None = None

    def demand_outputs(self, names: Sequence[str]) -> None:
        """Check that a model has the outputs that count.

        Args:
            names: The names of its outputs.

        Raises:
            VerificationError: It lacks one.
        """
        if lacking := [name for name in self.judged if name not in names]:
            raise VerificationError(
                f"the model has no output '{lacking[0]}' to judge; its outputs are {', '.join(names)}"
            )

    def of(
        self,
        expected: Sequence[Arrays],
        found: Sequence[Arrays],
        inputs: Sequence[Arrays],
        *,
        clips: bool = False,
    ) -> Measured:
        """The error over several sets of inputs.

        Args:
            expected: The outputs of the original.
            found: The outputs of the other model.
            inputs: The inputs.
            clips: Whether the other model clips values that are out of a range that was observed.

        Raises:
            OptionError: The user's function fails, or does not return a number.
        """
        if self.function is not None:
            error = _called(self.function, self.name, expected, found, inputs)
            return Measured(error, error)
        each = [self.each(one, other) for one, other in zip(expected, found, strict=True)]
        errors = [max(outputs.values(), default=0.0) for outputs in each]
        if self.decides:
            return _mean(errors)
        # Each output by itself: among the worst errors, one that varies little hides another that varies much.
        likely = (limit_of([outputs[name] for outputs in each], clips) for name in (each[0] if each else ()))
        return Measured(max(errors, default=0.0), max(likely, default=0.0))

    def each(self, expected: Arrays, found: Arrays) -> dict[str, float]:
        """The error of each output that counts, for one set of inputs."""
        assert self.of_output is not None
        return {name: self._output(expected[name], found.get(name)) for name in self._counted(expected)}

    def _counted(self, outputs: Arrays) -> list[str]:
        names = [name for name in outputs if not self.judged or name in self.judged]
        if not self.decides:
            return names
        whole = [name for name in names if _is_whole(outputs[name]) and outputs[name].ndim > 0]
        numbers = [name for name in names if isinstance(outputs[name], np.ndarray) and outputs[name].ndim > 0]
        return whole or [name for name in numbers if not _is_whole(outputs[name])][:1]

    def _output(self, expected: Any, found: Any) -> float:
        assert self.of_output is not None
        if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
            return max((self._output(*pair) for pair in zip(expected, found, strict=True)), default=0.0)
        if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():  # of ZipMap
            return self._output(*(np.array([one[key] for key in expected]) for one in (expected, found)))
        if not isinstance(expected, np.ndarray):
            return 0.0 if type(expected) is type(found) and bool(np.all(expected == found)) else math.inf
        if not isinstance(found, np.ndarray) or expected.shape != found.shape or expected.dtype != found.dtype:
            return math.inf
        if not expected.size:
            return 0.0
        if not self.decides and expected.dtype.kind not in "fcV":
            return float(np.mean(expected != found))
        return self.of_output(expected, found)


def relative_l2(expected: Array, found: Array) -> float:
    """The norm of the difference divided by that of `expected`; infinite if NaN or infinity stand elsewhere."""
    pair = _finite(expected, found)
    return math.inf if pair is None else _ratio(norm(pair[1] - pair[0]), norm(pair[0]))


def relative_max(expected: Array, found: Array) -> float:
    """The largest difference divided by the largest magnitude of `expected`."""
    pair = _finite(expected, found)
    return math.inf if pair is None else _ratio(_largest(pair[1] - pair[0]), _largest(pair[0]))


def cosine(expected: Array, found: Array) -> float:
    """1 minus the cosine of the angle between the two."""
    pair = _finite(expected, found)
    if pair is None:
        return math.inf
    one, other = (part.ravel() for part in pair)
    norms = norm(one) * norm(other)
    if norms == 0.0:
        return 0.0 if norm(one) == norm(other) else 1.0
    return max(0.0, 1.0 - float((one * other).sum()) / norms)


def top1(expected: Array, found: Array) -> float:
    """The share of rows with another largest element; of integers, the share of elements that differ."""
    return float(np.mean(~_decide_the_same(expected, found)))


def tokens(expected: Array, found: Array) -> float:
    """The share of positions from the first different one on; positions are along the last axis of the decisions."""
    same = np.atleast_1d(_decide_the_same(expected, found))
    return float(1.0 - np.mean(np.cumprod(same, axis=-1)))


METRICS: Mapping[str, Metric] = {
    "l2": Metric("l2", relative_l2),
    "max": Metric("max", relative_max),
    "cosine": Metric("cosine", cosine),
    "top1": Metric("top1", top1, decides=True),
    "tokens": Metric("tokens", tokens, decides=True),
}


def metric_of(given: str | UserFunction, judged: Sequence[str] = ()) -> Metric:
    """The metric of a name, of `"file.py:function"` or `"module:function"`, or of a function.

    Raises:
        OptionError: There is none of this name, or the function cannot be imported.
    """
    if callable(given):
        name = getattr(given, "__name__", "the given function")
        return Metric(name, None, judged=tuple(judged), function=given)
    if given in METRICS:
        known = METRICS[given]
        return Metric(known.name, known.of_output, known.decides, tuple(judged))
    if not is_function(given):
        raise OptionError(
            "metric", f"write one of {', '.join(METRICS)}, file.py:function or module:function, not {given!r}"
        )
    return Metric(given, None, judged=tuple(judged), function=function_of(given, "metric"))


def _called(
    function: UserFunction, name: str, expected: Sequence[Arrays], found: Sequence[Arrays], inputs: Sequence[Arrays]
) -> float:
    try:
        error = float(function(expected, found, inputs))
    except Exception as problem:
        raise OptionError("metric", f"{name} fails: {type(problem).__name__}: {problem}") from problem
    if math.isnan(error):
        raise OptionError("metric", f"{name} returns NaN; it has to return a number, 0 if the outputs are the same")
    return error


def _mean(errors: Sequence[float]) -> Measured:
    """The mean, and two of its standard errors more on other inputs."""
    mean = statistics.fmean(errors) if errors else 0.0
    return Measured(mean, mean + 2 * statistics.stdev(errors) / len(errors) ** 0.5 if len(errors) > 1 else mean)


def _is_whole(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind in "iub"


def _decisions(array: Array) -> Array:
    return array if _is_whole(array) or array.ndim == 0 else np.argmax(array, axis=-1)


def _decide_the_same(expected: Array, found: Array) -> Array:
    """Whether both decide the same; rows that hold NaN in one alone do not, wherever that finds their largest element."""
    same = np.asarray(_decisions(expected) == _decisions(found))
    if expected.dtype.kind not in "fcV" or expected.ndim == 0:
        return same
    return np.asarray(same & (np.isnan(expected).any(axis=-1) == np.isnan(found).any(axis=-1)))


def _finite(expected: Array, found: Array) -> tuple[Array, Array] | None:
    """Both in float64, with zeros where both are the same infinity or NaN; `None` if these stand at other places."""
    one, other = expected.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(one)
    if finite.all() and np.isfinite(other).all():
        return one, other
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True) or not np.isfinite(other[finite]).all():
        return None
    return np.where(finite, one, 0.0), np.where(finite, other, 0.0)


def _ratio(part: float, whole: float) -> float:
    if part == 0.0:
        return 0.0
    return part / whole if whole else math.inf


def norm(array: Array) -> float:
    """The Euclidean norm."""
    # No product of the two: the threads of a BLAS go on spinning for a while, beside the runs that come next.
    with np.errstate(over="ignore"):
        return math.sqrt(float(np.square(array, dtype=np.float64).sum()))


def _largest(array: Array) -> float:
    return float(np.abs(array).max(initial=0.0))
