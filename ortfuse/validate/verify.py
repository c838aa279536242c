"""The verdict whether two models compute the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.validate.compare import Difference, compare_all
from ortfuse.validate.inputs import Inputs, bindings, input_specs, make_inputs
from ortfuse.validate.reference import Reference
from ortfuse.validate.runtime import Arrays, Session


@dataclass
class Trial:
    """One set of inputs: what its dimensions were, under which settings the optimised model ran, how outputs compare."""

    label: str
    optimise: bool
    differences: list[Difference]


@dataclass
class Verdict:
    """Whether the optimised model computes what the original computes, on everything tried."""

    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def differences(self) -> list[Difference]:
        """All comparisons."""
        return [difference for trial in self.trials for difference in trial.differences]

    @property
    def ok(self) -> bool:
        """Whether something was compared and everything was within tolerance."""
        return bool(self.trials) and all(difference.ok for difference in self.differences)

    @property
    def worst(self) -> Difference | None:
        """The comparison that failed or came closest to it."""
        return max(self.differences, key=lambda found: (not found.ok, found.relative), default=None)

    def largest(self, name: str) -> float | None:
        """The largest value of a field of all comparisons (`absolute`, `relative`, `optimised_error`, ...)."""
        return max((value for found in self.differences if (value := getattr(found, name)) is not None), default=None)

    def summary(self) -> str:
        """The verdict in a line or two."""
        worst = self.worst
        if worst is None:
            return "nothing could be compared: " + "; ".join(self.notes)
        if not self.ok:
            where = (
                f" at {list(worst.element)}: {worst.expected} became {worst.found}" if worst.element is not None else ""
            )
            return f"output '{worst.output}' differs{where} ({worst.reason})"
        text = f"equal on {len(self.trials)} runs, largest error {self.largest('absolute'):.3g}"
        text += f" ({self.largest('relative'):.3g} of the output's largest magnitude)"
        ours, theirs = self.largest("optimised_error"), self.largest("original_error")
        if ours is not None and theirs is not None:
            text += f"; against float64: original {theirs:.3g}, optimised {ours:.3g}"
        return text

    def to_dict(self) -> dict[str, Any]:
        """The verdict as data for JSON."""
        return {
            "ok": self.ok,
            "summary": self.summary(),
            "notes": self.notes,
            "trials": [
                {"inputs": trial.label, "runtime_optimisations": trial.optimise,
                 "outputs": [difference.to_dict() for difference in trial.differences]}
                for trial in self.trials
            ],
        }  # fmt: skip


@dataclass
class Experiment:
    """The original on some inputs: what every candidate is compared with."""

    label: str
    inputs: Inputs
    expected: Arrays
    reference: Arrays | None


def experiments(
    original: ir.Model, inputs: Sequence[Inputs] | None = None, seed: int = 0, reference: bool = True
) -> tuple[list[Experiment], list[str]]:
    """Run the original, without the runtime's own optimisations, on the user's inputs or on generated ones.

    Returns the experiments and notes on inputs that had to be left out. Raises VerificationError when the original runs
    on none of them.
    """
    session = Session(original, optimise=False)
    yardstick = Reference(original) if reference else None
    notes: list[str] = []
    found: list[Experiment] = []
    for label, given in _candidates(original, inputs, seed, found):
        try:
            expected = session.run(given)
        except VerificationError as error:
            notes.append(f"left out {label}: {error}")
            continue
        found.append(Experiment(label, given, expected, yardstick.run(given) if yardstick is not None else None))
    if not found:
        raise VerificationError("the original model runs on none of the inputs tried: " + "; ".join(notes))
    if yardstick is not None and yardstick.reason is not None:
        notes.append(f"no float64 evaluation: {yardstick.reason}")
    return found, notes


def _candidates(
    original: ir.Model, inputs: Sequence[Inputs] | None, seed: int, found: list[Experiment]
) -> Iterable[tuple[str, Inputs]]:
    if inputs is not None:
        yield from ((f"given inputs {number}", given) for number, given in enumerate(inputs))
        return
    specs = input_specs(original)
    wanted, fallback = bindings(specs)
    for number, sizes in enumerate(wanted):
        yield _label(sizes), make_inputs(specs, sizes, seed + number)
    for number, sizes in enumerate(fallback):
        if len(found) >= 2:
            return
        yield _label(sizes), make_inputs(specs, sizes, seed + number)


def _label(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "fixed shapes"


def judge(
    found: Sequence[Experiment],
    optimised: ir.Model,
    tolerance: float | None = None,
    levels: Sequence[bool] = (False, True),
) -> list[Trial]:
    """Run a candidate on every experiment, with and without the runtime's own optimisations, and compare."""
    trials = []
    for optimise in levels:
        session = Session(optimised, optimise=optimise)
        for experiment in found:
            outputs = session.run(experiment.inputs)
            differences = compare_all(experiment.expected, outputs, experiment.reference, tolerance)
            trials.append(Trial(experiment.label, optimise, differences))
    return trials


def verify(
    original: ir.Model,
    optimised: ir.Model,
    *,
    inputs: Sequence[Inputs] | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    reference: bool = True,
) -> Verdict:
    """Compare two models on generated inputs of several sizes, or on `inputs`.

    Args:
        original: Run without the runtime's own optimisations, which might be what is wrong.
        optimised: Run without and with them.
        inputs: Sets of inputs by name, instead of generated ones.
        seed: Of the generated inputs.
        tolerance: Allowed error relative to an output's largest magnitude; by default that of its element type.
        reference: Whether to evaluate the original in float64 too, where that is feasible.

    Raises:
        VerificationError: One of the models cannot be executed, or their inputs or outputs have other names.
    """
    _same_interface(original, optimised)
    found, notes = experiments(original, inputs, seed, reference)
    return Verdict(judge(found, optimised, tolerance), notes)


def _same_interface(original: ir.Model, optimised: ir.Model) -> None:
    for what in ("inputs", "outputs"):
        before = [value.name for value in getattr(original.graph, what)]
        after = [value.name for value in getattr(optimised.graph, what)]
        if before != after:
            raise VerificationError(f"the models have other {what}: {before} and {after}")
