"""Measure the effect of each scheme at each site, alone, on the outputs of the model.

The error of a scheme at its site is the difference between the site in float32 and on the scheme. Both run by themselves, on
the activations of the whole model. This error is then added to the site's output in one session of the float32 model
(`ortfuse.runtime.error_injection`), and the outputs are compared with those without it. So a thousand candidates take a
thousand runs, but one session of the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import OrtfuseError
from ortfuse.quantization.metrics import METRICS, Metric, norm
from ortfuse.runtime.error_injection import PREFIX, SHOWN, disturbed, no_errors
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import Session
from ortfuse.runtime.single_site_model import Part

Array = np.ndarray[Any, Any]

TOGETHER = 256 << 20
"""The most bytes of values inside the model that are held at a time."""

FIRST = 4
"""The number of sites held at first, when it is not known yet how large their values are."""

_SAMPLE = 1 << 16
_BULK = 99.9


@dataclass(frozen=True)
class Effect:
    """The effect of one scheme at one site.

    Attributes:
        local: The relative L2 error of the site's own outputs, the worst over the inputs.
        outputs: The error of each output of the model, for one set of inputs after the other.
    """

    local: float
    outputs: tuple[float, ...]


@dataclass(frozen=True)
class Spread:
    """The values that a site takes: the smallest, the largest, and how far outliers stand out.

    `outliers` is the largest magnitude divided by the magnitude that all but a thousandth of the values stay below.
    """

    low: float
    high: float
    outliers: float


def guide_of(metric: Metric) -> Metric:
    """The metric by which small errors are followed to the outputs: the user's if it is smooth and adds up, else `l2`."""
    guide = metric if metric.name == "max" else METRICS["l2"]
    return Metric(guide.name, guide.of_output, judged=metric.judged)


class Probe:
    """The float32 model with a way in for an error at each site.

    Args:
        model: The float32 model.
        parts: Its sites.
        inputs: The sets of inputs to run it on.
        metric: How errors of the outputs are measured; only outputs of floating-point numbers count.
        threads: Threads of the runtime.

    Raises:
        VerificationError: The model cannot be run.

    Attributes:
        rows: How many errors there are: one for each output of floating-point numbers and set of inputs.
    """

    def __init__(
        self, model: ir.Model, parts: Iterable[Part], inputs: Sequence[Inputs], metric: Metric, threads: int = 0
    ) -> None:
        parts = list(parts)
        errors = {name: dtype for part in parts for name, dtype in part.outputs.items()}
        given = {value.name for value in model.graph.inputs}
        shown = dict.fromkeys(name for part in parts for name in part.inputs if name not in given)
        self._session = Session(disturbed(model, errors, list(shown)), threads=threads)
        self._inputs = [{**arrays, **no_errors(errors)} for arrays in inputs]
        self._metric = metric
        self._outputs = [name for name in self._session.output_names if not name.startswith(SHOWN)]
        self._expected = [self._session.run(arrays, self._outputs) for arrays in self._inputs]
        self.rows = len(self.distances(self._expected))

    def effect(self, errors: Sequence[Mapping[str, Array]]) -> tuple[float, ...]:
        """The error of each output, for one set of inputs after the other, if errors are added to values of the model.

        Args:
            errors: The errors by the names of the values, for each set of inputs.
        """
        found: list[float] = []
        for arrays, expected, added in zip(self._inputs, self._expected, errors, strict=True):
            fed = {**arrays, **{f"{PREFIX}{name}": array for name, array in added.items()}}
            found += self._distances(expected, self._session.run(fed, self._outputs))
        return tuple(found)

    def distances(self, found: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
        """The error of each output of another model, in the same order."""
        pairs = zip(self._expected, found, strict=True)
        return tuple(distance for pair in pairs for distance in self._distances(*pair))

    def _distances(self, expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[float]:
        smooth = {name: array for name, array in expected.items() if getattr(array, "dtype", None) is not None}
        smooth = {name: array for name, array in smooth.items() if array.dtype.kind in "fV"}
        return list(self._metric.each(smooth, found).values())

    def captured(self, parts: Sequence[Part]) -> Iterator[tuple[Part, list[Inputs]]]:
        """The values that each site takes, for each set of inputs; as many sites at a time as fit into memory."""
        waiting, count = list(parts), FIRST
        while waiting:
            group, waiting = waiting[:count], waiting[count:]
            found = self._values(group)
            yield from zip(group, found, strict=True)
            largest = max(_bytes(arrays) for arrays in found)
            count = max(1, min(2 * count, TOGETHER // max(largest, 1)))

    def _values(self, parts: Sequence[Part]) -> list[list[Inputs]]:
        shown = dict.fromkeys(f"{SHOWN}{name}" for part in parts for name in part.inputs)
        wanted = [name for name in shown if name in self._session.output_names]
        ran = [{**arrays, **self._session.run(arrays, wanted)} for arrays in self._inputs]
        return [
            [{n: one[f"{SHOWN}{n}" if f"{SHOWN}{n}" in one else n] for n in part.inputs} for one in ran]
            for part in parts
        ]


def _bytes(arrays: Sequence[Inputs]) -> int:
    return sum(array.nbytes for one in arrays for array in one.values())


def local_errors(plain: Sequence[Mapping[str, Any]], lowered: ir.Model, inputs: Sequence[Inputs]) -> Locally | None:
    """Return the output of a site on a scheme; `None` if it cannot be run.

    Args:
        plain: The outputs of the site in float32, for each set of inputs.
        lowered: The site on the scheme.
        inputs: The sets of inputs of the site.
    """
    try:
        session = Session(lowered)
        found = [session.run(arrays) for arrays in inputs]
    except OrtfuseError:
        return None
    errors = [
        {name: np.asarray(ran[name] - array, array.dtype) for name, array in outputs.items()}
        for outputs, ran in zip(plain, found, strict=True)
        if all(ran[name].shape == array.shape for name, array in outputs.items())
    ]
    if len(errors) < len(plain) or not all(np.isfinite(e).all() for one in errors for e in one.values()):
        return None
    worst = max(
        (
            _relative(error, outputs[name])
            for outputs, one in zip(plain, errors, strict=True)
            for name, error in one.items()
        ),
        default=0.0,
    )
    return Locally(worst, errors)


def _relative(error: Array, array: Array) -> float:
    size, whole = norm(error), norm(array)
    return size / whole if whole else (math.inf if size else 0.0)


@dataclass(frozen=True)
class Locally:
    """The error that a scheme makes at its site: its relative norm, and itself for each set of inputs by output."""

    error: float
    errors: Sequence[Mapping[str, Array]]


def spread_of(arrays: Iterable[Array]) -> Spread | None:
    """The spread of floating-point values; `None` if there are none."""
    flat = [array.ravel() for array in arrays if array.dtype.kind == "f" and array.size]
    if not flat:
        return None
    low, high = min(float(part.min()) for part in flat), max(float(part.max()) for part in flat)
    sample = np.concatenate([np.abs(part[:: max(1, part.size // _SAMPLE)]) for part in flat])
    bulk = float(np.percentile(sample, _BULK))
    return Spread(low, high, max(abs(low), abs(high)) / bulk if bulk else 1.0)
