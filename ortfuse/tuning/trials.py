"""Measure the choices of one search beside the original in a default session, with more rounds for fast ones.

A trial ends after `FEW` rounds unless it may be among the fastest and there is time for more. `ortfuse.tuning.final_round`
measures the best again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ortfuse.errors import OrtfuseError
from ortfuse.quantization.metrics import relative_l2
from ortfuse.runtime.bench import Candidate
from ortfuse.runtime.bench.session_timing import Enough, Meter
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import Session
from ortfuse.tuning.estimate_step_durations import Pace
from ortfuse.tuning.final_round import row_as_point
from ortfuse.tuning.model_variants import Variants
from ortfuse.tuning.outcome import Point
from ortfuse.tuning.search_space import Choice, Space
from ortfuse.tuning.study import Study

FEW, MANY = 3, 9
"""The rounds of a trial: at least, and at most."""

HOPELESS = 0.93
"""A trial ends early if it is slower than this share of the fastest so far."""

SHARE = 0.1
"""The share of the budget after which a trial that has had the fewest rounds ends."""


class Trials:
    """Measure choices.

    Args:
        original: The model file.
        variants: Makes models.
        space: The space.
        inputs: What is measured on, by name.
        allowed: The relative Euclidean error that an output may have.
        pace: How long things take.
        meter: Measures.

    Attributes:
        notes: What cannot be compared.
    """

    def __init__(
        self,
        original: Path,
        variants: Variants,
        space: Space,
        inputs: Inputs,
        *,
        allowed: float,
        pace: Pace,
        meter: Meter,
    ) -> None:
        self._variants, self._space, self._allowed = variants, space, allowed
        self._pace, self._meter, self._opened = pace, meter, 0
        session = Session(str(original), optimise=False)
        expected, again = session.run(inputs), session.run(inputs)
        self._expected = {name: array for name, array in expected.items() if _apart(array, again[name]) <= allowed}
        self.notes = [
            f"the output {name} is not the same in two runs of the original, so errors of it are not told"
            for name in expected
            if name not in self._expected
        ]

    def measured(self, number: int, choice: Choice, earlier: Sequence[Point]) -> Point:
        """A choice as a trial."""
        began = self._pace.clock()
        plain = Point(number, dict(choice))
        variant = self._variants.of(self._space, choice)
        if variant.failure:
            return replace(plain, failure=variant.failure)
        settings = self._space.settings(choice)
        for point in earlier:
            if point.content == variant.content and self._space.settings(point.choice) == settings:
                return replace(point, number=number, choice=dict(choice))
        made = self._pace.clock()
        found = self._beside_the_original(
            replace(plain, content=variant.content), Candidate(variant.path, settings), earlier
        )
        ended = self._pace.clock()
        self._pace.tried(ended - made)
        self._pace.first = self._pace.first or ended - began
        return found

    def _beside_the_original(self, plain: Point, candidate: Candidate, earlier: Sequence[Point]) -> Point:
        fastest = max((point.speedup for point in earlier if not point.failure), default=0.0)
        watch = self._pace.watch(_hopeless(fastest), FEW, SHARE * self._pace.budget)
        errors = dict[str, float]()
        opened, self._opened = (1 if self._opened else 2), 1  # the original's, which stays open
        try:
            rows = self._meter.measure(
                {"": candidate},
                MANY,
                enough=watch,
                check=lambda name, found: errors.update({name: self._error(found)}),
            )
        except OrtfuseError as failure:
            return replace(plain, failure=str(failure))
        found = row_as_point(replace(plain, error=errors.get("", 0.0)), rows[1])
        self._pace.learn(watch, opened, [found])
        if not found.error <= self._allowed:
            off = (
                f"off by {found.error:.2g}"
                if math.isfinite(found.error)
                else "of other shapes, or NaN or infinite elsewhere"
            )
            return replace(found, failure=f"the outputs are {off}")
        return found

    def verify_leader(self, search: Study) -> None:
        """Verify the fastest model so far; one that is refused is not gone on with."""
        verifying = 0.0
        while best := search.best(1):
            variant, started = self._variants.of(self._space, best[0].choice), self._pace.clock()
            refusal = self._variants.refused(variant)
            seconds = self._pace.clock() - started
            verifying += seconds
            self._pace.verifying = max(self._pace.verifying, seconds)
            search.charge("verifying", verifying)
            if not refusal:
                return
            search.refuse(best[0].content, refusal)

    def seconds(self, choice: Choice) -> float:
        """About how long a trial takes, making its model included."""
        self._variants.run = self._pace.run
        return self._variants.seconds(self._space, choice) + self._pace.trial

    def _error(self, found: Mapping[str, Any]) -> float:
        return max((_apart(array, found[name]) for name, array in self._expected.items()), default=0.0)


def _apart(expected: Any, found: Any) -> float:
    """The relative error of an output; infinite if it has another shape, 0 of what are no floating-point numbers otherwise."""
    if not isinstance(expected, np.ndarray) or not isinstance(found, np.ndarray):
        return 0.0
    if expected.shape != found.shape:
        return math.inf
    return relative_l2(expected, found) if np.issubdtype(expected.dtype, np.floating) else 0.0


def _hopeless(fastest: float) -> Enough:
    """Ends a trial that is clearly slower than the fastest so far."""
    return lambda speedups: [
        name for name, found in speedups.items() if len(found) >= FEW and statistics.median(found) < HOPELESS * fastest
    ]
