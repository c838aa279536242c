"""Measure the speedup of session settings for a model on this machine, each alone and the useful ones together.

Each is measured beside the model in the session that is recommended without measuring, runs interleaved, each in a process of
its own. One pays if the whole 95 % interval of its speedup is above `WORTH_IT`; what pays is then measured once more, together,
because the best of several is likely to have been lucky. Settings that change outputs beyond rounding are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ortfuse.errors import OrtfuseError, VerificationError
from ortfuse.io.load_and_save import load
from ortfuse.ir import walk
from ortfuse.options import PathLike
from ortfuse.options.type_aliases import TargetLike
from ortfuse.runtime.bench import Candidate, SessionMeter, typical_inputs
from ortfuse.runtime.bench.confidence import median_bounds
from ortfuse.runtime.bench.session_timing import Meter
from ortfuse.runtime.comparison import compare_all
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import Session
from ortfuse.runtime.session_settings import SessionConfig, Setting, write_beside
from ortfuse.runtime.session_settings.config import settings_of
from ortfuse.runtime.session_settings.recommendations import derived, with_runtime
from ortfuse.runtime.session_settings.settings_cache import remember, settings_file
from ortfuse.serialization import Record, entry
from ortfuse.targets import resolve_target
from ortfuse.targets.processor import demand_threads

WORTH_IT = 1.01
"""The least speedup, of which one can be sure, that is worth a setting."""

FEWEST = 9
"""The rounds after which a setting that cannot be worth it is given up."""

CHOICES: Mapping[str, Any] = {
    "enable_mem_reuse": False,
    "enable_mem_pattern": False,
    "enable_cpu_mem_arena": False,
    "session.intra_op.allow_spinning": "0",
    "session.disable_prepacking": "1",
}
"""The settings that are tried, with the value that is not the runtime's default."""

OPTIMISERS: Mapping[str, frozenset[str]] = {
    "NchwcTransformer": frozenset({"Conv", "com.microsoft.FusedConv"}),
    "TransposeOptimizer": frozenset({"Transpose"}),
    "MatMulAddFusion": frozenset({"MatMul"}),
    "ConstantFolding": frozenset({"Shape", "Constant"}),
}
"""The runtime's own optimisers that are left out, one at a time, where a model has one of these operators."""


@dataclass(frozen=True)
class Effect(Record):
    """The speedup of settings.

    Attributes:
        settings: Their values by name.
        speedup: The latency without them divided by that with them, the median over rounds; 0 if it cannot be told.
        bounds: The 95 % confidence interval of it.
        reason: Why they cannot be taken; empty if they can.
    """

    settings: Mapping[str, Any]
    speedup: float = 0.0
    bounds: tuple[float, float] | None = None
    reason: str = ""

    @property
    def pays(self) -> bool:
        """Whether the settings are worth it for sure."""
        return not self.reason and self.bounds is not None and self.bounds[0] > WORTH_IT


@dataclass(frozen=True)
class MeasuredSettings(Record):
    """The speedups of session settings for a model.

    Attributes:
        model: The model file.
        inputs: What was measured on, in words.
        threads: The threads per operator; 0 is as many as the runtime chooses.
        effects: What each setting buys by itself.
        combined: What those that pay buy together; `None` if there are none.
        session: What is recommended for the model now.
        file: Where that is kept.
        problem: Why it could not be kept; empty if it was.
    """

    model: str
    inputs: str
    threads: int
    effects: tuple[Effect, ...]
    combined: Effect | None
    session: SessionConfig = field(metadata=entry(convert=settings_of))
    file: Path
    problem: str = ""


def calibrate_session(
    model: PathLike,
    *,
    sizes: Mapping[str, int] | None = None,
    rounds: int = 20,
    threads: int = 0,
    target: TargetLike | None = None,
    file: PathLike | None = None,
    step: Callable[[int, int, str], None] | None = None,
    meter: Callable[[Candidate, Inputs, int, str], Meter] = SessionMeter,
) -> MeasuredSettings:
    """Measure on this machine what settings of a session buy for a model file, such as a result of `optimize`.

    Settings that pay are written beside the model. They are kept for models of the same structure, for which `optimize`
    recommends them from then on.

    Args:
        model: The model file.
        sizes: Sizes of its open dimensions to measure at, by name.
        rounds: How often each session runs.
        threads: Threads per operator; 0 leaves the choice to the runtime.
        target: The target for which the model is run; by default the default one.
        file: Where to keep what pays; by default in the cache folder, where `optimize` looks.
        step: Called before each measurement: how many are done, how many there are, and what is measured.
        meter: What measures candidates beside a baseline, from that, the inputs, the threads and its name.

    Raises:
        OptionError: There are more threads than ever run.
        TargetError: There is no such target, or models cannot be executed for it here.
        VerificationError: The model cannot be run, or has no open dimension of a name in `sizes`.
    """
    demand_threads(threads)
    path = Path(model)
    spec = resolve_target(target).spec
    spec.session_providers()  # refuse a target for which nothing can be measured
    with executing_for(spec):
        loaded = load(path)
        label, inputs = typical_inputs(loaded, sizes=sizes)
        given, wanted, effects = derived(loaded), list(choices(loaded)), list[Effect]()
        with meter(Candidate(path, given.values()), inputs, threads, path.name) as side_by_side:
            trials = _Trials(path, given, inputs, side_by_side, rounds)
            for number, settings in enumerate(wanted):
                if step is not None:
                    step(number, len(wanted), ", ".join(f"{name} = {value}" for name, value in settings.items()))
                effects.append(trials.effect(settings))
            together = trials.together([effect for effect in effects if effect.pays])
        chosen = () if together is None else _settings(together, effects, label)
        place = settings_file() if file is None else Path(file)
        problem = "" if remember(loaded, threads, chosen, place) else f"{place} cannot be written, so nothing is kept"
        session = with_runtime((*given, *chosen))
        write_beside(path, session)
        return MeasuredSettings(str(path), label, threads, tuple(effects), together, session, place, problem)


def choices(model: ir.Model) -> Iterator[dict[str, Any]]:
    """The settings to try for a model, one at a time."""
    yield from ({name: value} for name, value in CHOICES.items())
    present = {f"{node.domain}.{node.op_type}".lstrip(".") for node in walk.nodes(model)}
    yield from ({"disabled_optimizers": (name,)} for name, needed in OPTIMISERS.items() if needed & present)


class _Trials:
    """Measure settings of one model beside the settings that are given."""

    def __init__(self, path: Path, given: SessionConfig, inputs: Inputs, meter: Meter, rounds: int) -> None:
        self._path, self._given, self._meter, self._rounds = path, given.values(), meter, rounds
        self._expected = Session(str(path)).run(inputs)

    def effect(self, settings: Mapping[str, Any]) -> Effect:
        """The speedup of settings."""
        try:
            rows = self._meter.measure(
                {"": Candidate(self._path, {**self._given, **settings})},
                self._rounds,
                enough=_hopeless,
                check=lambda name, found: self._check(found),
            )
        except OrtfuseError as error:
            return Effect(settings, reason=str(error))
        return Effect(settings, rows[1].speedup, rows[1].speedup_bounds)

    def together(self, paying: Sequence[Effect]) -> Effect | None:
        """The settings worth having, measured anew: all that pay by themselves or, if together no faster, the best."""
        if not paying:
            return None
        best = max(paying, key=lambda effect: effect.speedup)
        found = self.effect(_merged([effect.settings for effect in paying]))
        if len(paying) > 1 and not (found.pays and found.speedup >= best.speedup):
            found = self.effect(best.settings)
        return found if found.pays else None

    def _check(self, found: Mapping[str, Any]) -> None:
        """Compare outputs with those in a session of the default settings.

        Raises:
            VerificationError: They differ beyond rounding.
        """
        wrong = [one.output for one in compare_all(self._expected, found, None, None) if not one.ok]
        if wrong:
            raise VerificationError(f"the output '{wrong[0]}' differs beyond rounding")


def _merged(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several settings as one; lists are joined."""
    found: dict[str, Any] = {}
    for name, value in (item for one in settings for item in one.items()):
        found[name] = (*found[name], *value) if name in found else value
    return found


def _settings(together: Effect, effects: Sequence[Effect], label: str) -> list[Setting]:
    """The settings with what was measured of each."""
    low, high = together.bounds or (0.0, 0.0)
    whole = f"{together.speedup:.2f} times as fast ({low:.2f} to {high:.2f})"
    found = []
    for name, value in together.settings.items():
        alone = " and ".join(f"{one.speedup:.2f}" for one in effects if one.pays and name in one.settings)
        said = f"{alone} times as fast by itself, all together " if len(together.settings) > 1 else ""
        found.append(Setting(name, value, f"measured on this machine with {label}: {said}{whole}"))
    return found


def _hopeless(speedups: Mapping[str, Sequence[float]]) -> Collection[str]:
    """Ends the measurement of settings that cannot be worth it."""
    bounds = {name: median_bounds(found) for name, found in speedups.items() if len(found) >= FEWEST}
    return [name for name, found in bounds.items() if found is not None and found[1] < WORTH_IT]
