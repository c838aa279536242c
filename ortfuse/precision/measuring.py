"""Every rung at every site measured: the time, the error that it makes there, and what that does to the outputs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.bench.meter import content_of
from ortfuse.errors import OrtfuseError
from ortfuse.execution.inputs import Inputs
from ortfuse.execution.session import Session, weight_bytes
from ortfuse.execution.single_site import Part
from ortfuse.precision.effects import Array, Probe, Spread, local_errors, spread_of
from ortfuse.precision.knapsack import Option
from ortfuse.precision.ladder import Ladder
from ortfuse.precision.metrics import norm
from ortfuse.precision.outcome import Goal, Tried
from ortfuse.precision.phases import Phases
from ortfuse.precision.store import Store
from ortfuse.precision.times import Clock

MOST = 5
"""At most so many rungs of a site are followed to the outputs."""

SAME = 1.03
"""Times and sizes that differ by less than this factor are taken to be the same."""

CLEARLY = 3.0
"""A rung whose errors at sites of other kinds are this many times smaller than another's is taken to be more exact everywhere."""

NO_ERROR = 1e-12
"""Smaller errors of a site are taken to be alike."""

SURPASSED = "another rung is no slower and no less exact"

FASTER = 0.98
"""A rung is not considered if the site takes more than this share of its time in float32."""


@dataclass(frozen=True)
class Rung:
    """One rung at one site, measured; see `ortfuse.precision.outcome.Tried`.

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
    """

    name: str
    kind: str
    shapes: str
    seconds: float
    size: int
    rungs: tuple[Rung, ...] = ()
    spread: Spread | None = None

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
        clock: Measures times.
        goal: What is to be small.
        limit: The largest error of the outputs that a rung may make; what makes more is not considered.
        store: Where measurements of this model are kept.
        times: Where times of sites of any model are kept.
        progress: Called with the number of sites that are done.
        enough: Whether the time is up: the sites that are left are not measured.
        costly: Whether runs of the whole take so long that the effect of one rung at each site tells those of the others.
        phases: Counts what times and effects take.
        left: How many these are.
        wins_in_company: Whether a rung, given by name, wins time where all sites are on such rungs, whatever it does alone.
    """

    ladder: Ladder
    calibration: Any
    probe: Probe
    clock: Clock
    goal: Goal
    store: Store
    times: Store
    progress: Callable[[int], None]
    wins_in_company: Callable[[str], bool] = lambda rung: False
    enough: Callable[[], bool] = lambda: False
    costly: bool = False
    phases: Phases = field(default_factory=Phases)
    left: int = field(default=0, init=False)
    _tables: dict[str, dict[str, list[float]]] = field(default_factory=dict, init=False)
    _surpassed: dict[str, set[str]] = field(default_factory=dict, init=False)
    _exact: list[dict[str, float]] = field(default_factory=list, init=False)

    def measured(self, parts: Sequence[Part], rungs: Mapping[str, Sequence[str]]) -> list[MeasuredSite]:
        """The sites, each with the named rungs measured; but for those that cannot be run alone, or that time is short for."""
        found: dict[str, MeasuredSite] = {}
        for part in parts:
            if (known := self.store.get("site", self.goal, part.name, *sorted(rungs[part.name]))) is not None:
                found[part.name] = _from_data(known)
        waiting = [part for part in parts if part.name not in found]
        self.progress(len(found))
        for done, (part, inputs) in enumerate(self.probe.captured(waiting), len(found) + 1):
            site = self._site(part, inputs, sorted(rungs[part.name]))
            if site is not None:
                found[part.name] = site
                self.store.put(asdict(site), "site", self.goal, part.name, *sorted(rungs[part.name]))
            self.progress(done)
            if self.enough():
                self.left = len(parts) - done
                break
        return [found[part.name] for part in parts if part.name in found]

    def _site(self, part: Part, inputs: list[Inputs], names: Sequence[str]) -> MeasuredSite | None:
        try:
            session = Session(part.model)
            plain = [session.run(arrays) for arrays in inputs]
        except OrtfuseError:
            return None
        kind = _kind(part.model, inputs[0])
        with self.phases.phase("times of kinds of sites"):
            table, lowered = self._table(kind, part, names, inputs[0])
        if "" not in table:
            return None
        seconds, size = table[""]
        spread = spread_of(inputs[0].values())
        site = MeasuredSite(part.name, kind, _shapes(inputs[0]), seconds, int(size), spread=spread)
        rungs = [Rung(name, table[name][0], int(table[name][1])) for name in names if name in table]
        return replace(site, rungs=tuple(self._with_effects(site, rungs, lowered, part, plain, inputs)))

    def _lowered(self, part: Part, rung: str) -> ir.Model | None:
        try:
            return self.ladder.lowered(part.model, {part.name: rung}, self.calibration)
        except OrtfuseError:
            return None

    def _table(
        self, kind: str, part: Part, names: Sequence[str], inputs: Inputs
    ) -> tuple[dict[str, list[float]], dict[str, ir.Model]]:
        """The seconds and bytes of float32 and of each rung, measured once for all sites of a kind, and what that took."""
        if kind not in self._tables:
            self._tables[kind] = self.times.get("kind", kind) or {}
        table = self._tables[kind]
        missing = [name for name in ("", *names) if name not in table]
        lowered: dict[str, ir.Model] = {}
        if missing:
            lowered = {name: model for name in names if (model := self._lowered(part, name)) is not None}
            table |= self._timed({"": part.model, **lowered}, inputs)
            table |= {name: [] for name in names if name not in table}  # they cannot be run
            self.times.put(table, "kind", kind)
        return {name: numbers for name, numbers in table.items() if numbers}, lowered

    def _timed(self, models: Mapping[str, ir.Model], inputs: Inputs) -> dict[str, list[float]]:
        """The seconds and bytes of each model that can be run; those that differ in numbers alone are measured once."""
        kinds = {name: _kind(model, inputs) for name, model in models.items()}
        first = {one: models[name] for name, one in reversed(kinds.items())}
        seconds = self.clock.seconds({one: first[one] for one in dict.fromkeys(kinds.values())}, inputs)
        return {name: [seconds[one], weight_bytes(first[one])] for name, one in kinds.items() if one in seconds}

    def _with_effects(
        self,
        site: MeasuredSite,
        rungs: Sequence[Rung],
        lowered: Mapping[str, ir.Model],
        part: Part,
        plain: Sequence[Mapping[str, Any]],
        inputs: Sequence[Inputs],
    ) -> list[Rung]:
        """The rungs with what they do to the outputs, where that can matter."""
        found: dict[str, Rung] = {}
        errors = {}
        for rung in rungs:
            if why := self._superfluous(rung, rungs, site):
                found[rung.name] = replace(rung, dropped=why)
                continue
            model = lowered.get(rung.name) or self._lowered(part, rung.name)
            local = None if model is None else local_errors(plain, model, inputs)
            if local is None:
                found[rung.name] = replace(rung, dropped="makes numbers that are not finite, or does not run")
                continue
            errors[rung.name] = local.errors
            found[rung.name] = replace(rung, local=local.error)
        kept = _worthwhile([rung for rung in found.values() if not rung.dropped], self.goal)
        with self.phases.phase("errors followed to the outputs"):
            effects = self._effects({name: errors[name] for name in kept})
        for rung in found.values():
            if rung.name in kept:
                found[rung.name] = replace(rung, effects=effects[rung.name])
            elif not rung.dropped:
                found[rung.name] = replace(rung, dropped=SURPASSED)
        if site.kind not in self._surpassed:
            self._surpassed[site.kind] = {name for name, rung in found.items() if rung.dropped == SURPASSED}
            self._exact.append({name: rung.local for name, rung in found.items() if rung.local is not None})
        return list(found.values())

    def _effects(self, errors: Mapping[str, Sequence[Mapping[str, Array]]]) -> dict[str, tuple[float, ...]]:
        """What the errors of each rung do to the outputs; where runs take long, in proportion to what the largest do."""
        norms = {name: np.array([_norm(arrays) for arrays in each]) for name, each in errors.items()}
        guide = max(norms, key=lambda name: float(norms[name].max(initial=0.0)), default="")
        if not self.costly or not guide or not norms[guide].all():
            return {name: self.probe.effect(each) for name, each in errors.items()}
        largest = np.reshape(self.probe.effect(errors[guide]), (len(norms[guide]), -1))
        ratios = {name: (each / norms[guide])[:, np.newaxis] for name, each in norms.items()}
        return {name: tuple((largest * ratio).ravel().tolist()) for name, ratio in ratios.items()}

    def _superfluous(self, rung: Rung, rungs: Sequence[Rung], site: MeasuredSite) -> str:
        """Why one of the rungs of a site is not looked into; empty if it is."""
        fast = rung.seconds <= FASTER * site.seconds or self.wins_in_company(rung.name)
        gains = fast if self.goal == "latency" else rung.size < site.size
        if not gains:
            return f"no gain in {self.goal}"
        if site.kind in self._surpassed:
            return SURPASSED if rung.name in self._surpassed[site.kind] else ""
        rivals = (other for other in rungs if _costs_no_more(other, rung, self.goal))
        return SURPASSED if any(self._is_clearly_more_exact(other, rung) for other in rivals) else ""

    def _is_clearly_more_exact(self, one: Rung, other: Rung) -> bool:
        """Whether the errors of one rung were far smaller than those of another wherever both were measured."""
        known = [
            (exact[one.name], exact[other.name]) for exact in self._exact if {one.name, other.name} <= exact.keys()
        ]
        return bool(known) and all(CLEARLY * first <= second for first, second in known)


def _norm(arrays: Mapping[str, Array]) -> float:
    return math.hypot(*map(norm, arrays.values()))


def _worthwhile(rungs: Sequence[Rung], goal: Goal) -> list[str]:
    """The rungs that no other surpasses as far as times are known, and of these the `MOST` that are missed most."""
    kept: list[Rung] = []
    for rung in sorted(rungs, key=lambda one: (one.seconds, one.local or 0.0)):
        if not any(_surpasses(other, rung, goal) for other in kept):
            kept = [other for other in kept if not _surpasses(rung, other, goal)] + [rung]
    while len(kept) > MOST:
        kept.pop(min(range(1, len(kept) - 1), key=lambda place: _missed(*kept[place - 1 : place + 2])))
    return [rung.name for rung in kept]


def _missed(faster: Rung, rung: Rung, slower: Rung) -> float:
    """What is lost without a rung between two others: the time to the slower one, wherever the faster one errs too much."""
    errors = [math.log(max(one.local or 0.0, NO_ERROR)) for one in (faster, rung)]
    return (slower.seconds - rung.seconds) * max(errors[0] - errors[1], 0.0)


def _surpasses(one: Rung, other: Rung, goal: Goal) -> bool:
    """Whether a rung is at least as good as another in every way that counts, within what times are known to."""
    return (one.local or 0.0) <= (other.local or 0.0) and _costs_no_more(one, other, goal)


def _costs_no_more(one: Rung, other: Rung, goal: Goal) -> bool:
    """Whether a rung is no slower than another and, where that counts, no larger."""
    return (goal == "latency" or one.size <= SAME * other.size) and one.seconds <= SAME * other.seconds


def _kind(model: ir.Model, inputs: Inputs) -> str:
    """A digest of what the time of a site depends on: its operators, types and sizes."""
    shapes = [(array.dtype.name, array.shape) for array in inputs.values()]
    nodes, weights, _ = content_of(model)  # the same kernels run whatever opset the model imports
    return hashlib.sha256(repr((nodes, weights, shapes)).encode()).hexdigest()[:24]


def _shapes(inputs: Inputs) -> str:
    return ", ".join(f"[{', '.join(map(str, array.shape))}]" for array in inputs.values())


def _from_data(data: Mapping[str, Any]) -> MeasuredSite:
    spread = None if data["spread"] is None else Spread(**data["spread"])
    rungs = tuple(
        Rung(**{**rung, "effects": None if rung["effects"] is None else tuple(rung["effects"])})
        for rung in data["rungs"]
    )
    return MeasuredSite(**{**data, "rungs": rungs, "spread": spread})
