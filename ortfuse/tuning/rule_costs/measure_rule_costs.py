"""Measure the costs by which rules are chosen on this machine, and keep each as soon as it is known."""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from ortfuse.options import PathLike
from ortfuse.options.type_aliases import TargetLike
from ortfuse.pipeline import load_catalogue
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.worker import WORKER
from ortfuse.targets import CostTable, Target, resolve_target, shipped_costs
from ortfuse.targets.calibrated_speedups import calibration_file, store, stored
from ortfuse.targets.processor import demand_threads, processor_kind, processor_name
from ortfuse.targets.rule_speedups import WORTH_IT, Measured
from ortfuse.tuning.rule_costs.calibration import Calibration, Decision, Step
from ortfuse.tuning.rule_costs.measure_in_environment import calibrate_in
from ortfuse.tuning.rule_costs.measurement_candidates import DTYPES, Candidate, candidates
from ortfuse.tuning.rule_costs.speedup import Measurement, speedup

AGAIN = 2
"""How often what contradicts the shipped table is measured again at the end, whatever the budget: a disturbance looks sure."""


def calibrate(
    *,
    budget: float | None = None,
    only: Collection[str] = (),
    threads: int = 0,
    patterns: PathLike | Sequence[PathLike] = (),
    target: TargetLike | None = None,
    again: bool = False,
    environment: PathLike | None = None,
    file: PathLike | None = None,
    step: Step | None = None,
) -> Calibration:
    """Measure on this machine what each rule buys that is chosen by cost, at all its typical sizes.

    Rules measured before with this runtime, processor and number of threads are not measured again, so that a stopped
    run goes on where it was. From then on `optimize` chooses by these costs.

    Args:
        budget: The seconds after which no further measurement is begun; `None` for no limit.
        only: Families (`"attention"`) and rules (`"attention.fold_query_scale"`) to measure; by default all.
        threads: Threads per operator; 0 leaves the choice to the runtime.
        patterns: Files and folders with rules of the user's own.
        target: The target for which rules are chosen and models are run; by default the default one.
        again: Whether to measure what is known too.
        environment: The folder of a virtual environment of this Python whose ONNX Runtime is measured, such as one with an older
            release; by default the runtime that is installed beside ortfuse. `optimize` chooses by it with `runtime`.
        file: Where to keep the costs; by default in the cache folder, where `optimize` looks.
        step: Called before each measurement.

    Raises:
        OptionError: There are more threads than ever run, or the environment cannot be used.
        TargetError: There is no such target, or models cannot be executed for it here.
        RuleError: A name in `only` is none of a family or rule that is chosen by cost, or a rule file cannot be used.
    """
    demand_threads(threads)
    if environment is not None:
        return calibrate_in(
            environment, budget=budget, only=list(only), threads=threads, patterns=patterns, target=target, again=again,
            file=file, step=step,
        )  # fmt: skip
    spec = resolve_target(target).spec
    spec.session_providers()  # refuse a target for which nothing can be measured
    provider, table = spec.provider, Target(spec).table
    runtime, shipped = table.runtime, shipped_costs(spec, table.release)
    paths = [patterns] if isinstance(patterns, str) or not isinstance(patterns, Sequence) else list(patterns)
    place = Path(file) if file is not None else calibration_file()
    catalogue = load_catalogue([Path(path) for path in paths], spec)
    foreign = catalogue.for_others(spec.name)
    wanted = candidates([rule for rule in catalogue.rules() if rule.name not in foreign], only, shipped)
    known = stored(runtime, provider, threads, place)
    open_ = [one for one in wanted if again or one.sizes not in known.get(one.rule.name, {})]

    def measured(one: Candidate) -> Measurement | None:
        with executing_for(spec):
            return speedup(one, threads)

    started, done, problem = time.monotonic(), 0, ""
    silent, unsure, new = list[str](), list[str](), list[Candidate]()
    for one in open_:
        if budget is not None and done and time.monotonic() - started > budget:
            break
        if step is not None:
            step(done, len(open_), f"{one.rule.name} at {one.sizes}")
        found = measured(one)
        done += 1
        if found is None or found.unsure:
            if found is not None:
                unsure.append(f"{one.rule.name} at {one.sizes}")
            elif one.dtype == DTYPES[0]:
                silent.append(f"{one.rule.name} at {one.sizes}")
            continue
        new.append(one)
        known.setdefault(one.rule.name, {})[one.sizes] = found.speedup
        if not store(runtime, provider, threads, known, place):
            problem = f"{place} cannot be written, so nothing is kept"
    contrary = {(one.rule, one.sizes) for one in _changed(new, known, shipped)}
    for one in new:
        if (one.rule.name, one.sizes) in contrary:
            more = [run.speedup for run in (measured(one) for _ in range(AGAIN)) if run and not run.unsure]
            rows = known[one.rule.name]
            rows[one.sizes] = round(statistics.median([rows[one.sizes], *more]), 3)
            store(runtime, provider, threads, known, place)
    WORKER.stop()
    return Calibration(
        runtime=runtime,
        processor=processor_name(),
        threads=threads,
        speedups=known,
        measured=len(new),
        remaining=len(open_) - done + len(unsure),
        inconclusive=tuple(unsure),
        unmeasurable=tuple(silent),
        changed=tuple(_changed(wanted, known, shipped)),
        table=(shipped.processor, shipped.processor == processor_kind()),
        file=place,
        problem=problem,
    )


def _changed(wanted: Sequence[Candidate], known: dict[str, dict[str, float]], shipped: CostTable) -> list[Decision]:
    """The decisions that differ from those of the shipped table."""
    found = []
    for one in wanted:
        here = known.get(one.rule.name, {}).get(one.sizes)
        shapes = Measured.parse(one.sizes, 1.0).shapes
        there = shipped.estimate(one.rule.name, shapes.get, one.dtype)
        if here is not None and there is not None and (here >= WORTH_IT) != there.worth_it:
            found.append(Decision(one.rule.name, one.sizes, there.speedup, here))
    return found
