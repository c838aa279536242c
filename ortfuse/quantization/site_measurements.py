"""Every rung at every site measured: the time, the error that it makes there, and what that does to the outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import OrtfuseError
from ortfuse.quantization.knapsack import Option
from ortfuse.quantization.measurement_store import Store
from ortfuse.quantization.metrics import norm
from ortfuse.quantization.outcome import Goal, Tried
from ortfuse.quantization.output_effects import Array, Probe, Spread, local_errors, spread_of
from ortfuse.quantization.phases import Phases
from ortfuse.quantization.scheme_application import Ladder
from ortfuse.quantization.site_kind_times import KindTimes, kind_of, shapes_of
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import Session
from ortfuse.runtime.site_model import Part

MOST = 5
"""At most so many rungs of a site are followed to the outputs."""

CANDIDATES = 8
"""At most so many rungs of a site are measured again, before the choice among them."""

SAME = 1.03
"""Times and sizes that differ by less than this factor are taken to be the same."""

UNSURE = 1.3
"""Times that were measured once, among many, are off by up to this factor."""

CLEARLY = 3.0
"""A rung whose errors at sites of other kinds are this many times smaller than another's is taken to be more exact everywhere."""

NO_ERROR = 1e-12
"""Smaller errors of a site are taken to be alike."""

NO_GAIN = "no gain in {}"

SURPASSED = "another scheme is no slower and no less exact"

FASTER = 0.98
"""A rung is not considered if the site takes more than this share of its time in float32."""


@dataclass(frozen=True)
class Rung:
    """One rung at one site, measured; see `ortfuse.quantization.outcome.Tried`.

    Attributes:
        effects: The error of each output, for one set of inputs after the other; `None` if it was not measured.
    """

    name: str
    seconds: float
    size: int
    local: float | None = None
    effects: tuple[float, ...] | None = None
    dropped: str = ""


@dataclass(frozen=True)
class MeasuredSite:
    """A site with all that was measured there.

    Attributes:
        name: The name of the site.
        kind: What it has in common with sites that take the same time.
        shapes: The shapes of what it takes, as text.
        seconds: Its time in float32.
        size: The bytes of its weights in float32.
        rungs: Its rungs.
        spread: The values that it takes.
        like: The site of the same kind that this is taken from, where it was not measured itself.
    """

    name: str
    kind: str
    shapes: str
    seconds: float
    size: int
    rungs: tuple[Rung, ...] = ()
    spread: Spread | None = None
    like: str = ""

    def options(self, goal: Goal, outputs: int) -> list[Option]:
        """What the knapsack chooses from: float32, and the rungs whose effect was measured.

        Args:
            goal: What is to be small.
            outputs: The number of outputs whose errors were measured; of each the worst over the sets of inputs counts.
        """
        found = [Option("", 0.0, (0.0,) * outputs)]
        for rung in self.rungs:
            if rung.effects is not None:
                won = rung.seconds - self.seconds
                cost = won if goal == "latency" else float(rung.size - self.size)
                worst = np.reshape(rung.effects, (-1, outputs)).max(axis=0) if outputs else ()
                found.append(Option(rung.name, cost, tuple(float(effect) ** 2 for effect in worst), won))
        return found

    def tried(self) -> tuple[Tried, ...]:
        """The rungs for the report, fastest first."""
        rungs = sorted(self.rungs, key=lambda rung: rung.seconds)
        return tuple(
            Tried(
                rung.name, rung.seconds, self.seconds - rung.seconds, rung.size, rung.local,
                None if rung.effects is None else max(rung.effects, default=0.0), rung.dropped,
            )
            for rung in rungs
        )  # fmt: skip


@dataclass
class Measuring:
    """Measures the sites of a model.

    Attributes:
        ladder: The rungs.
        calibration: The ranges of values.
        probe: The float32 model with a way in for errors.
        times: The times of kinds of sites of any model.
        goal: What is to be small.
        store: Where measurements of this model are kept.
        progress: Called with the number of sites that are done.
        enough: Whether the time is up, from the number of sites that are done: those that are left are not measured.
        costly: Whether runs of the whole take so long that the effect of one rung at each site tells those of the others.
        phases: Counts what times and effects take.
        left: How many these are.
        wins_in_company: Whether a rung, given by name, wins time where all sites are on such rungs, whatever it does alone.
    """

    ladder: Ladder
    calibration: Any
    probe: Probe
    times: KindTimes
    goal: Goal
    store: Store
    progress: Callable[[int], None]
    wins_in_company: Callable[[str], bool] = lambda rung: False
    enough: Callable[[int], bool] = lambda done: False
    costly: bool = False
    phases: Phases = field(default_factory=Phases)
    left: int = field(default=0, init=False)
    _useless: dict[str, dict[str, str]] = field(default_factory=dict, init=False)
    _exact: list[dict[str, float]] = field(default_factory=list, init=False)

    def measured(self, parts: Sequence[Part], rungs: Mapping[str, Sequence[str]]) -> list[MeasuredSite]:
        """The sites, each with the named rungs measured; but for those that cannot be run alone, or that time is short for.

        They are measured in the order that they are given in.
        """
        found: dict[str, MeasuredSite] = {}
        for part in parts:
            key = ("site", self.goal, part.name, *sorted(rungs[part.name]))
            known = self.store.get_record(MeasuredSite, *key)
            if known is not None and {rung.name for rung in known.rungs} <= {*rungs[part.name]}:
                found[part.name] = known
        waiting = [part for part in parts if part.name not in found]
        self.progress(len(found))
        for done, (part, inputs) in enumerate(self.probe.captured(waiting), len(found) + 1):
            site = self._site(part, inputs, sorted(rungs[part.name]))
            if site is not None:
                found[part.name] = site
                self.store.put(asdict(site), "site", self.goal, part.name, *sorted(rungs[part.name]))
            self.progress(done)
            if self.enough(done):
                self.left = len(parts) - done
                break
        return list(found.values())

    def _site(self, part: Part, inputs: list[Inputs], names: Sequence[str]) -> MeasuredSite | None:
        try:
            session = Session(part.model)
            plain = [session.run(arrays) for arrays in inputs]
        except OrtfuseError:
            return None
        kind = kind_of(part.model, inputs[0])
        with self.phases.phase("times of kinds of sites"):
            models = self._time(kind, part, names, inputs[0])
        table = self.times.known(kind)
        if not table[""]:
            return None
        rungs = tuple(Rung(name, 0.0, 0) for name in names if table[name])
        spread = spread_of(inputs[0].values())
        site = self._as_timed(MeasuredSite(part.name, kind, shapes_of(inputs[0]), 0.0, 0, rungs, spread))
        site, errors = self._with_errors(site, part, models, plain, inputs)
        candidates = _worthwhile([rung for rung in site.rungs if not rung.dropped], self.goal, CANDIDATES, 1 / UNSURE)
        if candidates:
            with self.phases.phase("times of candidates"):
                again = {name: models[name] for name in candidates}
                self.times.make_sure(kind, {"": part.model, **again}, inputs[0])
        return self._with_effects(self._as_timed(site), candidates, errors)

    def _lowered(self, part: Part, rung: str) -> ir.Model | None:
        try:
            return self.ladder.lowered(part.model, {part.name: rung}, self.calibration)
        except OrtfuseError:
            return None

    def _time(self, kind: str, part: Part, names: Sequence[str], inputs: Inputs) -> dict[str, ir.Model]:
        """Measure float32 and each rung, if sites of the kind were not; the models that this took."""
        missing = [name for name in ("", *names) if name not in self.times.known(kind)]
        if not missing:
            return {}
        models = {name: model for name in names if (model := self._lowered(part, name)) is not None}
        self.times.add(kind, {"": part.model, **models}, ("", *names), inputs)
        return models

    def _as_timed(self, site: MeasuredSite) -> MeasuredSite:
        """A site with the times and sizes that are known of its kind."""
        table = self.times.known(site.kind)
        numbers = {name: (table[name][0], int(table[name][1])) for name in ("", *(rung.name for rung in site.rungs))}
        rungs = (replace(rung, seconds=numbers[rung.name][0], size=numbers[rung.name][1]) for rung in site.rungs)
        return replace(site, seconds=numbers[""][0], size=numbers[""][1], rungs=tuple(rungs))

    def _with_errors(
        self,
        site: MeasuredSite,
        part: Part,
        models: dict[str, ir.Model],
        plain: Sequence[Mapping[str, Any]],
        inputs: Sequence[Inputs],
    ) -> tuple[MeasuredSite, dict[str, Sequence[Mapping[str, Array]]]]:
        """The site with what its rungs do there, where that can matter, and these errors; models that are made are added."""
        found: list[Rung] = []
        errors = {}
        for rung in site.rungs:
            if why := self._superfluous(rung, site):
                found.append(replace(rung, dropped=why))
                continue
            model = models.get(rung.name) or self._lowered(part, rung.name)
            local = None if model is None else local_errors(plain, model, inputs)
            if model is None or local is None:
                found.append(replace(rung, dropped="makes numbers that are not finite, or does not run"))
                continue
            models[rung.name], errors[rung.name] = model, local.errors
            found.append(replace(rung, local=local.error))
        return replace(site, rungs=tuple(found)), errors

    def _with_effects(
        self, site: MeasuredSite, candidates: Sequence[str], errors: Mapping[str, Sequence[Mapping[str, Array]]]
    ) -> MeasuredSite:
        """The site with what those of the candidates do to the outputs that no other surpasses."""
        useful = [rung for rung in site.rungs if rung.name in candidates and self._gains(rung, site)]
        kept = _worthwhile(useful, self.goal)
        with self.phases.phase("errors followed to the outputs"):
            effects = self._effects({name: errors[name] for name in kept})
        found = []
        for rung in site.rungs:
            if rung.name in kept:
                rung = replace(rung, effects=effects[rung.name])
            elif not rung.dropped:
                rung = replace(rung, dropped=SURPASSED if self._gains(rung, site) else NO_GAIN.format(self.goal))
            found.append(rung)
        if site.kind not in self._useless:
            reasons = (SURPASSED, NO_GAIN.format(self.goal))
            self._useless[site.kind] = {rung.name: rung.dropped for rung in found if rung.dropped in reasons}
            self._exact.append({rung.name: rung.local for rung in found if rung.local is not None})
        return replace(site, rungs=tuple(found))

    def _effects(self, errors: Mapping[str, Sequence[Mapping[str, Array]]]) -> dict[str, tuple[float, ...]]:
        """What the errors of each rung do to the outputs; where runs take long, in proportion to what the largest do."""
        norms = {name: np.array([_norm(arrays) for arrays in each]) for name, each in errors.items()}
        guide = max(norms, key=lambda name: float(norms[name].max(initial=0.0)), default="")
        if not self.costly or not guide or not norms[guide].all():
            return {name: self.probe.effect(each) for name, each in errors.items()}
        largest = np.reshape(self.probe.effect(errors[guide]), (len(norms[guide]), -1))
        ratios = {name: (each / norms[guide])[:, np.newaxis] for name, each in norms.items()}
        return {name: tuple((largest * ratio).ravel().tolist()) for name, ratio in ratios.items()}

    def _superfluous(self, rung: Rung, site: MeasuredSite) -> str:
        """Why one of the rungs of a site is not looked into; empty if it is."""
        if site.kind in self._useless:
            return self._useless[site.kind].get(rung.name, "")
        if not self._gains(rung, site, UNSURE):
            return NO_GAIN.format(self.goal)
        rivals = (other for other in site.rungs if _costs_no_more(other, rung, self.goal, 1 / UNSURE))
        return SURPASSED if any(self._is_clearly_more_exact(other, rung) for other in rivals) else ""

    def _gains(self, rung: Rung, site: MeasuredSite, unsure: float = 1.0) -> bool:
        """Whether a rung has less of what is to be small than float32, within what times are known to."""
        if self.goal != "latency":
            return rung.size < site.size
        return rung.seconds <= unsure * FASTER * site.seconds or self.wins_in_company(rung.name)

    def _is_clearly_more_exact(self, one: Rung, other: Rung) -> bool:
        """Whether the errors of one rung were far smaller than those of another wherever both were measured."""
        known = [
            (exact[one.name], exact[other.name]) for exact in self._exact if {one.name, other.name} <= exact.keys()
        ]
        return bool(known) and all(CLEARLY * first <= second for first, second in known)


def _norm(arrays: Mapping[str, Array]) -> float:
    return math.hypot(*map(norm, arrays.values()))


def _worthwhile(rungs: Sequence[Rung], goal: Goal, most: int = MOST, within: float = SAME) -> list[str]:
    """The rungs that no other surpasses as far as times are known, and of these as many that are missed most."""
    kept: list[Rung] = []
    for rung in sorted(rungs, key=lambda one: (one.seconds, one.local or 0.0)):
        if not any(_surpasses(other, rung, goal, within) for other in kept):
            kept = [other for other in kept if not _surpasses(rung, other, goal, within)] + [rung]
    while len(kept) > most:
        kept.pop(min(range(1, len(kept) - 1), key=lambda place: _missed(*kept[place - 1 : place + 2])))
    return [rung.name for rung in kept]


def _missed(faster: Rung, rung: Rung, slower: Rung) -> float:
    """What is lost without a rung between two others: the time to the slower one, wherever the faster one errs too much."""
    errors = [math.log(max(one.local or 0.0, NO_ERROR)) for one in (faster, rung)]
    return (slower.seconds - rung.seconds) * max(errors[0] - errors[1], 0.0)


def _surpasses(one: Rung, other: Rung, goal: Goal, within: float) -> bool:
    """Whether a rung is at least as good as another in every way that counts, within what times are known to."""
    return (one.local or 0.0) <= (other.local or 0.0) and _costs_no_more(one, other, goal, within)


def _costs_no_more(one: Rung, other: Rung, goal: Goal, within: float) -> bool:
    """Whether a rung takes at most so many times as long as another and, where that counts, is no larger.

    Times that are the same were measured once for both.
    """
    if goal != "latency" and one.size > SAME * other.size:
        return False
    return one.seconds == other.seconds or one.seconds <= within * other.seconds
