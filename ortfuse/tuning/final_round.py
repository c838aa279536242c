"""Measure the best choices side by side and select the winner: the end of a search.

The best are measured again with the pass lists in a default session among them, and the slower half is left out again and
again. The best of many measurements has been lucky: it is measured once more in new processes, beside the original and
the result of `optimize`. These times count. There are as many rounds as there is time for, and where there is little,
fewer choices.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ortfuse.errors import ConstraintError
from ortfuse.runtime.bench import Candidate, SessionLatency
from ortfuse.runtime.bench.session_timing import Enough, Meter
from ortfuse.tuning.estimate_step_durations import Pace
from ortfuse.tuning.model_variants import Variants
from ortfuse.tuning.outcome import Point, TuningOutcome
from ortfuse.tuning.search_space import MODEL, ORIGINAL, QUANTIZED, Space
from ortfuse.tuning.study import Study

FINALISTS = 4
"""How many of the fastest choices are measured again, side by side."""

PLAIN = 2
"""How many of the fastest models in a default session are measured beside them."""

PLAINER = 1.01
"""How much faster another choice has to be than a pass list in a default session, so that it is taken instead."""

LEAST_ROUNDS = 6
"""The fewest rounds side by side."""

PRECISE = 90
"""The rounds side by side where a model is fast: what differs by a few percent takes as many to be told apart."""

SHARE = 0.15
"""The share of the budget that measuring side by side may take, and as much once more, apart from the fewest rounds."""

TOLD = 0.1
"""The share of the budget that a search for lower precision has to need at least, so that this is told where there was none."""

FEWEST_ROUNDS = 3
"""The fewest where there is no time for these."""


@dataclass(frozen=True)
class Finals:
    """Measure the best choices of a search again.

    Attributes:
        variants: Makes models.
        space: The space.
        rounds: How often the best are run side by side at most, unless that takes a small part of the budget.
        pace: How long things take.
    """

    variants: Variants
    space: Space
    rounds: int
    pace: Pace

    def reserve(self, search: Study) -> float:
        """The seconds that are needed after the last trial."""
        best = search.best(1)
        verified = not best or self.variants.is_verified(self.variants.of(self.space, best[0].choice))
        finalists = self._finalists(search)
        side_by_side = self._seconds(finalists, self._wanted(finalists)) if self._compete(finalists, search) else 0.0
        again = self._once_more(finalists, search)
        once_more = self._seconds(again, self._wanted(again), 1) + self.variants.writing
        return side_by_side + once_more + (0.0 if verified else self.pace.verifying)

    def outcome(self, search: Study, meter: Meter) -> TuningOutcome:
        """The best of a search, measured again side by side.

        If one choice alone competes with the result of `optimize`, or there is no time for more, `confirmed` decides.

        Args:
            search: Where it comes from.
            meter: Measures, in processes of which that of the original is there.

        Raises:
            ConstraintError: No choice keeps the constraints.
        """
        notes, finalists = self._not_tried(search), self._finalists(search)
        for point in finalists:
            self._candidate(point)  # made again after an interruption, before which its time was counted
        started, left = self.pace.clock(), self.pace.budget - search.seconds
        again = self._once_more(finalists, search)
        least, most = (self._seconds(again, rounds, 1) for rounds in (LEAST_ROUNDS, self._wanted(again)))
        left -= least + self.variants.writing
        while len(finalists) > 1 and self._seconds(finalists, LEAST_ROUNDS) > left:
            finalists.pop()
        if finalists and not self._compete(finalists, search):
            return TuningOutcome(finalists[0], self._usual_original(), (), search.points, search.seconds, notes)
        fewest, wanted = LEAST_ROUNDS, self._wanted(finalists)
        more = self._seconds(finalists, wanted) - self._seconds(finalists, fewest)
        share = (left - self._seconds(finalists, fewest)) / max(more + most - least, 1e-9)
        rounds = fewest + int(min(1.0, max(0.0, share)) * (wanted - fewest))
        baseline, found = self._side_by_side(meter, finalists, rounds)
        best = self._best(baseline, found, search, notes)
        return TuningOutcome(best, baseline, found, search.points, search.seconds + self.pace.clock() - started, notes)

    def confirmed(self, found: TuningOutcome, search: Study, meter: Meter) -> TuningOutcome:
        """An outcome whose choice has been measured once more, beside the original and what `optimize` makes.

        A choice that is no faster than these gives way to the best of them, and the notes say so.

        Args:
            found: The outcome.
            search: Where it comes from.
            meter: Measures in new processes, the original too.

        Raises:
            ConstraintError: None of them keeps the constraints.
        """
        if found.best.number == found.baseline.number:
            return found
        notes, points = list(found.notes), self._once_more([found.best], search)
        for point in points:
            self._candidate(point)
        started = self.pace.clock()
        left = self.pace.budget - found.seconds - self.variants.writing - self._seconds(points, 0, 1)
        rounds = min(self._wanted(points), int(left / max(self.pace.round(points), 1e-9)))
        baseline, again = self._side_by_side(meter, points, max(FEWEST_ROUNDS, rounds), 1)
        best = self._best(baseline, again, search, notes)
        if best.number != found.best.number:
            own = next(point for point in again if point.number == found.best.number)
            notes.append(_gives_way(found.best, own, best, "among the best" if found.finalists else "in its trial"))
        seconds = found.seconds + self.pace.clock() - started
        return replace(found, best=best, baseline=baseline, confirmed=again, seconds=seconds, notes=notes)

    def _side_by_side(
        self, meter: Meter, points: Sequence[Point], rounds: int, others: int = 0
    ) -> tuple[Point, list[Point]]:
        """The original in a default session, and these choices, the best first."""
        candidates = {str(point.number): self._candidate(point) for point in points}
        watch = self.pace.watch(
            _halved(rounds) if len(points) > 2 else None, FEWEST_ROUNDS, self._seconds(points, rounds, others)
        )
        rows = meter.measure(candidates, rounds, enough=watch)
        baseline = replace(row_as_point(self._usual_original(), rows[0]), speedup=1.0)
        again = [row_as_point(point, row) for point, row in zip(points, rows[1:], strict=True)]
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
            why = "; ".join([_why(search, [baseline, *again]), *self._not_tried(search)])
            raise ConstraintError(why, search.points)
        return best

    def _first_verified(self, points: Sequence[Point], search: Study, notes: list[str]) -> Point | None:
        for point in points:
            refusal = self.variants.refused(self.variants.of(self.space, point.choice))
            if not refusal:
                return point
            search.refuse(point.content, refusal)
            if refusal not in notes:
                notes.append(refusal)
        return None

    def _finalists(self, search: Study) -> list[Point]:
        """The fastest choices and the fastest models in a default session, those first that are not left out for want of time."""
        best = [point for point in search.best(len(search.points)) if self._is_changed(point)]
        plain = [point for point in best if self._is_plain(point)][:PLAIN]
        return self._distinct([*best[:1], *plain[:1], *best[1:2], *plain[1:], *best[2:FINALISTS]])

    def _once_more(self, finalists: Sequence[Point], search: Study) -> list[Point]:
        """The choices measured once more: the best, and the result of `optimize`."""
        return self._distinct([*finalists[:1], *self._made_by_optimize(search)])

    def _compete(self, finalists: Sequence[Point], search: Study) -> bool:
        """Whether there are choices to pick from before one is measured once more beside what `optimize` makes."""
        return len(self._once_more(finalists, search)) < len(
            self._distinct([*finalists, *self._made_by_optimize(search)])
        )

    def _made_by_optimize(self, search: Study) -> list[Point]:
        """The result of `optimize`, in a default session and in the recommended one, as far as it was tried and can be taken."""
        usual = self.space.usual
        tried = (search.known(choice) for choice in (usual, {**usual, **self.space.recommended}))
        return self._distinct([point for point in tried if point is not None and not point.failure])

    def _distinct(self, points: Sequence[Point]) -> list[Point]:
        """The first of those that are the same model in the same session."""
        return list({self._identity(point): point for point in reversed(points)}.values())[::-1]

    def _identity(self, point: Point) -> object:
        return point.content, str(self.space.settings(point.choice))

    def _is_plain(self, point: Point) -> bool:
        return point.choice == {**self.space.usual, MODEL: point.choice[MODEL]}

    def _is_changed(self, point: Point) -> bool:
        """Whether a choice is another than the original in a default session, which is measured beside all of them."""
        return point.choice[MODEL] != ORIGINAL or bool(self.space.settings(point.choice))

    def _usual_original(self) -> Point:
        return Point(-1, {**self.space.usual, MODEL: ORIGINAL})

    def _candidate(self, point: Point) -> Candidate:
        return Candidate(self.variants.of(self.space, point.choice).path, self.space.settings(point.choice))

    def _wanted(self, points: Sequence[Point]) -> int:
        """The rounds that take their share of the budget, but no more than tell a few percent apart."""
        affordable = int(SHARE * self.pace.budget / max(self.pace.round(points), 1e-9))
        return max(LEAST_ROUNDS, min(max(self.rounds, PRECISE), affordable))

    def _seconds(self, points: Sequence[Point], rounds: int, others: int = 0) -> float:
        """The seconds to measure these points side by side, where so many other sessions have to be opened."""
        return self.pace.opening(points, others) + rounds * self.pace.round(points)

    def _not_tried(self, search: Study) -> list[str]:
        tried = {point.choice[MODEL] for point in search.points}
        left = [str(name) for name in self.space.dimensions[MODEL] if name not in tried]
        if not left or search.sampler == "random":
            return []
        least = self.variants.least_search
        why = f"; the search for lower precision takes {least:.0f} s at least" * (
            QUANTIZED in left and least > TOLD * self.pace.budget
        )
        return [f"the budget was used up before these models were tried: {', '.join(left)}{why}"]


def row_as_point(point: Point, row: SessionLatency) -> Point:
    """A point with the times of a row."""
    return replace(
        point,
        speedup=row.speedup,
        speedup_bounds=row.speedup_bounds,
        median_ms=row.median_ms,
        p95_ms=row.p95_ms,
        session_ms=row.session_ms,
        peak_mb=row.peak_mb,
    )


def _halved(rounds: int) -> Enough:
    """Leave out the slower half of the candidates every few of these rounds, but never one of the last two."""
    every = max(LEAST_ROUNDS, rounds // 4)

    def enough(speedups: Mapping[str, Sequence[float]]) -> Collection[str]:
        done = max((len(found) for found in speedups.values()), default=0)
        if done % every or len(speedups) <= 2:
            return ()
        order = sorted(speedups, key=lambda name: -statistics.median(speedups[name]))
        return order[max(2, (len(order) + 1) // 2) :]

    return enough


def _gives_way(found: Point, own: Point, best: Point, when: str) -> str:
    """Why another choice is taken than the one that the search found."""
    instead = "the original" if best.number < 0 else f"another, which is {best.speedup:.2f} times as fast,"
    if best.number >= 0 and best.speedup < own.speedup <= PLAINER * best.speedup:
        instead = f"what needs no settings of the session and is {best.speedup:.2f} times as fast, hardly slower,"
    return (
        f"the choice of trial {found.number + 1} was {found.speedup:.2f} times as fast as the original {when}, and "
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
