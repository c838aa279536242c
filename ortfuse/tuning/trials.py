"""Measures the choices of one search beside the original in a default session: few rounds at first, more for what is fast.

A trial ends after `FEW` rounds unless it may be among the fastest. The best are measured side by side in the end, with the pass
lists in a default session among them, and the slower half is left out again and again. Of many that are measured the
best has been lucky: it is measured once more in a new process, beside the original and what `optimize` makes. These times count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ortfuse.bench import Candidate, SessionLatency
from ortfuse.bench.sessions import Enough, Meter, turn_seconds
from ortfuse.errors import ConstraintError, OrtfuseError
from ortfuse.execution.inputs import Inputs
from ortfuse.execution.session import Session
from ortfuse.precision.metrics import relative_l2
from ortfuse.tuning.outcome import Point, TuningOutcome
from ortfuse.tuning.space import MODEL, ORIGINAL, Choice, Space
from ortfuse.tuning.study import Study
from ortfuse.tuning.variants import Variants

FINALISTS = 4
"""How many of the fastest choices are measured again, side by side."""

PLAIN = 2
"""How many of the fastest models in a default session are measured beside them."""

FEW, MANY = 3, 9
"""The rounds of a trial: at least, and at most."""

HOPELESS = 0.93
"""A trial ends early if it is slower than this share of the fastest so far."""

PLAINER = 1.01
"""How much faster another choice has to be than a pass list in a default session, so that it is taken instead."""

LEAST_ROUNDS = 6
"""The fewest rounds side by side."""

PRECISE = 90
"""The rounds side by side where a model is fast: what differs by a few percent takes as many to be told apart."""

SHARE = 0.15
"""The share of the budget that measuring side by side may take, and as much once more, apart from the fewest rounds."""

START = 0.5
"""Seconds until a process is ready, about."""


class Trials:
    """Measures choices, and in the end the best of them.

    Args:
        original: The model file.
        variants: Makes models.
        space: The space.
        inputs: What is measured on, by name.
        allowed: The relative Euclidean error that an output may have.
        budget: The seconds of the search.
        rounds: How often the best are run side by side at most, unless that takes a small part of the budget.
        meter: Measures.
    """

    def __init__(
        self,
        original: Path,
        variants: Variants,
        space: Space,
        inputs: Inputs,
        *,
        allowed: float,
        budget: float,
        rounds: int,
        meter: Meter,
    ) -> None:
        self._variants, self._space, self._allowed = variants, space, allowed
        self._budget, self._rounds, self._meter = budget, rounds, meter
        self._expected = Session(str(original), optimise=False).run(inputs)
        self._verification = 0.0

    def measured(self, number: int, choice: Choice, earlier: Sequence[Point]) -> Point:
        """A choice as a trial."""
        plain = Point(number, dict(choice))
        variant = self._variants.of(self._space, choice)
        if variant.failure:
            return replace(plain, failure=variant.failure)
        settings = self._space.settings(choice)
        for point in earlier:
            if point.content == variant.content and self._space.settings(point.choice) == settings:
                return replace(point, number=number, choice=dict(choice))
        plain, errors = replace(plain, content=variant.content), dict[str, float]()
        try:
            rows = self._meter.measure(
                {"": Candidate(variant.path, settings)},
                MANY,
                enough=_hopeless(max((point.speedup for point in earlier if not point.failure), default=0.0)),
                check=lambda name, found: errors.update({name: self._error(found)}),
            )
        except OrtfuseError as failure:
            return replace(plain, failure=str(failure))
        found = _point(replace(plain, error=errors.get("", 0.0)), rows[1])
        if not found.error <= self._allowed:
            return replace(found, failure=f"the outputs are off by {found.error:.2g}")
        return found

    def verify_leader(self, search: Study) -> None:
        """Verify the fastest model so far; one that is refused is not gone on with."""
        while best := search.best(1):
            variant, started = self._variants.of(self._space, best[0].choice), time.monotonic()
            refusal = self._variants.refused(variant)
            self._verification += time.monotonic() - started
            search.charge("verifying", self._verification)
            if not refusal:
                return
            search.refuse(best[0].content, refusal)

    def making(self, choice: Choice) -> float:
        """About how long it takes to make the model of a choice."""
        return self._variants.seconds(self._space, choice)

    def reserve(self, search: Study) -> float:
        """The seconds that are needed after the last trial."""
        best = search.best(1)
        verified = not best or self._variants.is_verified(self._variants.of(self._space, best[0].choice))
        finalists = self._finalists(search)
        again = [*finalists[:1], *self._made_by_optimize(search)]
        measuring = sum(_seconds(points, self._final_rounds(points)) for points in (finalists, again))
        return START + measuring + (0.0 if verified else self._verification)

    def outcome(self, search: Study) -> TuningOutcome:
        """The best of a search, measured again side by side.

        Raises:
            ConstraintError: No choice keeps the constraints.
        """
        started, notes = time.monotonic(), self._not_tried(search)
        baseline, again = self._side_by_side(self._meter, self._finalists(search))
        best = self._best(baseline, again, search, notes)
        seconds = search.seconds + time.monotonic() - started
        return TuningOutcome(best, baseline, again, search.points, seconds, notes)

    def confirmed(self, found: TuningOutcome, search: Study, meter: Meter) -> TuningOutcome:
        """An outcome whose choice has been measured once more, beside the original and what `optimize` makes.

        What is no faster than these gives way to the best of them, and the notes say so.

        Args:
            found: The outcome.
            search: Where it comes from.
            meter: Measures in new processes, the original too.

        Raises:
            ConstraintError: None of them keeps the constraints.
        """
        if found.best.number == found.baseline.number:
            return found
        started, notes = time.monotonic(), list(found.notes)
        points = self._distinct([found.best, *self._made_by_optimize(search)])
        baseline, again = self._side_by_side(meter, points)
        best = self._best(baseline, again, search, notes)
        if best.number != found.best.number:
            own = next(point for point in again if point.number == found.best.number)
            notes.append(_gives_way(found.best, own, best))
        seconds = found.seconds + time.monotonic() - started
        return replace(found, best=best, baseline=baseline, confirmed=again, seconds=seconds, notes=notes)

    def _side_by_side(self, meter: Meter, points: Sequence[Point]) -> tuple[Point, list[Point]]:
        """The original in a default session, and these choices, the best first."""
        candidates = {str(point.number): self._candidate(point) for point in points}
        rounds = self._final_rounds(points)
        rows = meter.measure(candidates, rounds, enough=_halved(rounds) if len(points) > 2 else None)
        usual = {**self._space.usual, MODEL: ORIGINAL}
        baseline = replace(_point(Point(-1, usual), rows[0]), speedup=1.0)
        again = [_point(point, row) for point, row in zip(points, rows[1:], strict=True)]
        again.sort(key=lambda point: -point.speedup * (PLAINER if self._is_plain(point) else 1.0))
        return baseline, again

    def _best(self, baseline: Point, again: Sequence[Point], search: Study, notes: list[str]) -> Point:
        """The first choice that is verified, keeps the constraints and is no slower than the original, else the original."""
        limits = search.constraints
        kept = [point for point in again if not limits.unmet(point)]
        best = self._first_verified([point for point in kept if point.speedup >= 1.0], search, notes)
        if best is None and not limits.unmet(baseline):
            best = baseline
            notes.append("nothing is faster than the original in a default session, which is the result")
        if best is None:
            best = self._first_verified(kept, search, notes)
        if best is None:
            raise ConstraintError("; ".join([_why(search, [baseline, *again]), *self._not_tried(search)]))
        return best

    def _first_verified(self, points: Sequence[Point], search: Study, notes: list[str]) -> Point | None:
        for point in points:
            variant = self._variants.of(self._space, point.choice)
            refusal = self._variants.refused(variant)
            if not refusal:
                return point
            search.refuse(point.content, refusal)
            if refusal not in notes:
                notes.append(refusal)
        return None

    def _finalists(self, search: Study) -> list[Point]:
        """The fastest choices and the fastest models in a default session."""
        best = search.best(len(search.points))
        return self._distinct([*best[:FINALISTS], *[point for point in best if self._is_plain(point)][:PLAIN]])

    def _made_by_optimize(self, search: Study) -> list[Point]:
        """What `optimize` makes, in a default session and in the recommended one, as far as it was tried and can be taken."""
        usual = self._space.usual
        tried = (search.known(choice) for choice in (usual, {**usual, **self._space.recommended}))
        return self._distinct([point for point in tried if point is not None and not point.failure])

    def _distinct(self, points: Sequence[Point]) -> list[Point]:
        """The first of those that are the same model in the same session."""
        return list({self._identity(point): point for point in reversed(points)}.values())[::-1]

    def _identity(self, point: Point) -> object:
        return point.content, str(self._space.settings(point.choice))

    def _is_plain(self, point: Point) -> bool:
        return point.choice == {**self._space.usual, MODEL: point.choice[MODEL]}

    def _candidate(self, point: Point) -> Candidate:
        return Candidate(self._variants.of(self._space, point.choice).path, self._space.settings(point.choice))

    def _final_rounds(self, points: Sequence[Point]) -> int:
        affordable = int(SHARE * self._budget / max(_round(points), 1e-9))
        return max(LEAST_ROUNDS, min(max(self._rounds, PRECISE), affordable))

    def _not_tried(self, search: Study) -> list[str]:
        tried = {point.choice[MODEL] for point in search.points}
        left = [str(name) for name in self._space.dimensions[MODEL] if name not in tried]
        if not left or search.sampler == "random":
            return []
        return [f"the budget was used up before these models were tried: {', '.join(left)}"]

    def _error(self, found: Mapping[str, Any]) -> float:
        return max((_apart(array, found[name]) for name, array in self._expected.items()), default=0.0)


def _apart(expected: Any, found: Any) -> float:
    if not isinstance(expected, np.ndarray) or not np.issubdtype(expected.dtype, np.floating):
        return 0.0
    return relative_l2(expected, found)


def _hopeless(fastest: float) -> Enough:
    """Ends a trial that is clearly slower than the fastest so far."""
    return lambda speedups: [
        name for name, found in speedups.items() if len(found) >= FEW and statistics.median(found) < HOPELESS * fastest
    ]


def _halved(rounds: int) -> Enough:
    """Leaves out the slower half of the candidates every few of these rounds, but never one of the last two."""
    every = max(LEAST_ROUNDS, rounds // 4)

    def enough(speedups: Mapping[str, Sequence[float]]) -> Collection[str]:
        done = max((len(found) for found in speedups.values()), default=0)
        if done % every or len(speedups) <= 2:
            return ()
        order = sorted(speedups, key=lambda name: -statistics.median(speedups[name]))
        return order[max(2, (len(order) + 1) // 2) :]

    return enough


def _round(points: Sequence[Point]) -> float:
    """The seconds of a round with the original and these points."""
    original = max((point.speedup * point.median_ms for point in points), default=0.0)
    return sum(turn_seconds(milliseconds / 1e3) for milliseconds in (original, *(p.median_ms for p in points)))


def _seconds(points: Sequence[Point], rounds: int) -> float:
    """The seconds to measure these points side by side."""
    return (rounds + 4) * _round(points) + sum(START + point.session_ms / 1e3 for point in points)


def _point(point: Point, row: SessionLatency) -> Point:
    return replace(
        point,
        speedup=row.speedup,
        median_ms=row.median_ms,
        p95_ms=row.p95_ms,
        session_ms=row.session_ms,
        peak_mb=row.peak_mb,
    )


def _gives_way(found: Point, own: Point, best: Point) -> str:
    """Why another choice is taken than the one that the search found."""
    instead = "the original" if best.number < 0 else f"another, which is {best.speedup:.2f} times as fast,"
    return (
        f"the choice of trial {found.number + 1} was {found.speedup:.2f} times as fast as the original among the best, and "
        f"{own.speedup:.2f} times when it was measured once more; {instead} is the result"
    )


def _why(search: Study, again: Sequence[Point]) -> str:
    """Why no choice can be taken."""
    points = [point for point in search.points if not point.failure]
    if any(not search.constraints.unmet(point) for point in points):
        missed = "; ".join(map(str, search.constraints.nearest(again)))
        return f"what kept the constraints in its trial did not when it was measured again: {missed}"
    missed = "; ".join(map(str, search.constraints.nearest([*points, *again])))
    return f"no choice of {len(points)} keeps the constraints; of the nearest, {missed}"
