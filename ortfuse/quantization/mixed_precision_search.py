"""Entry point of the search for the fastest quantised model under an error bound: measure sites, search, report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import BoundError, VerificationError
from ortfuse.ir import walk
from ortfuse.ir.nn_module_of_node import labels_of
from ortfuse.ir.traits import RANDOM, has
from ortfuse.quantization.cross_layer_equalization import equalised
from ortfuse.quantization.error_prediction import Predictions
from ortfuse.quantization.extrapolate import in_turns, with_extrapolated
from ortfuse.quantization.final_measurement import Final, finish
from ortfuse.quantization.input_sets import PROBED, Samples, refuse_nan, samples
from ortfuse.quantization.interaction_cost import interactions, shared
from ortfuse.quantization.knapsack_search_loop import Search
from ortfuse.quantization.measurement_store import Store, inputs_digest, machine, model_digest
from ortfuse.quantization.metrics import Arrays, Metric, error_words
from ortfuse.quantization.model_trials import Trial
from ortfuse.quantization.outcome import Goal, Outcome, Point, SiteReport
from ortfuse.quantization.output_effects import Probe, guide_of
from ortfuse.quantization.phase_times import Phases
from ortfuse.quantization.scheme_families import family_of
from ortfuse.quantization.scheme_set_protocol import SchemeSet, SiteLike
from ortfuse.quantization.site_kind_times import KindTimes
from ortfuse.quantization.site_measurements import FASTER, MOST, MeasuredSite, Measuring
from ortfuse.quantization.site_times import CACHED, Clock, Stopwatch, Untimed
from ortfuse.quantization.time_budget import CHOICES, INTERACTIONS, KINDS, RANGES, SITES, Budget
from ortfuse.quantization.unquantized_weights import why_none
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import Session, weight_bytes
from ortfuse.runtime.single_site_model import Part, cut
from ortfuse.runtime.unrepresentable_models import Runnable

EFFECTS_SECONDS = 10.0
"""The seconds that measuring the effects of all schemes on the outputs may take.

Beyond that, one scheme per site is measured, on as few sets of inputs as keep the time under this limit.
"""

RANGES_IF_SHORT_OF_TIME = 4
"""How many sets of inputs ranges are observed on, where there is no time for all."""

OBSERVING = 2
"""About how many times as long as a run it takes to observe ranges."""

SHORT_OF_TIME = 7
"""How often models are run at most when they are measured side by side, once most of the time is gone."""

EARLIER = 3
"""How many of the choices that searches ended with are remembered."""

KEPT = 1 << 30
"""The most bytes of outputs that are kept to compare with; further sets of inputs are left out."""


@dataclass(frozen=True)
class Request:
    """A request for a search.

    Attributes:
        metric: How the error is measured.
        bound: The largest error.
        goal: What is to be small.
        inputs: The user's sets of inputs; `None` to generate them.
        sizes: Sizes of open dimensions by name, for generated inputs.
        seed: Seed of what is random.
        threads: Threads of the runtime; 0 leaves the number to it.
        rounds: How often models are run when they are measured side by side.
        curve: Whether all points of the curve are run.
        budget: The seconds that it may take; `None` for any number.
        timed: Whether the times on this machine count; they do not where another tool runs the result.
    """

    metric: Metric
    bound: float
    goal: Goal = "latency"
    inputs: Sequence[Inputs] | None = None
    sizes: Mapping[str, int] | None = None
    seed: int = 0
    threads: int = 0
    rounds: int = 20
    curve: bool = False
    budget: float | None = None
    timed: bool = True


def fastest(
    model: ir.Model,
    original: ir.Model,
    asked: Request,
    scheme_set: SchemeSet,
    store: Store,
    progress: Callable[[str], None],
    clock: Clock | None = None,
    phases: Phases | None = None,
) -> Outcome:
    """Find the fastest model under a bound.

    Args:
        model: The model in float32, optimised; not changed.
        original: The model that errors are measured against.
        asked: What is asked for.
        scheme_set: The schemes.
        store: Where measurements are kept.
        progress: Called with short messages.
        clock: Measures sites; by default on this machine.
        phases: Counts what each phase takes, after those that went before.

    Raises:
        BoundError: The bound cannot be met by anything but the original.
        VerificationError: The model cannot be run on the inputs, or draws random numbers.
        OptionError: The user's metric fails, or names an output that the model does not have.
    """
    store = store if asked.timed else store.within("untimed")
    search = _MixedPrecisionSearch(asked, scheme_set, store, progress, phases or Phases(), Budget(asked.budget))
    prepared = search.prepared(model, original, clock)
    return search.chosen(prepared, search.measured(prepared))


@dataclass(frozen=True)
class _Prepared:
    """The state before a search.

    Attributes:
        plain: The model in float32.
        model: The same, equalised for what comes.
        inputs: The inputs.
        expected: The original's outputs on all of them.
        sites: The sites by name.
        parts: The sites that can be run by themselves.
        left: Why the others cannot.
        without: Why weights have no site.
        weights: The bytes of the weights.
        clock: Measures sites.
        seconds: What a run of the whole takes.
        kept: Where what is measured of this model on these inputs is kept.
        taken: Where the choices that searches ended with are kept.
        calibration: What was observed of the values.
    """

    plain: ir.Model
    model: ir.Model
    inputs: Samples
    expected: list[Arrays]
    sites: Mapping[str, SiteLike]
    parts: list[Part]
    left: Mapping[str, str]
    without: Mapping[str, str]
    weights: int
    clock: Clock
    seconds: float
    kept: Store
    taken: Store
    calibration: Any

    @property
    def labels(self) -> dict[str, str]:
        """How people know the sites, by name."""
        return labels_of({name: site.module for name, site in self.sites.items()})


@dataclass(frozen=True)
class _Measured:
    """The measurements of the sites.

    Attributes:
        sites: What was measured of each.
        probe: What measured their errors.
        followed: On how many sets of inputs.
        open: How many sites there was no time for, those among them that others of their kind stand for.
    """

    sites: list[MeasuredSite]
    probe: Probe
    followed: int
    open: int


@dataclass(frozen=True)
class _MixedPrecisionSearch:
    """The search for the fastest model: what is asked for and what all of its steps use."""

    asked: Request
    scheme_set: SchemeSet
    store: Store
    progress: Callable[[str], None]
    phases: Phases
    budget: Budget

    def prepared(self, model: ir.Model, original: ir.Model, clock: Clock | None) -> _Prepared:
        """Run the original and look at the model: its sites, its time, the ranges of its values."""
        asked, phase = self.asked, self.phases.phase
        _refuse_random(original)
        refuse_nan(asked.inputs or ())
        asked.metric.demand_outputs([value.name or "" for value in original.graph.outputs])
        with phase("the original on all inputs"):
            self.progress("running the original")
            inputs, expected = _expected(original, asked)
            _demand_float32(model, inputs, expected, asked)
        with phase("looking for sites"):
            self.progress("looking for sites")
            plain = model
            model, _ = equalised(plain, inputs.ranges)
            sites = self.scheme_set.sites(model)
            parts, left = _parts(model, sites)
        weights = weight_bytes(model)
        clock = clock or Stopwatch(asked.threads, weights)
        with phase("times of the whole"):
            self.progress("measuring the whole")
            seconds = clock.seconds({"": model}, inputs.search[0]).get("", 0.0)
        clock = clock if asked.timed else Untimed()
        of_model = self.store.within(*machine(), asked.threads, model_digest(model))
        kept = of_model.within(inputs_digest(inputs.all))
        first = inputs_digest(inputs.search[:1])  # whatever more there was time for: they are run again in any case
        taken = of_model.within(first, "taken", asked.metric.name, asked.metric.judged)
        observed = inputs.ranges
        if len(observed) * OBSERVING * seconds > self.budget.left(RANGES):
            observed = observed[:RANGES_IF_SHORT_OF_TIME]
            kept = kept.within("ranges", len(observed))
        with phase("ranges of values"):
            self.progress("observing ranges of values")
            names = dict.fromkeys(name for site in sites.values() for name in site.activations)
            calibration = self.scheme_set.calibrate(model, (*names, *sites), observed) if sites else None
        return _Prepared(
            plain, model, inputs, expected, sites, parts, left, self.scheme_set.left(model), weights, clock, seconds, kept,
            taken, calibration,
        )  # fmt: skip

    def measured(self, prepared: _Prepared) -> _Measured:
        """Measure what each scheme saves and what error it makes, at each site."""
        asked, budget, parts = self.asked, self.budget, prepared.parts
        schemes = {name: tuple(site.schemes) for name, site in prepared.sites.items()}
        with self.phases.phase("times with neighbours"):
            self.progress("measuring families of schemes at all sites")
            interaction = interactions(
                self.scheme_set, prepared.model, parts, schemes, prepared.calibration, prepared.clock, prepared.inputs.search[0],
                prepared.kept, budget.until(INTERACTIONS),
            )  # fmt: skip
        winning = {family for family, one in interaction.items() if one.share < FASTER}
        once = len(parts) * prepared.seconds
        costly = once * MOST * PROBED > EFFECTS_SECONDS
        followed = max(1, min(PROBED, int(EFFECTS_SECONDS / once))) if costly else PROBED
        guide = guide_of(asked.metric)
        with self.phases.phase("errors and times of sites"):
            probe = Probe(prepared.model, parts, prepared.inputs.search[:followed], guide, asked.threads)
            ordered, kinds = in_turns(parts)
            times = self.store.within("times", *machine(), asked.threads, prepared.weights > CACHED)
            measuring = Measuring(
                self.scheme_set, prepared.calibration, probe, KindTimes(prepared.clock, times), asked.goal,
                prepared.kept.within(guide.name, asked.metric.judged),
                lambda done: self.progress(f"measuring sites: {done} of {len(parts)}"),
                lambda scheme: family_of(scheme) in winning,
                lambda done: budget.spent(KINDS if done < kinds else SITES), costly, phases=self.phases,
            )  # fmt: skip
            sites = with_extrapolated(parts, measuring.measured(ordered, schemes), schemes)
        sites = shared(sites, interaction, prepared.seconds)
        return _Measured(sites, probe, len(prepared.inputs.search[:followed]), measuring.left)

    def chosen(self, prepared: _Prepared, measured: _Measured) -> Outcome:
        """Choose schemes, run the choices as a whole, and compare the best side by side."""
        asked, budget, phase, probe = self.asked, self.budget, self.phases.phase, measured.probe
        trial = Trial(
            self.scheme_set, prepared.model, prepared.calibration, prepared.inputs, prepared.expected, asked.metric, probe,
            measured.followed, prepared.kept, asked.threads, None if asked.curve else asked.bound,
        )  # fmt: skip
        predictions = Predictions(measured.sites, probe.rows // measured.followed, asked.goal, prepared.seconds)
        earlier = (prepared.taken.get(asked.goal) or []) if asked.metric.function is None else []
        legal = {(name, scheme) for name, site in prepared.sites.items() for scheme in site.schemes}
        search = Search(
            predictions, trial, self.scheme_set.observes, self.scheme_set.is_fitted, asked.metric, asked.bound, self.progress,
            budget.until(CHOICES),
            is_short_of_time=measured.open > 0, earlier=[choice for choice in earlier if choice.items() <= legal],
            labels=prepared.labels,
        )  # fmt: skip
        if not measured.open:
            search.demand_a_fit()
        with phase("choices run as a whole"):
            found = search.run()
        with phase("the best side by side"):
            self.progress("measuring the best choices side by side")
            rounds = min(asked.rounds, SHORT_OF_TIME) if budget.spent(CHOICES) else asked.rounds
            final = finish(
                found, trial, prepared.plain, prepared.inputs, asked.goal, rounds, asked.threads, budget.left(1.0), asked.timed
            )  # fmt: skip
        if final.point is not None and final.point.choice not in earlier:
            prepared.taken.put([*earlier, final.point.choice][-EARLIER:], asked.goal)
        with phase("choices run as a whole"):
            curve = search.curve(asked.curve and not budget.spent(CHOICES))
        notes = [*prepared.inputs.notes, *search.notes]
        if measured.open:
            presumed = sum(bool(site.like) for site in measured.sites)
            like = f" ({presumed} of them were taken to be like others of their kind)" if presumed else ""
            notes.append(
                f"{measured.open} of {len(prepared.parts)} sites were not measured in the time given{like}; "
                "the same command goes on where this one stopped"
            )
        outcome = _outcome(final, asked, prepared, trial, measured, curve, notes)
        return replace(outcome, phases=self.phases.found)


def _refuse_random(model: ir.Model) -> None:
    for node in walk.nodes(model):
        if has(node, RANDOM):
            raise VerificationError(f"{walk.describe(node)} draws random numbers, so no error can be measured")


def _expected(original: Runnable, asked: Request) -> tuple[Samples, list[Arrays]]:
    """The inputs, as many as their outputs fit into memory, and the original's outputs."""
    assert isinstance(original, ir.Model)
    session = Session(original, threads=asked.threads)
    inputs = samples(session, original, asked.inputs, asked.sizes or {}, asked.seed, asked.budget)
    found: dict[int, Arrays] = {}
    held = 0
    # In turns, so that of both kinds some are left.
    order = sorted(range(len(inputs.all)), key=lambda number: number % max(len(inputs.search), 1))
    for number in order:
        outputs = inputs.outputs[number] if inputs.outputs else session.run(inputs.all[number])
        if not any(getattr(array, "size", 1) for array in outputs.values()):
            raise VerificationError(
                "on some of the inputs all outputs are empty, so no error can be measured; leave those out"
            )
        held += sum(getattr(array, "nbytes", 0) for array in outputs.values())
        if held > KEPT and len(found) >= 2:
            break
        found[number] = outputs
    split = len(inputs.search)
    search = tuple(inputs.all[number] for number in sorted(found) if number < split)
    held_out = tuple(inputs.all[number] for number in sorted(found) if number >= split)
    return replace(inputs, search=search, held_out=held_out, outputs=()), [found[number] for number in sorted(found)]


def _demand_float32(model: ir.Model, inputs: Samples, expected: Sequence[Arrays], asked: Request) -> None:
    """Check that the float32 model itself keeps the bound: exact fusions round differently."""
    session = Session(model, threads=asked.threads)
    first = inputs.search[:1]
    error = asked.metric.of(expected[:1], [session.run(arrays) for arrays in first], first).error
    if error > asked.bound:
        raise BoundError(
            f"no result keeps the error under {asked.bound:.3g}: without any scheme, by fusions alone, it is "
            f"{error_words(error)}; give a larger --max-error"
        )


def _parts(model: ir.Model, sites: Mapping[str, SiteLike]) -> tuple[list[Part], dict[str, str]]:
    """The sites cut out, and why some cannot be."""
    facts = Facts(model)
    found: list[Part] = []
    left: dict[str, str] = {}
    for name, site in sites.items():
        try:
            found.append(cut(model, name, site.activations, facts))
        except VerificationError as error:
            left[name] = str(error)
    return found, left


def _outcome(
    final: Final,
    asked: Request,
    prepared: _Prepared,
    trial: Trial,
    measured: _Measured,
    curve: Sequence[Point],
    notes: Sequence[str],
) -> Outcome:
    choice = final.point.choice if final.point is not None else {}
    tested, proved = trial.test(choice), trial.proved(choice) if choice else None
    taken = final.point or Point("float32", {}, 0.0, 0.0, 1.0, tested.seen, tested.likely, 1.0, prepared.weights)
    curve = [replace(point, speedup=final.measured.get(id(point))) for point in curve]
    return Outcome(
        model=final.model,
        metric=asked.metric.name,
        bound=asked.bound,
        goal=asked.goal,
        inputs=prepared.inputs.label,
        chosen=replace(taken, speedup=final.latencies[-1].speedup if final.latencies else 1.0 if asked.timed else None),
        error=tested.seen,
        held_out_error=tested.held_out if proved is None else max(tested.held_out or 0.0, proved.error),
        latency=final.latencies,
        float_size=prepared.weights,
        sites=_reports(measured, prepared, choice),
        curve=curve,
        notes=notes,
        reason=_why(final.reason, measured, prepared) if not choice else "",
        unquantized=prepared.without,
        memory=final.memory,
        timed=asked.timed,
    )


def _why(reason: str, measured: _Measured, prepared: _Prepared) -> str:
    """Why the float32 model is the result."""
    if not prepared.sites:
        return f"the model has no site at which a scheme is legal: {why_none(prepared.without)}"
    if not any(scheme.effects is not None for site in measured.sites for scheme in site.schemes):
        reason = "no scheme that was measured is of use at any site of the model on this machine"
    if not measured.open:
        return reason
    lacking = f"{measured.open} of {len(prepared.parts)} sites were not measured"
    return f"{reason}, as far as was seen in the time given: {lacking}, and the same command goes on from there"


def _reports(measured: _Measured, prepared: _Prepared, choice: Mapping[str, str]) -> list[SiteReport]:
    known, labels = {site.name: site for site in measured.sites}, prepared.labels
    otherwise = "there was no time for it" if measured.open else "it cannot be run by itself"
    found = []
    for name, site in prepared.sites.items():
        refused = {scheme: refusal.reason for scheme, refusal in site.refused.items()}
        one = known.get(name)
        if one is None:
            why = prepared.left.get(name, otherwise)
            found.append(SiteReport(name, site.operator, "", refused=refused, unquantized=why, module=site.module))
            continue
        ran = {scheme.name for scheme in one.schemes}
        refused |= {scheme: "the site, cut out, does not run with it" for scheme in site.schemes if scheme not in ran}
        why = (
            f"there was no time for it: the numbers are those of '{labels.get(one.like, one.like)}'" if one.like else ""
        )
        report = SiteReport(
            name,
            site.operator,
            one.shapes,
            choice.get(name, ""),
            one.seconds,
            one.spread,
            one.tried(),
            refused,
            why,
            site.module,
        )
        found.append(report)
    return found
