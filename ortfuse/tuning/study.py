"""Drives the search with Optuna and keeps every trial in SQLite, so that a search that was stopped goes on where it was."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ortfuse.errors import OrtfuseError, OutputError
from ortfuse.tuning.constraints import Constraints
from ortfuse.tuning.outcome import Point
from ortfuse.tuning.space import Choice, Space

if TYPE_CHECKING:
    import optuna

Sampler = Literal["tpe", "random"]
"""How choices are proposed: by what was learned, or at random (the baseline that the former has to beat)."""

MOST = 10_000
"""The most trials, whatever the budget."""

_POINT, _SECONDS = "point", "seconds"


@dataclass
class Study:
    """The search over a space.

    Attributes:
        name: What the trials belong to: the model, the inputs, the options and the machine, as a digest.
        space: The space.
        constraints: The limits.
        measure: Measures a choice.
        file: The SQLite file; `None` to keep trials in memory.
        sampler: How choices are proposed.
        seed: The seed of the sampler.
        clock: Seconds that pass.
    """

    name: str
    space: Space
    constraints: Constraints
    measure: Callable[[int, Choice], Point]
    file: Path | None = None
    sampler: Sampler = "tpe"
    seed: int = 0
    clock: Callable[[], float] = time.monotonic
    _study: optuna.Study = field(init=False)

    def __post_init__(self) -> None:
        self._study = self._opened()

    def run(self, budget: float, *, trials: int = MOST, progress: Callable[[str], None] = lambda text: None) -> None:
        """Try choices until the budget is spent.

        Args:
            budget: Seconds, those of interrupted runs included.
            trials: The most trials, those of interrupted runs included.
            progress: Called with short messages.
        """
        while self.seconds < budget and len(self.points) < trials:
            started = self.clock()
            trial = self._study.ask()
            choice: dict[str, Any] = {
                name: trial.suggest_categorical(name, values) for name, values in self.space.dimensions.items()
            }
            known = next((point for point in self.points if point.choice == choice), None)
            point = self.measure(trial.number, choice) if known is None else known
            trial.set_user_attr(_POINT, point.to_dict())
            trial.set_user_attr(_SECONDS, self.clock() - started)
            for number, excess in enumerate([] if point.failure else self.constraints.violations(point)):
                trial.set_constraint(str(number), excess)
            self._tell(trial, point)
            progress(self._said(point))
            if known is not None and self._is_exhausted():
                break

    @property
    def points(self) -> list[Point]:
        """Every trial so far, in order."""
        import optuna

        finished = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.FAIL)
        kept = [trial.user_attrs.get(_POINT) for trial in self._study.get_trials(False, finished)]
        return [Point(**one) for one in kept if one is not None]

    @property
    def seconds(self) -> float:
        """The seconds that the trials so far took."""
        return float(sum(trial.user_attrs.get(_SECONDS, 0.0) for trial in self._study.get_trials(False)))

    def best(self, count: int) -> list[Point]:
        """The fastest different choices that keep all constraints, fastest first."""
        found: dict[tuple[Any, ...], Point] = {}
        for point in self.points:
            if not point.failure and not self.constraints.unmet(point):
                found.setdefault(tuple(sorted(point.choice.items())), point)
        return sorted(found.values(), key=lambda point: -point.speedup)[:count]

    def _tell(self, trial: optuna.Trial, point: Point) -> None:
        import optuna

        if point.failure:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, 1.0 / point.speedup)

    def _said(self, point: Point) -> str:
        best = self.best(1)
        so_far = f"; best so far {best[0].speedup:.2f} times as fast" if best else ""
        return f"trial {point.number + 1}, {self.seconds:.0f} s{so_far}"

    def _is_exhausted(self) -> bool:
        """Whether the space is so small that every choice has been tried."""
        size = 1
        for values in self.space.dimensions.values():
            size *= len(values)
        return len({tuple(sorted(point.choice.items())) for point in self.points}) >= size

    def _opened(self) -> optuna.Study:
        try:
            import optuna
        except ImportError as error:
            raise OrtfuseError("tuning needs Optuna; install it with `pip install ortfuse[tune]`") from error
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        try:
            study = optuna.create_study(
                study_name=self.name,
                storage=None if self.file is None else f"sqlite:///{self.file.absolute()}",
                load_if_exists=True,
                direction="minimize",
            )
        except Exception as error:  # SQLAlchemy has its own errors for each database
            why = str(error).splitlines()[0]
            raise OutputError(f"{self.file}: trials cannot be kept there ({why}); give another file") from None
        for trial in study.get_trials(False):
            if trial.state == trial.state.RUNNING:  # its process was killed
                study.tell(trial.number, state=trial.state.FAIL)
        # A sampler that goes on must not propose again what it proposed at the start.
        study.sampler = self._sampler(self.seed + len(study.get_trials(False)))
        for choice in self._not_yet(study):
            study.enqueue_trial(dict(choice))
        return study

    def _not_yet(self, study: optuna.Study) -> Sequence[Choice]:
        """The choices to start with that were not tried yet; none for the random search."""
        if self.sampler == "random":
            return [self.space.usual] if not study.get_trials(False) else []
        trials = study.get_trials(False)
        tried = [trial.params for trial in trials if _POINT in trial.user_attrs]
        tried += [trial.system_attrs.get("fixed_params", {}) for trial in trials if trial.state == trial.state.WAITING]
        return [choice for choice in self.space.starts if dict(choice) not in tried]

    def _sampler(self, seed: int) -> Any:
        import optuna

        if self.sampler == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        return optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=len(self.space.starts))
