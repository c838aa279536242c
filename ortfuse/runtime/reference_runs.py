"""Run the original on inputs of several sizes, for the results that every candidate is compared with."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.runtime.branch_coverage import Coverage
from ortfuse.runtime.float64.coarsest_output_precision import coarsest
from ortfuse.runtime.float64.reference import Reference
from ortfuse.runtime.inputs.coverage_guided_inputs import Exercise, Ran, Shown
from ortfuse.runtime.inputs.generation import Generation, searches_for
from ortfuse.runtime.inputs.random_inputs import Inputs, InputSpec
from ortfuse.runtime.inputs.sizes import Search
from ortfuse.runtime.session import Arrays, Session
from ortfuse.runtime.strict_session import StrictSession
from ortfuse.runtime.unrepresentable_models import AsItIs, Runnable, signature_of
from ortfuse.runtime.verification_time_budget import EVALUATING, Budget


@dataclass(frozen=True)
class Experiment:
    """The original on one set of inputs: its outputs and, if possible, those of its evaluation in float64.

    `precision` is the coarsest floating-point type that each output is computed in.
    """

    label: str
    inputs: Inputs
    expected: Arrays
    reference: Arrays | None
    precision: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Explored:
    """The original on several sets of inputs.

    Attributes:
        experiments: The runs.
        notes: Sizes that the original does not accept, and anything else that was left out.
        exercise: What the runs show of the original.
    """

    experiments: list[Experiment]
    notes: list[str]
    exercise: Exercise


def explored(
    original: Runnable,
    inputs: Sequence[Inputs] | None = None,
    seed: int = 0,
    reference: bool = True,
    *,
    sizes: Mapping[str, int] | None = None,
    budget: Budget | None = None,
) -> Explored:
    """Run the original on the user's inputs or on generated ones, which are to exercise all of it.

    Generated inputs have all open dimensions 1, odd, larger, and batches of one; then others are looked for that show what these
    do not (`ortfuse.runtime.inputs.coverage_guided_inputs`).

    Args:
        original: The model; see `experiments`.
        inputs: Sets of inputs by name, instead of generated ones.
        seed: Seed of the generated inputs.
        reference: Whether to evaluate in float64 too, where that is feasible.
        sizes: Sizes of open dimensions, by name, for one more set of inputs.
        budget: The time that all this may take; `None` for no limit.

    Raises:
        VerificationError: The original cannot be executed on one of the given inputs, or on none of the sizes tried.
    """
    budget = Budget() if budget is None else budget
    graph = signature_of(original)
    session = StrictSession(original) if inputs is None else Session(original, optimise=False)
    notes: list[str] = []
    shown = Shown(Coverage(graph))
    if inputs is not None:
        ran = [_given(session, number, array) for number, array in enumerate(inputs)]
        for one in ran:
            shown.take(one, shown.coverage.reached(one[1]))
        single: list[str] = []
    else:
        search = searches_for(graph)
        ran, single = Generation(session, graph, search, seed, notes, budget).run(sizes or {}, shown)
    del session  # frees its memory before the next evaluation, which needs as much
    found = _experiments(original, ran, notes, budget, reference=reference)
    return Explored(found, notes, shown.exercise(single))


def experiments(
    original: Runnable,
    inputs: Sequence[Inputs] | None = None,
    seed: int = 0,
    reference: bool = True,
    specs: Sequence[InputSpec] | None = None,
    also: Callable[[Inputs], Inputs] | None = None,
) -> tuple[list[Experiment], list[str]]:
    """Run the original, without the runtime's own optimisations, on the user's inputs or on generated ones.

    Args:
        original: The model; not changed, and later changes to it have no effect on the result. One that no graph can represent
            is not evaluated in float64, and its inputs are generated without looking at what it does with them.
        inputs: Sets of inputs by name. If not given, inputs are generated with all open dimensions 1, odd and larger, and with
            empty caches where the original accepts these.
        seed: Seed of the generated inputs.
        reference: Whether to evaluate in float64 too, where that is feasible.
        specs: The specification of generated inputs; by default derived from the model.
        also: Derives one more set of inputs, for an additional experiment, from the last generated one.

    Returns:
        The experiments, and notes on sizes that the original does not accept and on anything else that was left out.

    Raises:
        VerificationError: The original cannot be executed on one of the given inputs, or on none of the sizes tried.
    """
    graph, budget = signature_of(original), Budget()
    session = StrictSession(original) if inputs is None else Session(original, optimise=False)
    notes: list[str] = []
    if inputs is not None:
        ran = [_given(session, number, array) for number, array in enumerate(inputs)]
    else:
        search = searches_for(graph) if specs is None else functools.partial(Search, specs)
        made = Generation(session, graph, search, seed, notes, budget, within=specs is not None)
        ran, _ = made.usual(thorough=specs is None)
    if also is not None:
        label, last, _ = ran[-1]
        ran.append(_ran(session, f"{label}, other numbers", also(last)))
    del session
    return _experiments(original, ran, notes, budget, reference=reference), notes


def _experiments(
    original: Runnable, ran: Sequence[Ran], notes: list[str], budget: Budget, *, reference: bool
) -> list[Experiment]:
    references: Sequence[Arrays | None] = [None] * len(ran)
    if isinstance(original, AsItIs):
        notes.append("no float64 evaluation: a graph cannot represent the model")
    elif reference:
        references = _references(original, ran, notes, budget)
    precision, labels = coarsest(signature_of(original)), _distinct([label for label, _, _ in ran])
    return [
        Experiment(label, array, expected, exact, precision)
        for label, (_, array, expected), exact in zip(labels, ran, references, strict=True)
    ]


def _distinct(labels: Sequence[str]) -> list[str]:
    """The labels, each with a number from its second appearance on."""
    counts: Counter[str] = Counter()
    made = []
    for label in labels:
        counts[label] += 1
        made.append(label if counts[label] == 1 else f"{label} ({counts[label]})")
    return made


def _given(session: Session, number: int, inputs: Inputs) -> Ran:
    return _ran(session, f"given inputs {number}", inputs)


def _ran(session: Session, label: str, inputs: Inputs) -> Ran:
    try:
        return label, inputs, session.run(inputs)
    except VerificationError as error:
        raise type(error)(f"{label}: the original model cannot be executed on them: {error}") from error


def _references(original: ir.Model, ran: Sequence[Ran], notes: list[str], budget: Budget) -> list[Arrays | None]:
    end = time.monotonic() + budget.share(EVALUATING)
    reference = Reference(original)
    found: list[Arrays | None] = []
    over = 0
    for label, inputs, _ in ran:
        if (left := end - time.monotonic()) <= 0:
            over += reference.reason is None
            found.append(None)
            continue
        found.append(reference.run(inputs, left))
        if reference.too_large:
            notes.append(f"no float64 evaluation of {label}: {reference.too_large}")
    if reference.reason is not None:
        notes.append(f"no float64 evaluation: {reference.reason}")
    elif over:
        notes.append(
            f"no float64 evaluation of {over} of {len(ran)} sets of inputs: the time for it is over (--verify-budget)"
        )
    return found
