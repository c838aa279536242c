"""Search loop for the fastest model under an error bound: choose by knapsack, run the whole model, adapt the limit.

Every scheme at every site is measured (`ortfuse.quantization.site_measurements`), the knapsack chooses, and the whole is run.
If the error is not the predicted one, the limit of the knapsack is moved. This ends when the bound holds on all inputs,
held-out ones included. The best choice is then run on fresh inputs, and has to keep the bound there too. If it does not,
schemes with observed ranges are given up first. The fastest choices are measured side by side with the float32 model
(`ortfuse.quantization.final_measurement`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ortfuse.errors import BoundError
from ortfuse.quantization.bisect_sites import offender
from ortfuse.quantization.error_prediction import WORTH, Predictions
from ortfuse.quantization.final_measurement import FINALISTS
from ortfuse.quantization.metrics import Metric, error_words
from ortfuse.quantization.model_trials import Tested, Trial
from ortfuse.quantization.outcome import Goal, Point
from ortfuse.quantization.scheme_families import family_of, is_like
from ortfuse.quantization.site_measurements import MeasuredSite

GUIDED = ("l2", "max")
"""Metrics in which the errors of sites are measured too."""

ATTEMPTS = 6
"""How many choices of the knapsack are run at most."""

LEAST_RUN = 3
"""How many choices are run at least until one keeps the bound, however short the time."""

CLOSE = 0.92
"""A choice with at least this share of the bound is not improved any more."""

SOLVED = 24
"""How often it chooses at most."""

EXCESS = 2.0
"""Errors that are this many times larger than predicted are looked into."""

FAR = 3.0
"""Errors that are this many times larger than the bound, predicted or measured, say that no scheme of the family keeps it
everywhere."""

PROOFS = 3
"""How often it searches again, if the bound does not hold on inputs that nothing was chosen by."""

UNFORESEEN = 1.25
"""Errors that are this many times larger on inputs that were held out come of ranges that were not observed there."""

FAR_IF_SHORT_OF_TIME = 1.5
"""The same where time is short."""

LIMITS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""The limits of the curve, as multiples of the bound."""

NEARLY = 0.9
"""One scheme everywhere is run, too, if it is predicted to be this many times as fast as the best choice: it shares more."""

NEARLY_AS_FAST = 2
"""How many such choices are run at most."""

FIRST_GUESS = 0.05
"""The first limit of the relative L2 error for metrics that it does not bound."""


@dataclass
class Search:
    """Search among the schemes of measured sites.

    Attributes:
        predictions: What is predicted of choices among them.
        trial: Runs choices.
        observes: Whether a scheme, given by name, has ranges of values that were observed.
        is_fitted: Whether a scheme is better on inputs that values were observed on, although it has no ranges.
        metric: The metric of the bound.
        bound: The largest error that is allowed.
        progress: Called with short messages.
        enough: Whether the time is up: what is best by then is the result.
        is_short_of_time: Whether there was no time to measure all sites: one scheme everywhere, which is surest, is run first.
        earlier: Choices that earlier searches ended with.
        labels: How people know sites, by name.
    """

    predictions: Predictions
    trial: Trial
    observes: Callable[[str], bool]
    is_fitted: Callable[[str], bool]
    metric: Metric
    bound: float
    progress: Callable[[str], None]
    enough: Callable[[], bool] = lambda: False
    is_short_of_time: bool = False
    earlier: Sequence[Mapping[str, str]] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list, init=False)
    notes: list[str] = field(default_factory=list, init=False)
    _blamed: set[str] = field(default_factory=set, init=False)
    _distrusted: int = field(default=0, init=False)
    _held: list[tuple[Mapping[str, str], bool]] = field(default_factory=list, init=False)
    _nearly: int = field(default=0, init=False)

    @property
    def _sites(self) -> Sequence[MeasuredSite]:
        return self.predictions.sites

    @property
    def _goal(self) -> Goal:
        return self.predictions.goal

    def demand_a_fit(self) -> None:
        """Check that at least one scheme at one site can fit under the bound.

        Raises:
            BoundError: None does.
        """
        if self.metric.name not in GUIDED:
            return
        least = min(
            (
                (max(scheme.effects, default=0.0), scheme.name, site.name)
                for site in self._sites
                for scheme in site.schemes
                if scheme.effects is not None
            ),
            default=None,
        )
        if least is not None and least[0] > self.bound:
            raise BoundError(
                f"no scheme keeps the error under {self.bound:.4g}: the smallest is {error_words(least[0], 4)}, that of "
                f"{least[1]} at '{self._label(least[2])}'; give a larger --max-error, or use the result of `ortfuse optimize`"
            )

    def run(self) -> list[Point]:
        """The best choices that keep the bound, also on fresh inputs, best first."""
        for choice in self.earlier:
            self._test(choice, "the choice of an earlier search")
        if self.is_short_of_time:
            self._uniform()
        for _ in range(PROOFS):
            self._knapsack()
            if self._is_spoilt_by_ranges():
                self._knapsack(sure=True)
            self._uniform()
            kept = self._kept()
            if not kept or self._holds(kept[0]) or self._is_over():
                break
        return list(itertools.islice((point for point in self._kept() if self._holds(point)), FINALISTS))

    def _label(self, site: str) -> str:
        return self.labels.get(site, site)

    def _is_over(self) -> bool:
        """Whether the time is up, and something keeps the bound or a few choices were run at least."""
        return self.enough() and (len(self.points) >= LEAST_RUN or bool(self._kept()))

    def _kept(self) -> list[Point]:
        """The choices that keep the bound as far as is known, best first."""
        return sorted((point for point in self.points if point.choice and self._keeps(point)), key=self._cost)

    def _holds(self, point: Point) -> bool:
        """Whether the bound holds on fresh inputs too. If it does not, schemes fitted to what was observed are trusted less."""
        known = next((held for choice, held in self._held if choice == point.choice), None)
        if known is not None:
            return known
        self.progress(f"running the choice on fresh inputs; {self._best()}")
        proved = self.trial.proved(point.choice)
        if proved is not None:
            later = replace(
                point,
                error=max(proved.error, point.error or 0.0),
                expected_error=max(proved.likely, point.expected_error or 0.0),
            )
            self.points[self.points.index(point)] = later
            if not self._keeps(later):
                self._distrust(point.choice, point.expected_error or 0.0, proved.likely, "fresh inputs")
            point = later
        self._held.append((point.choice, self._keeps(point)))
        return self._keeps(point)

    def _distrust(self, choice: Mapping[str, str], seen: float, worst: float, where: str) -> bool:
        """Predict larger errors of the schemes in a choice that are fitted to what was observed, if it was seen to do worse."""
        blamed = {scheme for scheme in choice.values() if self.observes(scheme) or self.is_fitted(scheme)}
        if not blamed or not seen < worst < math.inf:
            return False
        factor = worst / seen if seen else math.inf
        share = worst**2 / sum(scheme in blamed for scheme in choice.values())

        self.predictions.distrust(blamed, factor, share)
        self.notes.append(
            f"schemes fitted to what was observed do more harm on {where}: an error of {worst:.2g} instead of {seen:.2g}"
        )
        return True

    def _keeps(self, point: Point) -> bool:
        return point.expected_error is not None and point.expected_error <= self.bound

    def _cost(self, point: Point) -> float:
        return -point.predicted_speedup if self._goal == "latency" else float(point.size or 0)

    def _is_spoilt_by_ranges(self) -> bool:
        """Whether a choice made errors under the bound, but may make larger ones, since it has schemes with observed ranges.

        Few of these are enough for that, and without them the others may go further.
        """
        return any(
            point.error is not None
            and point.error <= self.bound
            and not self._keeps(point)
            and any(map(self.observes, point.choice.values()))
            for point in self.points
        )

    def _knapsack(self, *, sure: bool = False) -> None:
        """Move the limit until the error of the whole is as near to the bound as it gets from below.

        Args:
            sure: Whether schemes with observed ranges are left out.
        """
        without = self.observes if sure else None
        limit, low, high, ran = self._first_limit(), 0.0, math.inf, 0
        widest = self.predictions.choose(math.inf, without)
        if self._goal == "latency" and self.predictions.point("", widest).predicted_speedup < WORTH:
            return
        for _ in range(SOLVED):
            choice = self.predictions.choose(limit, without)
            known = self._known(choice)
            if known is None:
                if ran == ATTEMPTS or self._is_over():
                    break
                ran += 1
                known = self._test(choice, f"knapsack under {limit:.3g}")
                if known.error is not None and not self._keeps(known) and self._learn(known):
                    continue  # the same limit again, with what was learned
            if self._keeps(known):
                low = max(low, limit)
                if choice == self.predictions.choose(math.inf, without) or self._is_close(known):
                    break
            else:
                high = min(high, limit)
            limit = self._next(limit, known, low, high)
            if high - low < 0.05 * high:
                break

    def _is_close(self, point: Point) -> bool:
        return bool(point.choice) and point.expected_error is not None and point.expected_error >= CLOSE * self.bound

    def _first_limit(self) -> float:
        if self.metric.name in GUIDED:
            return self.bound
        return math.sqrt(2 * self.bound) if self.metric.name == "cosine" else FIRST_GUESS

    def _next(self, limit: float, point: Point, low: float, high: float) -> float:
        """Another limit between those that are known to be too small and too large."""
        likely = point.expected_error if point.expected_error is not None else math.inf
        ratio = self.bound / likely if likely > 0 else math.inf
        if self.metric.name == "cosine":
            ratio = math.sqrt(ratio)
        wanted = limit * min(4.0, max(0.1, 0.95 * ratio))
        if low == 0.0 and wanted >= high:
            return high / 2
        if math.isinf(high):
            return max(wanted, 1.2 * low)
        return wanted if low < wanted < high else math.sqrt(max(low, 1e-3 * high) * high)

    def _known(self, choice: Mapping[str, str]) -> Point | None:
        if not choice:
            return Point("float32", {}, 0.0, 0.0, 1.0, 0.0, 0.0)
        return next(
            (point for point in self.points if point.choice == choice and point.expected_error is not None), None
        )

    def _test(self, choice: Mapping[str, str], label: str) -> Point:
        point = self.predictions.point(label, choice)
        self.progress(f"{label}: running {len(choice)} lowered sites; {self._best()}")
        tested = self.trial.test(choice)
        self._tested = tested
        point = replace(point, error=_worst(tested), expected_error=tested.likely, size=tested.size)
        if tested.problem:
            self.notes.append(f"a choice could not be run: {tested.problem}")
        self.points.append(point)
        return point

    def _best(self) -> str:
        """The best choice so far, in words."""
        best = next(iter(self._kept()), None)
        if best is None:
            return "nothing under the bound yet"
        return f"best so far: {best.predicted_speedup:.2f}x predicted, error {best.error:.2g}"

    def _learn(self, point: Point) -> bool:
        """Find the site to blame for an error that is much larger than predicted, and correct what is predicted of it."""
        held_out, foreseen = self._tested.held_out or 0.0, max(self._tested.seen, point.predicted_error or 0.0)
        if self.metric.name in GUIDED and held_out > UNFORESEEN * foreseen and self._distrusted < PROOFS:
            self._distrusted += 1
            if self._distrust(point.choice, foreseen, held_out, "inputs that were held out"):
                return True
        if self.predictions.excess(point.choice, self._tested.effects) < EXCESS or len(self._blamed) >= 3:
            return False
        self.progress("looking for the site whose error is larger than predicted")
        blamed = offender(point.choice, lambda choice: self.predictions.excess(choice, self.trial.effects(choice)))
        if blamed is None or blamed[0] in self._blamed:
            return False
        name, factor = blamed
        self._blamed.add(name)
        self.predictions.blame(name, point.choice[name], factor)
        self.notes.append(
            f"{point.choice[name]} at '{self._label(name)}' makes {factor:.1f} times the error it makes alone "
            "if other sites are quantised too"
        )
        return True

    def _uniform(self) -> None:
        """Run what users of other tools would take: one scheme everywhere, where it is predicted to be better than the best.

        Sites without this scheme are as in the best choice so far or, if that is too much, in float32. If one of a
        family is far above the bound, or predicted to be, the others are not run.
        """
        far: set[str] = set()
        for scheme, choice in self._everywhere():
            if self._is_far(self.predictions.alone(choice)):
                far.add(family_of(scheme))
            kept = self._kept()
            filled = {**kept[0].choice, **choice} if kept else choice
            for one in (filled, choice):
                if family_of(scheme) in far or not self._is_worth_a_run(one):
                    continue
                tested = self._test(one, f"{scheme} everywhere" if one == choice else f"{scheme} and others")
                if one == choice and self._is_far(tested.error or 0.0):
                    far.add(family_of(scheme))

    def _everywhere(self) -> list[tuple[str, Mapping[str, str]]]:
        """Each scheme, with the choice that has it at all sites where it is legal.

        If time is short, those without observed ranges come first, which may clip, and of each the fastest.
        """
        found: list[tuple[str, Mapping[str, str]]] = []
        for scheme in dict.fromkeys(scheme.name for site in self._sites for scheme in site.schemes):
            like = {
                site.name: sorted(one.name for one in site.schemes if is_like(one.name, scheme)) for site in self._sites
            }
            found.append((scheme, {name: names[0] for name, names in like.items() if names}))
        if self.is_short_of_time:
            speedups = {scheme: self.predictions.point("", choice).predicted_speedup for scheme, choice in found}
            found.sort(key=lambda one: (self.observes(one[0]), -speedups[one[0]]))
        return found

    def _is_worth_a_run(self, choice: Mapping[str, str]) -> bool:
        """Whether a choice that was not run is predicted to be faster than all that keep the bound, and there is time.

        A few may also be somewhat slower, if they are predicted to keep the bound: the fastest are measured as wholes.
        """
        if self._goal != "latency" or self._is_over() or self._known(choice) is not None:
            return False
        best = max((point.predicted_speedup for point in self._kept()), default=WORTH)
        speedup = self.predictions.point("", choice).predicted_speedup
        if speedup > best:
            return True
        fast = speedup >= max(WORTH, NEARLY * best)
        nearly = fast and self.predictions.alone(choice) <= self.bound and self._nearly < NEARLY_AS_FAST
        self._nearly += nearly
        return nearly

    def _is_far(self, error: float) -> bool:
        return (
            self.metric.name in GUIDED and error > (FAR_IF_SHORT_OF_TIME if self.is_short_of_time else FAR) * self.bound
        )

    def curve(self, run: bool) -> list[Point]:
        """The choices under several limits, with those that were run; `run` says whether to run them all."""
        for factor in LIMITS:
            limit = factor * self._first_limit()
            choice = self.predictions.choose(limit)
            if self._known(choice) is None and all(point.choice != choice for point in self.points):
                label = f"knapsack under {limit:.3g}"
                if run:
                    self._test(choice, label)
                else:
                    self.points.append(self.predictions.point(label, choice))
        return sorted(self.points, key=lambda point: (round(point.predicted_speedup, 6), point.predicted_error or 0.0))


def _worst(tested: Tested) -> float:
    return max(tested.seen, tested.held_out if tested.held_out is not None else 0.0)
