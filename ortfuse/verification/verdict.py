"""Run a candidate on the inputs of the original, and sum up how its outputs compare."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ortfuse.errors import CrashError, VerificationError
from ortfuse.runtime.comparison import Difference, compare_all, failed
from ortfuse.runtime.inputs.coverage_guided_inputs import Exercise
from ortfuse.runtime.reference_runs import Experiment
from ortfuse.runtime.session import Session
from ortfuse.runtime.unrepresentable_models import Runnable
from ortfuse.runtime.verification_time_budget import Budget
from ortfuse.serialization import Record, derived, entry
from ortfuse.verification.runtime_changes import RuntimeChange


@dataclass(frozen=True)
class Trial(Record):
    """The result of running a candidate on one set of inputs.

    Attributes:
        inputs: A description of the input sizes.
        runtime_optimisations: Whether the runtime's own optimisations were on.
        outputs: How each output compares.
        refusal: The runtime's message if it could not load or run the candidate; all outputs then count as different.
        crashed: Whether the runtime crashed or hung instead of giving an error; `refusal` then says how.
    """

    inputs: str
    runtime_optimisations: bool
    outputs: list[Difference]
    refusal: str = ""
    crashed: bool = field(default=False, metadata=entry(omit=True))

    def fails_like(self, other: Trial) -> bool:
        """Whether it fails in the same way: wrong outputs, a refused model, or a crash."""
        mine, theirs = ((bool(one.refusal), one.crashed) for one in (self, other))
        return not self.ok and mine == theirs

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.inputs}, {'equal' if self.ok else 'not equal'}>"

    @property
    @derived()
    def ok(self) -> bool:
        """Whether every output passes."""
        return all(difference.ok for difference in self.outputs)

    @property
    def worst(self) -> Difference | None:
        """The comparison that failed, or came closest to failing."""
        return max(self.outputs, key=_badness, default=None)


def _badness(difference: Difference) -> tuple[bool, float]:
    return not difference.ok, difference.relative


State = Literal[
    "equal",
    "equal as far as exercised",
    "equal within the model's own sensitivity",
    "not equal",
    "not compared",
    "within the bound",
    "above the bound",
]

MOST_REMARKS = 3
"""The most remarks on what was not exercised that the summary quotes."""


@dataclass
class Verdict(Record):
    """Whether the optimised model computes the same as the original, on everything that was tried.

    Attributes:
        trials: The comparisons.
        notes: What was left out, and why.
        exercise: What the runs show of the original; it decides how much a verdict of equality says. `None` if it is not known.
        tolerance: The allowed relative error that was asked for; `None` for the usual rules.
        runtime: What the runtime's own optimisations change in the original; `None` if nothing beyond rounding was seen.
    """

    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    exercise: Exercise | None = None
    tolerance: float | None = field(default=None, metadata=entry(omit=True))
    runtime: RuntimeChange | None = None

    @property
    def differences(self) -> list[Difference]:
        """All comparisons."""
        return [difference for trial in self.trials for difference in trial.outputs]

    @property
    @derived()
    def ok(self) -> bool:
        """Whether something was compared and everything passed."""
        return bool(self.trials) and not self._shows_nothing and all(trial.ok for trial in self.trials)

    def __bool__(self) -> bool:
        """The same as `ok`, so that a verdict can be asserted."""
        return self.ok

    @property
    def _shows_nothing(self) -> bool:
        return self.exercise is not None and self.exercise.shows_nothing

    @property
    @derived()
    def state(self) -> State:
        """Equal, as far as parts of the model ran or its own sensitivity lets anyone tell (`weigh`), or not equal.

        Outputs that were empty in every run were not compared.
        """
        if not self.ok:
            return "not compared" if self._shows_nothing and all(trial.ok for trial in self.trials) else "not equal"
        if self.excused:
            return "equal within the model's own sensitivity"
        return "equal" if self.exercise is None or self.exercise.is_complete else "equal as far as exercised"

    @property
    def excused(self) -> dict[str, Difference]:
        """The largest difference of each output that passes only because the original is as sensitive."""
        found: dict[str, Difference] = {}
        for difference in sorted(self.differences, key=_badness):
            if difference.ok and difference.criterion in ("sensitivity", "near ties"):
                found[difference.output] = difference
        return found

    @property
    def alike(self) -> str:
        """Why outputs that the runtime's optimisations move are equal nevertheless: they move those of the original alike."""
        return next((found.reason for found in self.differences if found.criterion == "the same level"), "")

    @property
    def allowed(self) -> str:
        """Why an error above the usual tolerance is equal nevertheless; empty if there is none."""
        above = [one for one in self.differences if one.ok and one.criterion == "float64" and one.reason]
        worst = max(above, key=lambda one: one.relative, default=None)
        return "" if worst is None else f"output '{worst.output}': {worst.reason}"

    @property
    def worst(self) -> Difference | None:
        """The comparison that failed, or came closest to failing."""
        return max(self.differences, key=_badness, default=None)

    @property
    def only_optimised(self) -> bool:
        """Whether the candidate is wrong only with the runtime's own optimisations on, which makes them the suspect."""
        return not self.ok and all(trial.ok for trial in self.trials if not trial.runtime_optimisations)

    def largest(self, name: str) -> float | None:
        """The largest value of a field (`absolute`, `relative`, `optimised_error`, ...) over all comparisons."""
        return max((value for found in self.differences if (value := getattr(found, name)) is not None), default=None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline()}>"

    def headline(self) -> str:
        """The verdict in a few words."""
        if not self.ok:
            return self.summary()
        return f"{self.state} on {len(self.trials)} runs, largest error {self.largest('relative') or 0.0:.3g}"

    @derived()
    def summary(self) -> str:
        """The verdict in one or two lines."""
        if not self.differences:
            return "nothing could be compared: " + "; ".join(self.notes)
        if self.state == "not compared":
            return "all outputs were empty in every run; give inputs on which they are not with --inputs"
        return self._agreement() + self._not_exercised() if self.ok else self._disagreement()

    def _agreement(self) -> str:
        text = f"{self.state} on {len(self.trials)} runs, largest error {self.largest('relative'):.3g} of the output's scale"
        text += f" ({self.largest('absolute'):.3g})"
        ours, theirs = self.largest("optimised_relative"), self.largest("original_relative")
        if ours is not None and theirs is not None:
            text += f"; against float64: original {theirs:.3g}, optimised {ours:.3g}"
        reasons = [one for one in (self.alike, self.allowed) if one]
        return "; ".join([text, *reasons])

    def _not_exercised(self) -> str:
        remarks = [] if self.exercise is None else self.exercise.remarks()
        if not remarks:
            return ""
        more = f" (and {len(remarks) - MOST_REMARKS} more)" if len(remarks) > MOST_REMARKS else ""
        return f"; not exercised: {'; '.join(remarks[:MOST_REMARKS])}{more}"

    def _disagreement(self) -> str:
        trial = max(
            (trial for trial in self.trials if not trial.ok), key=lambda trial: _badness(trial.worst or _NOTHING)
        )
        if trial.crashed:
            return f"{trial.refusal} with {trial.inputs}{self._only_optimised_text()}"
        if trial.refusal:
            return f"the model does not run with {trial.inputs}: {trial.refusal}{self._only_optimised_text()}"
        worst = trial.worst or _NOTHING
        where = f" at {list(worst.element)}: {worst.expected} became {worst.found}" if worst.element is not None else ""
        return (
            f"output '{worst.output}' differs{where} ({worst.reason}) with {trial.inputs}{self._only_optimised_text()}"
        )

    def _only_optimised_text(self) -> str:
        return ", but only with the runtime's own optimisations" if self.only_optimised else ""


class Judged(Record):
    """A rewrite whose two sides were compared, if possible."""

    verdict: Verdict | None

    @property
    @derived()
    def error_before(self) -> float | None:
        """Largest error of the old nodes against float64; `None` where float64 evaluation is not feasible."""
        return None if self.verdict is None else self.verdict.largest("original_error")

    @property
    @derived()
    def error_after(self) -> float | None:
        """Largest error of the new nodes against float64."""
        return None if self.verdict is None else self.verdict.largest("optimised_error")

    def errors(self) -> str:
        """Both errors as text; empty if there are none."""
        if self.error_before is None or self.error_after is None:
            return ""
        return f"error against float64 {self.error_before:.3g} before, {self.error_after:.3g} after"


_NOTHING = Difference("", True, 0.0, 0.0)


def judge(
    found: Sequence[Experiment],
    candidate: Runnable | Path,
    tolerance: float | None = None,
    levels: Sequence[bool] = (False, True),
    budget: Budget | None = None,
) -> list[Trial]:
    """Run a candidate (a model or a file) on every experiment, with and without the runtime's optimisations, and compare.

    A candidate that crashes the runtime, or fails where the original runs, counts as different in all outputs.

    Args:
        found: The experiments, the most telling first.
        candidate: The model, or the path of one.
        tolerance: Allowed relative error; `None` for the usual rules.
        levels: Whether the runtime's optimisations are on, in turn.
        budget: The time for all of it: what it does not allow is left out, but for one experiment at each level.
    """
    budget = Budget() if budget is None else budget
    return [
        trial
        for number, optimise in enumerate(levels)
        for trial in judge_session(
            functools.partial(Session, candidate, optimise=optimise),
            found,
            tolerance,
            optimise=optimise,
            seconds=budget.left / (len(levels) - number),
        )
    ]


def judge_session(
    make: Callable[[], Session],
    found: Sequence[Experiment],
    tolerance: float | None = None,
    *,
    optimise: bool,
    seconds: float = math.inf,
) -> list[Trial]:
    """Run the session created by `make` on experiments.

    Args:
        make: Creates the session.
        found: The experiments.
        tolerance: Allowed relative error; `None` for the usual rules.
        optimise: Whether the session's runtime optimises.
        seconds: After these the remaining experiments are left out, but for the first.
    """
    started = time.monotonic()
    try:
        session = make()
    except VerificationError as error:
        return [_refused(experiment, optimise, error) for experiment in found]
    trials: list[Trial] = []
    for experiment in found:
        if trials and time.monotonic() - started > seconds:
            break
        try:
            outputs = session.run(experiment.inputs)
        except VerificationError as error:
            trials.append(_refused(experiment, optimise, error))
        else:
            differences = compare_all(
                experiment.expected, outputs, experiment.reference, tolerance, experiment.precision
            )
            trials.append(Trial(experiment.label, optimise, differences))
    return trials


def _refused(experiment: Experiment, optimise: bool, error: VerificationError) -> Trial:
    differences = [failed(name, str(error)) for name in experiment.expected]
    return Trial(experiment.label, optimise, differences, str(error), isinstance(error, CrashError))
