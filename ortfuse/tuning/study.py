"""Run the search with Optuna and store every trial in SQLite, so that an interrupted search resumes.

First come single changes (`ortfuse.tuning.coordinate_ascent`); from then on Optuna proposes settings for the best
model. The proposals follow from the finished trials, the seed and the time that is left, so that a stopped search goes
on as it would have.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import shutil
import sqlite3
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ortfuse.errors import OrtfuseError, OutputError
from ortfuse.io.sqlite import opened
from ortfuse.runtime.machine_lock import alone, locks
from ortfuse.serialization.dataclass_from_json import of_type
from ortfuse.tuning.constraints import Constraints
from ortfuse.tuning.coordinate_ascent import Ascent
from ortfuse.tuning.outcome import Point
from ortfuse.tuning.search_space import Choice, Space

if TYPE_CHECKING:
    import optuna

Sampler = Literal["tpe", "random"]
"""How choices are proposed: by what was learned, or at random (the baseline that the former has to beat)."""

Measure: TypeAlias = Callable[[int, Choice, Sequence[Point]], Point]
"""Measures a choice, as the trial of a number, with the points of all trials before."""

MOST = 10_000
"""The most trials, whatever the budget."""

REPEATS = 30
"""A search in which so many proposals in a row are known already has found what there is."""

_POINT, _SECONDS, _PASSED, _LEARNT = "point", "seconds", "passed over", "learnt"


def demand_optuna() -> None:
    """Refuse early what would fail after models were made.

    Raises:
        OrtfuseError: Optuna is not installed.
    """
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise OrtfuseError("tuning needs Optuna; install it with `pip install 'ortfuse[tune]'`") from error


@contextmanager
def no_other_search(file: Path | None) -> Iterator[Path]:
    """Have a file to oneself: each of two searches would take the other's trial for that of one that was killed.

    Yields a folder for the time of the search. The unfinished trial of a killed search in the same file is removed first.

    Raises:
        OutputError: Another search goes on in the file.
    """
    if file is None:
        with tempfile.TemporaryDirectory(prefix="ortfuse") as folder:
            yield Path(folder)
        return
    mine = f"ortfuse-tune-{hashlib.sha256(os.path.realpath(file).encode()).hexdigest()[:16]}"
    with alone(f"{mine}.lock") as free:
        if not free:
            raise OutputError(f"{file}: another search goes on there; wait until it has ended, or give another file")
        for left in Path(tempfile.gettempdir()).glob(f"{mine}-*") if locks() else ():
            shutil.rmtree(left, ignore_errors=True)  # another user's cannot be
        with tempfile.TemporaryDirectory(prefix=f"{mine}-") as folder:
            yield Path(folder)


def _storage(file: Path) -> optuna.storages.RDBStorage:
    """Keep trials in a file. It does not wait until the disk has them: only if the machine goes down may some be lost."""
    import optuna

    def connected() -> sqlite3.Connection:
        connection = opened(file, check_same_thread=False)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    return optuna.storages.RDBStorage(f"sqlite:///{file}", engine_kwargs={"creator": connected})


def _fits(takes: Callable[[Choice], float], left: float, choice: Choice) -> bool:
    return takes(choice) <= left


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
        points: Every trial so far, in order.
        seconds: What the trials so far took, and what was charged besides.
    """

    name: str
    space: Space
    constraints: Constraints
    measure: Measure
    file: Path | None = None
    sampler: Sampler = "tpe"
    seed: int = 0
    clock: Callable[[], float] = time.monotonic
    points: list[Point] = field(default_factory=list, init=False)
    seconds: float = field(default=0.0, init=False)
    _study: optuna.Study = field(init=False)
    _passed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._study = self._opened()
        trials = self._study.get_trials(False)
        try:
            self.points = [Point.from_dict(trial.user_attrs[_POINT]) for trial in trials if _POINT in trial.user_attrs]
            spent = [trial.user_attrs.get(_SECONDS, 0.0) for trial in trials]
            spent += [seconds for what, seconds in self._study.user_attrs.items() if what != _LEARNT]
            self.seconds = float(sum(of_type(list[float], spent)))
        except ValueError as error:
            raise self._not_kept(error) from None
        if strange := next((point for point in self.points if not self.space.holds(point.choice)), None):
            raise self._not_kept(ValueError(f"trial {strange.number} has a setting that is never tried"))
        self._passed = sum(_PASSED in trial.user_attrs for trial in trials)

    def run(
        self,
        budget: float,
        *,
        trials: int = MOST,
        reserve: Callable[[], float] = lambda: 0.0,
        takes: Callable[[Choice], float] = lambda choice: 0.0,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Try choices until the budget is spent, at least one.

        Args:
            budget: Seconds, those of interrupted runs included.
            trials: The most trials, those of interrupted runs included.
            reserve: The seconds that have to be left.
            takes: About how long a trial of a choice takes, making its model included. Where that is too long, it is not begun.
            progress: Called with short messages.

        Raises:
            OutputError: The file takes no more trials.
        """
        repeated, started = 0, self.clock()
        while len(self.points) < trials and repeated < REPEATS:
            left = budget - self.seconds - reserve()
            if self.points and left <= 0:
                break
            fits = functools.partial(_fits, takes, left if self.points else math.inf)
            with self._kept():
                trial = self._asked(fits)
                choice: dict[str, Any] = {
                    name: trial.suggest_categorical(name, values) for name, values in self.space.dimensions.items()
                }
            known = self.known(choice)
            if known is None and not fits(choice):
                self._pass_over(trial)
                if self.sampler != "random":  # what it was asked for is made already, so nothing fits
                    break
                repeated += 1
                continue
            number = len(self.points)
            point = self.measure(number, choice, self.points) if known is None else replace(known, number=number)
            started, seconds = (now := self.clock()), now - started
            with self._kept():
                trial.set_user_attr(_POINT, asdict(point))
                trial.set_user_attr(_SECONDS, seconds)
                for number, excess in enumerate([] if point.failure else self.constraints.violations(point)):
                    trial.set_constraint(str(number), excess)
                self._tell(trial, point)
            self.points.append(point)
            self.seconds += seconds
            progress(self._said(point))
            repeated = 0 if known is None else repeated + 1

    def learnt(self) -> dict[str, Any]:
        """The estimates that `learn` kept."""
        found = self._study.user_attrs.get(_LEARNT, {})
        return dict(found) if isinstance(found, dict) else {}

    def learn(self, what: Mapping[str, Any]) -> None:
        """Keep what was learnt beside the trials, for a search that goes on."""
        with self._kept():
            self._study.set_user_attr(_LEARNT, dict(what))

    def charge(self, what: str, seconds: float) -> float:
        """Count time that no trial took, and tell how much. Work that is done again after an interruption is counted once."""
        before = float(self._study.user_attrs.get(what, 0.0))
        if seconds > before:
            with self._kept():
                self._study.set_user_attr(what, seconds)
            self.seconds += seconds - before
        return max(seconds, before)

    def refuse(self, content: str, why: str) -> None:
        """Take no choice of a model whose digest is `content`."""
        self.points = [replace(point, failure=why) if point.content == content else point for point in self.points]

    def known(self, choice: Choice) -> Point | None:
        """The point of a choice that was tried."""
        return next((point for point in self.points if point.choice == choice), None)

    def best(self, count: int) -> list[Point]:
        """The fastest different choices that keep all constraints, fastest first."""
        found: dict[tuple[Any, ...], Point] = {}
        for point in self.points:
            if not point.failure and not self.constraints.unmet(point):
                found.setdefault(tuple(sorted(point.choice.items())), point)
        return sorted(found.values(), key=lambda point: -point.speedup)[:count]

    def _pass_over(self, trial: optuna.Trial) -> None:
        """Leave out a proposal that takes longer than there is left."""
        import optuna

        self._passed += 1
        with self._kept():
            trial.set_user_attr(_PASSED, True)
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)

    def _asked(self, affordable: Callable[[Choice], bool]) -> optuna.Trial:
        """The next trial. Each has a sampler of its own, so that it does not matter which of them an earlier process had."""
        import optuna

        waiting = self._study.get_trials(False, (optuna.trial.TrialState.WAITING,))
        given = self._given(affordable)
        if given and not waiting:
            self._study.enqueue_trial(dict(given))
        seed = self.seed + len(self.points) + self._passed
        if self.sampler == "random":
            self._study.sampler = optuna.samplers.RandomSampler(seed=seed)
        else:
            self._study.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=1)
        return self._study.ask()

    def _given(self, affordable: Callable[[Choice], bool]) -> Choice:
        """The known part of the next choice: all of it at first, and later its model, since another takes long to make. Random
        search knows nothing, not even what `optimize` makes."""
        if self.sampler == "random":
            return {}
        ascent = Ascent(self.space, self.constraints, self.known, affordable)
        proposal = ascent.proposal()
        return self.space.model(ascent.base) if proposal is None else proposal

    def _tell(self, trial: optuna.Trial, point: Point) -> None:
        import optuna

        if point.failure:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, 1.0 / point.speedup)

    def _said(self, point: Point) -> str:
        best = self.best(1)
        so_far = f"; best so far {best[0].speedup:.2f} times as fast" if best else ""
        return f"trial {len(self.points)}, {self.seconds:.0f} s{so_far}"

    @contextmanager
    def _kept(self) -> Iterator[None]:
        from optuna.exceptions import StorageInternalError
        from sqlalchemy.exc import SQLAlchemyError  # what Optuna keeps trials with

        try:
            yield
        except (StorageInternalError, SQLAlchemyError) as error:
            raise self._not_kept(error.__cause__ or error) from None

    def _not_kept(self, error: BaseException) -> OutputError:
        why = str(error).splitlines()[0]
        return OutputError(f"{self.file}: trials cannot be kept there ({why}); give another file")

    def _opened(self) -> optuna.Study:
        demand_optuna()
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        try:
            study = optuna.create_study(
                study_name=self.name,
                storage=None if self.file is None else _storage(self.file.absolute()),
                load_if_exists=True,
                direction="minimize",
            )
        except Exception as error:  # SQLAlchemy has its own errors for each database
            raise self._not_kept(error) from None
        for trial in study.get_trials(False):
            if trial.state == trial.state.RUNNING:  # its process was killed
                study.tell(trial.number, state=trial.state.FAIL)
        return study
