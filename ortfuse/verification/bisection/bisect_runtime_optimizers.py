"""Bisect ONNX Runtime's own optimisers: find the smallest set of them that moves an output beyond tolerance.

The runtime logs which of its optimisers changed a model. Delta debugging narrows those down, disabling the others by
name. The model as optimised by the culprits is then written out and compared with the original value by value, in the
order of computation: the first value that is off is the site.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ortfuse.errors import OrtfuseError, VerificationError
from ortfuse.io.load_and_save import load, save
from ortfuse.runtime.comparison import Difference, compare
from ortfuse.runtime.float64.reference import Reference
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.reference_runs import Experiment, explored
from ortfuse.runtime.session import Session, log
from ortfuse.runtime.submodel import computing
from ortfuse.serialization import Record, derived
from ortfuse.verification.bisection.delta_debugging import smallest
from ortfuse.verification.bisection.rounding_or_wrong_edit import Nature
from ortfuse.verification.verdict import Trial, Verdict, judge_session

_RULES = (
    "EliminateIdentity", "EliminateSlice", "UnsqueezeElimination", "EliminateDropout", "ExpandElimination",
    "CastElimination", "PreShapeNodeElimination", "NoopElimination", "DivMulFusion", "FuseReluClip", "GemmSumFusion",
    "GemmTransposeFusion", "NotWhereFusion", "ConvAddFusion", "ConvMulFusion", "ConvBNFusion", "Pad_Fusion",
    "MatMul_BatchNormalization_Fusion", "LabelEncoderFusion", "ClipQuantRewrite", "ReluQuantRewrite",
    "CastChainElimination",
)  # fmt: skip
"""Rewrite rules that the runtime runs as part of `Level1_RuleBasedTransformer` and `Level2_RuleBasedTransformer`."""

_RULE_BASED = "_RuleBasedTransformer"
_APPLIED = re.compile(r"GraphTransformer (\S+) modified: ([01])")

Disabled = Callable[[Collection[str]], Session]
"""Creates a session of the model with these optimisers disabled."""


@dataclass(frozen=True)
class RuntimeSite:
    """A value moved by the runtime's optimisers.

    Attributes:
        value: Its name, the same before and after.
        operator: The operator that computes it after optimisation.
        before: The operator that computes it in the model.
        difference: The comparison; "original" is before optimisation, "optimised" after.
        nature: Whether it is rounding or a wrong rewrite.
    """

    value: str
    operator: str
    before: str
    difference: Difference
    nature: Nature


@dataclass(frozen=True)
class RuntimeBisection(Record):
    """The result of bisecting the runtime's optimisers.

    Attributes:
        verdict: How the model with all of the runtime's optimisations compares with the model without them.
        optimisers: The smallest set that moves an output; empty if nothing moves, or if the optimiser to blame has no name.
        candidates: The optimisers that changed the model.
        site: The first value that is off.
        runs: How many sessions were created.
    """

    verdict: Verdict
    optimisers: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    site: RuntimeSite | None = None
    runs: int = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'; '.join(self.lines())}>"

    @property
    @derived()
    def moved(self) -> bool:
        """Whether an output moves beyond tolerance."""
        return not self.verdict.ok

    def lines(self) -> list[str]:
        """The finding as lines of text."""
        if not self.moved:
            return [f"the runtime's optimisers move no output beyond tolerance: {self.verdict.summary()}"]
        found = [self.verdict.summary(), f"optimisers that changed the model: {', '.join(self.candidates) or 'none'}"]
        if not self.optimisers:
            found.append("it is so with all of them disabled: what does it is none that has a name")
        else:
            names = ", ".join(self.optimisers)
            found.append(f"to blame: {names}; InferenceSession(..., disabled_optimizers={list(self.optimisers)})")
        if self.site is not None:
            found.append(_site_text(self.site))
        return [*found, f"{self.runs} sessions were made"]


def _site_text(site: RuntimeSite) -> str:
    found = site.difference
    text = f"site: '{site.value}', computed by {site.before} before and {site.operator} after. {site.nature.upper()}: "
    if found.original_error is not None and found.optimised_error is not None:
        return text + f"error against float64 {found.original_error:.3g} before, {found.optimised_error:.3g} after"
    return text + f"error against the original {found.absolute:.3g} (no float64 evaluation)"


def bisect_runtime(
    original: ir.Model,
    *,
    inputs: Sequence[Inputs] | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    session: Disabled | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> RuntimeBisection:
    """Find the smallest set of the runtime's own optimisers that moves an output of `original` beyond tolerance.

    Args:
        original: The model; it is not changed.
        inputs: Sets of inputs by name, used instead of generated ones.
        seed: Seed of the generated inputs.
        tolerance: Allowed relative error; the default is given in `ortfuse.runtime.comparison`.
        session: Creates a session with some optimisers disabled; by default in the installed runtime.
        progress: Called with a short text on what is being done.

    Raises:
        VerificationError: The model cannot be executed without the runtime's optimisations, or is too large to run in a
            separate process.
    """
    progress("running the model without optimisations")
    looked = explored(original, inputs, seed)
    found, notes = looked.experiments, looked.notes
    make = session or (lambda disabled: Session(original, disabled=disabled))
    changed, seen = _optimisers(original)
    trials = _trials(make, (), found, tolerance)
    verdict = Verdict(trials, notes, looked.exercise, tolerance)
    if verdict.ok:
        return RuntimeBisection(verdict, candidates=tuple(changed), runs=1)
    failing = max((trial for trial in trials if not trial.ok), key=lambda trial: _relative(trial))
    experiment = next(one for one in found if one.label == failing.inputs)
    search = _Search(make, seen, experiment, failing, tolerance, progress)
    culprits = search.run(changed)
    site = _site(original, search.names - set(culprits) - search.helpers, experiment) if culprits else None
    return RuntimeBisection(verdict, tuple(culprits), tuple(changed), site, search.runs)


def changing(model: ir.Model, experiment: Experiment) -> tuple[str, ...]:
    """The smallest set of the runtime's own optimisers that changes a model on an experiment; empty if none has a name."""
    try:
        changed, seen = _optimisers(model)
        trials = _trials(lambda disabled: Session(model, disabled=disabled), (), [experiment], None)
        if trials[0].ok:
            return ()
        search = _Search(
            lambda disabled: Session(model, disabled=disabled), seen, experiment, trials[0], None, lambda text: None
        )
        return tuple(search.run(changed))
    except VerificationError:
        return ()


def breaking(model: ir.Model, session: Disabled | None = None) -> tuple[str, ...]:
    """The smallest set of the runtime's own optimisers with which it does not load a model; empty if none has a name.

    Args:
        model: The model; it is not changed.
        session: Creates a session with some optimisers disabled; by default in the installed runtime, without large weights.
    """
    make = session or (lambda disabled: Session(model, disabled=disabled, weightless=True))
    try:
        changed, seen = _optimisers(model)
    except VerificationError:
        return ()
    names = frozenset({*seen, *_RULES})

    def fails(enabled: Collection[str]) -> bool:
        try:
            make(sorted(names - set(enabled)))
        except VerificationError:
            return True
        return False

    return tuple(_culprits(changed, seen, fails)[0])


def _relative(trial: Trial) -> float:
    return trial.worst.relative if trial.worst else 0.0


def _trials(
    make: Disabled, disabled: Collection[str], found: Sequence[Experiment], tolerance: float | None
) -> list[Trial]:
    return judge_session(lambda: make(disabled), found, tolerance, optimise=True)


class _Search:
    def __init__(
        self,
        make: Disabled,
        seen: Collection[str],
        experiment: Experiment,
        failing: Trial,
        tolerance: float | None,
        progress: Callable[[str], None],
    ) -> None:
        self._make, self._experiment, self._tolerance, self._progress = make, experiment, tolerance, progress
        self._failing = failing
        self._seen, self.names = seen, frozenset({*seen, *_RULES})
        self.helpers: frozenset[str] = frozenset()
        self.runs = 2

    def run(self, changed: Sequence[str]) -> list[str]:
        """The optimisers to blame; if one of them is a set of rules, the rules within it."""
        culprits, self.helpers = _culprits(changed, self._seen, self._moves)
        return culprits

    def _moves(self, enabled: Collection[str]) -> bool:
        self.runs += 1
        self._progress(f"session {self.runs}")
        trials = _trials(self._make, sorted(self.names - set(enabled)), [self._experiment], self._tolerance)
        return trials[0].fails_like(self._failing)


def _culprits(
    changed: Sequence[str], seen: Collection[str], shows: Callable[[Collection[str]], bool]
) -> tuple[list[str], frozenset[str]]:
    """The smallest set of optimisers that shows an effect, and the sets of rules that those among them which are rules need."""
    if shows(()):
        return [], frozenset()
    # If an optimiser crashes the runtime, neither it nor those that would follow get to log that they changed the model.
    candidates = (list(changed), sorted(seen))
    everything = next((some for some in candidates if some and shows([*some, *_RULES])), None)
    if everything is None:
        return [], frozenset()
    groups = smallest(everything, lambda some: shows([*some, *_RULES]))
    helpers = frozenset(name for name in groups if name.endswith(_RULE_BASED))
    if not helpers:
        return groups, helpers
    units = [*(name for name in groups if name not in helpers), *_RULES]
    return smallest(units, lambda some: shows([*some, *helpers])), helpers


def _optimisers(model: ir.Model) -> tuple[list[str], set[str]]:
    """The optimisers that change a model, in order of application, and all those that are tried."""
    with suppress(VerificationError):  # whatever was applied before a failure is in the log
        Session(model, verbose=True)
    found = _APPLIED.findall(log())
    if not found:
        raise VerificationError("the runtime's log names no optimiser: it can be read only of a process of its own")
    return list(dict.fromkeys(name for name, hit in found if hit == "1")), {name for name, _ in found}


def _site(model: ir.Model, disabled: Collection[str], experiment: Experiment) -> RuntimeSite | None:
    """The first value that is off in the model as optimised by the culprits, else the one that moves most."""
    try:
        changed = _as_executed(model, disabled)
        names = _changed_values(model, changed)
        before = _run_with(model, names, experiment.inputs)
        after = _run_with(changed, names, experiment.inputs)
        truth = Reference(_with_outputs(model, names)).run(experiment.inputs) or {}
    except OrtfuseError:
        return None
    found = [compare(name, before[name], after[name], truth.get(name)) for name in names]
    wrong = next((one for one in found if not one.ok), None)
    chosen = wrong or max(found, key=lambda one: one.relative, default=None)
    if chosen is None:
        return None
    nature: Nature = "rounding" if wrong is None else "wrong rewrite"
    return RuntimeSite(
        chosen.output, _producer(changed, chosen.output), _producer(model, chosen.output), chosen, nature
    )


def _as_executed(model: ir.Model, disabled: Collection[str]) -> ir.Model:
    with tempfile.TemporaryDirectory(prefix="ortfuse") as folder:
        source, target = Path(folder) / "model.onnx", Path(folder) / "executed.onnx"
        save(model, source)
        Session(source, disabled=disabled, dump=target)
        return load(target).clone()


def _changed_values(model: ir.Model, changed: ir.Model) -> list[str]:
    """Values that both models compute but in different ways, in the order of `changed`."""
    ways = {output.name: _computation(node) for node in model.graph for output in node.outputs}
    return [
        output.name
        for node in changed.graph
        for output in node.outputs
        if output.name and output.name in ways and ways[output.name] != _computation(node)
    ]


def _computation(node: ir.Node) -> tuple[str, str, tuple[str | None, ...]]:
    return node.domain, node.op_type, tuple(None if value is None else value.name for value in node.inputs)


def _with_outputs(model: ir.Model, names: Collection[str]) -> ir.Model:
    """A model that outputs these values, computed from the same inputs."""
    values = {output.name: output for node in model.graph for output in node.outputs}
    return computing(model, [(name, values[name]) for name in names])


def _run_with(model: ir.Model, names: Collection[str], inputs: Inputs) -> dict[str, object]:
    if not names:
        raise VerificationError("no value of the model is computed in another way")
    return dict(Session(_with_outputs(model, names), optimise=False).run(inputs))


def _producer(model: ir.Model, name: str) -> str:
    node = next(node for node in model.graph for output in node.outputs if output.name == name)
    return f"{node.op_type} '{node.name}'"
