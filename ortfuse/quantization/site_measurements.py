"""Measure every scheme at every site: time, local error, and effect on the outputs."""

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
from ortfuse.quantization.phase_times import Phases
from ortfuse.quantization.scheme_set_protocol import SchemeSet
from ortfuse.quantization.site_kind_times import KindTimes, kind_of, shapes_of
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import Session
from ortfuse.runtime.single_site_model import Part

MOST = 5
"""At most so many schemes of a site are followed to the outputs."""

CANDIDATES = 8
"""At most so many schemes of a site are measured again, before the choice among them."""

SAME = 1.03
"""Times and sizes that differ by less than this factor are taken to be the same."""

UNSURE = 1.3
"""Times that were measured once, among many, are off by up to this factor."""

CLEARLY = 3.0
"""A scheme is taken to be more exact everywhere if its errors at other kinds of sites are this many times smaller."""

NO_ERROR = 1e-12
"""Smaller errors of a site are taken to be alike."""

NO_GAIN = "no gain in {}"

SURPASSED = "another scheme is no slower and no less exact"

FASTER = 0.98
"""A scheme is not considered if the site takes more than this share of its time in float32."""


@dataclass(frozen=True)
class MeasuredScheme:
    """One scheme at one site, measured; see `ortfuse.quantization.outcome.Tried`.

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
        schemes: Its schemes.
        spread: The values that it takes.
        like: The site of the same kind that this is taken from, where it was not measured itself.
    """

    name: str
    kind: str
    shapes: str
    seconds: float
    size: int
    schemes: tuple[MeasuredScheme, ...] = ()
    spread: Spread | None = None
    like: str = ""

    def options(self, goal: Goal, outputs: int) -> list[Option]:
        """The options of the knapsack: float32, and the schemes whose effect was measured.

        Args:
            goal: What is to be small.
            outputs: The number of outputs whose errors were measured; of each the worst over the sets of inputs counts.
        """
        found = [Option("", 0.0, (0.0,) * outputs)]
        for scheme in self.schemes:
            if scheme.effects is not None:
                change = scheme.seconds - self.seconds
                cost = change if goal == "latency" else float(scheme.size - self.size)
                worst = np.reshape(scheme.effects, (-1, outputs)).max(axis=0) if outputs else ()
                found.append(Option(scheme.name, cost, tuple(float(effect) ** 2 for effect in worst), change))
        return found

    def tried(self) -> tuple[Tried, ...]:
        """The schemes for the report, fastest first."""
        schemes = sorted(self.schemes, key=lambda scheme: scheme.seconds)
        return tuple(
            Tried(
                scheme.name, scheme.seconds, self.seconds - scheme.seconds, scheme.size, scheme.local,
                None if scheme.effects is None else max(scheme.effects, default=0.0), scheme.dropped,
            )
            for scheme in schemes
        )  # fmt: skip


@dataclass
class Measuring:
    """Measure the sites of a model.

    Attributes:
        scheme_set: The schemes.
        calibration: The ranges of values.
        probe: The float32 model with a way in for errors.
        times: The times of kinds of sites of any model.
        goal: What is to be small.
        store: Where measurements of this model are kept.
        progress: Called with the number of sites that are done.
        enough: Whether the time is up, from the number of sites that are done: those that are left are not measured.
        costly: Whether runs of the whole take so long that the effect of one scheme at each site tells those of the others.
        phases: Counts what times and effects take.
        left: How many these are.
        gains_with_neighbours: Whether a scheme, by name, saves time if all sites are on it, whatever it does alone.
    """

    scheme_set: SchemeSet
    calibration: Any
    probe: Probe
    times: KindTimes
    goal: Goal
    store: Store
    progress: Callable[[int], None]
    gains_with_neighbours: Callable[[str], bool] = lambda scheme: False
    enough: Callable[[int], bool] = lambda done: False
    costly: bool = False
    phases: Phases = field(default_factory=Phases)
    left: int = field(default=0, init=False)
    _useless: dict[str, dict[str, str]] = field(default_factory=dict, init=False)
    _exact: list[dict[str, float]] = field(default_factory=list, init=False)

    def measured(self, parts: Sequence[Part], schemes: Mapping[str, Sequence[str]]) -> list[MeasuredSite]:
        """The sites, each with the named schemes measured; but for those that cannot be run alone, or that time is short for.

        They are measured in the order that they are given in.
        """
        found: dict[str, MeasuredSite] = {}
        for part in parts:
            key = ("site", self.goal, part.name, *sorted(schemes[part.name]))
            known = self.store.get_record(MeasuredSite, *key, renamed={"rungs": "schemes"})
            if known is not None and {scheme.name for scheme in known.schemes} <= {*schemes[part.name]}:
                found[part.name] = known
        waiting = [part for part in parts if part.name not in found]
        self.progress(len(found))
        for done, (part, inputs) in enumerate(self.probe.captured(waiting), len(found) + 1):
            site = self._site(part, inputs, sorted(schemes[part.name]))
            if site is not None:
                found[part.name] = site
                self.store.put(asdict(site), "site", self.goal, part.name, *sorted(schemes[part.name]))
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
        schemes = tuple(MeasuredScheme(name, 0.0, 0) for name in names if table[name])
        spread = spread_of(inputs[0].values())
        site = self._as_timed(MeasuredSite(part.name, kind, shapes_of(inputs[0]), 0.0, 0, schemes, spread))
        site, errors = self._with_errors(site, part, models, plain, inputs)
        candidates = _worthwhile(
            [scheme for scheme in site.schemes if not scheme.dropped], self.goal, CANDIDATES, 1 / UNSURE
        )
        if candidates:
            with self.phases.phase("times of candidates"):
                again = {name: models[name] for name in candidates}
                self.times.make_sure(kind, {"": part.model, **again}, inputs[0])
        return self._with_effects(self._as_timed(site), candidates, errors)

    def _lowered(self, part: Part, scheme: str) -> ir.Model | None:
        try:
            return self.scheme_set.lowered(part.model, {part.name: scheme}, self.calibration)
        except OrtfuseError:
            return None

    def _time(self, kind: str, part: Part, names: Sequence[str], inputs: Inputs) -> dict[str, ir.Model]:
        """Measure float32 and each scheme, if sites of the kind were not; the models that this took."""
        missing = [name for name in ("", *names) if name not in self.times.known(kind)]
        if not missing:
            return {}
        models = {name: model for name in names if (model := self._lowered(part, name)) is not None}
        self.times.add(kind, {"": part.model, **models}, ("", *names), inputs)
        return models

    def _as_timed(self, site: MeasuredSite) -> MeasuredSite:
        """A site with the times and sizes that are known of its kind."""
        table = self.times.known(site.kind)
        numbers = {
            name: (table[name][0], int(table[name][1])) for name in ("", *(scheme.name for scheme in site.schemes))
        }
        schemes = (
            replace(scheme, seconds=numbers[scheme.name][0], size=numbers[scheme.name][1]) for scheme in site.schemes
        )
        return replace(site, seconds=numbers[""][0], size=numbers[""][1], schemes=tuple(schemes))

    def _with_errors(
        self,
        site: MeasuredSite,
        part: Part,
        models: dict[str, ir.Model],
        plain: Sequence[Mapping[str, Any]],
        inputs: Sequence[Inputs],
    ) -> tuple[MeasuredSite, dict[str, Sequence[Mapping[str, Array]]]]:
        """The site with what its schemes do there, where that can matter, and these errors; models that are made are added."""
        found: list[MeasuredScheme] = []
        errors = {}
        for scheme in site.schemes:
            if why := self._superfluous(scheme, site):
                found.append(replace(scheme, dropped=why))
                continue
            model = models.get(scheme.name) or self._lowered(part, scheme.name)
            local = None if model is None else local_errors(plain, model, inputs)
            if model is None or local is None:
                found.append(replace(scheme, dropped="makes numbers that are not finite, or does not run"))
                continue
            models[scheme.name], errors[scheme.name] = model, local.errors
            found.append(replace(scheme, local=local.error))
        return replace(site, schemes=tuple(found)), errors

    def _with_effects(
        self, site: MeasuredSite, candidates: Sequence[str], errors: Mapping[str, Sequence[Mapping[str, Array]]]
    ) -> MeasuredSite:
        """The site with what those of the candidates do to the outputs that no other surpasses."""
        useful = [scheme for scheme in site.schemes if scheme.name in candidates and self._gains(scheme, site)]
        kept = _worthwhile(useful, self.goal)
        with self.phases.phase("errors followed to the outputs"):
            effects = self._effects({name: errors[name] for name in kept})
        found = []
        for scheme in site.schemes:
            if scheme.name in kept:
                scheme = replace(scheme, effects=effects[scheme.name])
            elif not scheme.dropped:
                scheme = replace(scheme, dropped=SURPASSED if self._gains(scheme, site) else NO_GAIN.format(self.goal))
            found.append(scheme)
        if site.kind not in self._useless:
            reasons = (SURPASSED, NO_GAIN.format(self.goal))
            self._useless[site.kind] = {scheme.name: scheme.dropped for scheme in found if scheme.dropped in reasons}
            self._exact.append({scheme.name: scheme.local for scheme in found if scheme.local is not None})
        return replace(site, schemes=tuple(found))

    def _effects(self, errors: Mapping[str, Sequence[Mapping[str, Array]]]) -> dict[str, tuple[float, ...]]:
        """Measure the effect of each scheme's error on the outputs.

        If runs take long, only the largest is measured and the others are scaled.
        """
        norms = {name: np.array([_norm(arrays) for arrays in each]) for name, each in errors.items()}
        guide = max(norms, key=lambda name: float(norms[name].max(initial=0.0)), default="")
        if not self.costly or not guide or not norms[guide].all():
            return {name: self.probe.effect(each) for name, each in errors.items()}
        largest = np.reshape(self.probe.effect(errors[guide]), (len(norms[guide]), -1))
        ratios = {name: (each / norms[guide])[:, np.newaxis] for name, each in norms.items()}
        return {name: tuple((largest * ratio).ravel().tolist()) for name, ratio in ratios.items()}

    def _superfluous(self, scheme: MeasuredScheme, site: MeasuredSite) -> str:
        """Why one of the schemes of a site is not looked into; empty if it is."""
        if site.kind in self._useless:
            return self._useless[site.kind].get(scheme.name, "")
        if not self._gains(scheme, site, UNSURE):
            return NO_GAIN.format(self.goal)
        rivals = (other for other in site.schemes if _costs_no_more(other, scheme, self.goal, 1 / UNSURE))
        return SURPASSED if any(self._is_clearly_more_exact(other, scheme) for other in rivals) else ""

    def _gains(self, scheme: MeasuredScheme, site: MeasuredSite, unsure: float = 1.0) -> bool:
        """Whether a scheme has less of what is to be small than float32, within what times are known to."""
        if self.goal != "latency":
            return scheme.size < site.size
        return scheme.seconds <= unsure * FASTER * site.seconds or self.gains_with_neighbours(scheme.name)

    def _is_clearly_more_exact(self, one: MeasuredScheme, other: MeasuredScheme) -> bool:
        """Whether the errors of one scheme were far smaller than those of another wherever both were measured."""
        known = [
            (exact[one.name], exact[other.name]) for exact in self._exact if {one.name, other.name} <= exact.keys()
        ]
        return bool(known) and all(CLEARLY * first <= second for first, second in known)


def _norm(arrays: Mapping[str, Array]) -> float:
    return math.hypot(*map(norm, arrays.values()))


def _worthwhile(schemes: Sequence[MeasuredScheme], goal: Goal, most: int = MOST, within: float = SAME) -> list[str]:
    """The schemes that no other surpasses as far as times are known, and of these as many that are missed most."""
    kept: list[MeasuredScheme] = []
    for scheme in sorted(schemes, key=lambda one: (one.seconds, one.local or 0.0)):
        if not any(_surpasses(other, scheme, goal, within) for other in kept):
            kept = [other for other in kept if not _surpasses(scheme, other, goal, within)] + [scheme]
    while len(kept) > most:
        kept.pop(min(range(1, len(kept) - 1), key=lambda place: _missed(*kept[place - 1 : place + 2])))
    return [scheme.name for scheme in kept]


def _missed(faster: MeasuredScheme, scheme: MeasuredScheme, slower: MeasuredScheme) -> float:
    """Return the loss without a scheme between two others: the time to the slower one, if the faster one is too inexact."""
    errors = [math.log(max(one.local or 0.0, NO_ERROR)) for one in (faster, scheme)]
    return (slower.seconds - scheme.seconds) * max(errors[0] - errors[1], 0.0)


def _surpasses(one: MeasuredScheme, other: MeasuredScheme, goal: Goal, within: float) -> bool:
    """Whether a scheme is at least as good as another in every way that counts, within what times are known to."""
    return (one.local or 0.0) <= (other.local or 0.0) and _costs_no_more(one, other, goal, within)


def _costs_no_more(one: MeasuredScheme, other: MeasuredScheme, goal: Goal, within: float) -> bool:
    """Whether a scheme takes at most so many times as long as another and, where that counts, is no larger.

    Times that are the same were measured once for both.
    """
    if goal != "latency" and one.size > SAME * other.size:
        return False
    return one.seconds == other.seconds or one.seconds <= within * other.seconds
