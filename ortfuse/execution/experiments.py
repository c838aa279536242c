"""The original on inputs of several sizes: what every candidate is compared with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.errors import CrashError, VerificationError
from ortfuse.execution.input_sizes import Search, Sizes, describe, open_dims, wanted
from ortfuse.execution.inputs import Inputs, InputSpec, input_specs, make_inputs
from ortfuse.execution.precision import coarsest
from ortfuse.execution.reference import Reference
from ortfuse.execution.session import Arrays, Session
from ortfuse.graph import walk
from ortfuse.graph.traits import RANDOM, has

REFERENCE_SECONDS = 60.0
"""Once evaluating in float64 has taken this long, further inputs are compared without it."""


@dataclass(frozen=True)
class Experiment:
    """The original on one set of inputs: its outputs, and those of its evaluation in float64 where there is one.

    `precision` is the coarsest floating-point type in which each output is computed.
    """

    label: str
    inputs: Inputs
    expected: Arrays
    reference: Arrays | None
    precision: Mapping[str, str] = field(default_factory=dict)


def experiments(
    original: ir.Model,
    inputs: Sequence[Inputs] | None = None,
    seed: int = 0,
    reference: bool = True,
    specs: Sequence[InputSpec] | None = None,
    also: Callable[[Inputs], Inputs] | None = None,
) -> tuple[list[Experiment], list[str]]:
    """Run the original, without the runtime's own optimisations, on the user's inputs or on generated ones.

    Args:
        original: Not changed; later changes to it do not matter.
        inputs: Sets of inputs by name. Without them, inputs are generated with all open dimensions 1, odd and larger.
        seed: Of the generated inputs.
        reference: Whether to evaluate in float64 too, where that is feasible.
        specs: What generated inputs are like, by default what the model says.
        also: Makes other inputs of the last generated ones, for one more experiment.

    Returns:
        The experiments, and notes on sizes that the original does not accept and on what else had to be left out.

    Raises:
        VerificationError: The original cannot be executed, not on one of the inputs given, or on none of those tried.
    """
    session = Session(original, optimise=False)
    notes = [
        f"{kind} draws random numbers: outputs that depend on them cannot be compared" for kind in _random(original)
    ]
    if inputs is not None:
        ran = [_given(session, number, array) for number, array in enumerate(inputs)]
    else:
        ran = _generated(session, input_specs(original) if specs is None else specs, seed, notes)
    if also is not None:
        label, last, _ = ran[-1]
        ran.append(_ran(session, f"{label}, other numbers", also(last)))
    del session  # frees its memory before the next evaluation needs as much
    references = _references(original, ran, notes) if reference else [None] * len(ran)
    precision = coarsest(original)
    return [
        Experiment(label, array, expected, exact, precision)
        for (label, array, expected), exact in zip(ran, references, strict=True)
    ], notes


Ran = tuple[str, Inputs, Arrays]
"""What a run was on, in words and as arrays, and what came out."""


def _random(model: ir.Model) -> list[str]:
    return sorted({node.op_type for node in walk.nodes(model) if has(node, RANDOM)})


def _given(session: Session, number: int, inputs: Inputs) -> Ran:
    return _ran(session, f"given inputs {number}", inputs)


def _ran(session: Session, label: str, inputs: Inputs) -> Ran:
    try:
        return label, inputs, session.run(inputs)
    except VerificationError as error:
        raise VerificationError(f"{label}: the original model cannot be executed on them: {error}") from error


def _generated(session: Session, specs: Sequence[InputSpec], seed: int, notes: list[str]) -> list[Ran]:
    search = Search(specs)
    targets = wanted(open_dims(specs))
    ran = []
    for number, sizes in enumerate(targets):
        try:
            result, note = attempt(session, specs, sizes, seed + number, search=search)
        except CrashError as error:
            result, note = None, f"left out {describe(open_dims(specs), sizes)}: {error}"
        notes += [note] if note else []
        ran += [result] if result is not None else []
    if not ran:
        raise VerificationError(
            "the original model runs on none of the inputs tried; give your own with --inputs FILE.npz: "
            + "; ".join(notes)
        )
    return ran


def attempt(
    session: Session,
    specs: Sequence[InputSpec],
    sizes: Sizes,
    seed: int,
    fixed: Sizes | None = None,
    search: Search | None = None,
) -> tuple[Ran | None, str]:
    """Run a model on generated inputs of `sizes`, or of others near them if it refuses those.

    Args:
        session: The model.
        specs: Its inputs.
        sizes: By symbol.
        seed: Of the random numbers.
        fixed: Sizes that must not be replaced by others.
        search: Knows what the model refused before.

    Returns:
        Label, inputs and outputs, `None` if the model accepts nothing near; and a note if it did not accept `sizes`.

    Raises:
        CrashError: The runtime crashes; other sizes are not tried then, for each would take a process along.
    """
    dims, search = open_dims(specs), search or Search(specs)
    first_error = "sizes tried before, or a dimension below 1"
    for count, candidate in enumerate(search.candidates(sizes, fixed)):
        inputs = make_inputs(specs, candidate, seed)
        try:
            outputs = session.run(inputs)
        except CrashError:
            raise
        except VerificationError as error:
            first_error = str(error) if count == 0 else first_error
            continue
        search.accepted()
        label = describe(dims, candidate)
        note = "" if candidate == sizes else f"{label} instead of {describe(dims, sizes)}: {first_error}"
        return (label, inputs, outputs), note
    return None, f"left out {describe(dims, sizes)}: {first_error}"


def _references(original: ir.Model, ran: Sequence[Ran], notes: list[str]) -> list[Arrays | None]:
    started = time.monotonic()
    reference = Reference(original)
    found: list[Arrays | None] = []
    for label, inputs, _ in ran:
        if time.monotonic() - started > REFERENCE_SECONDS:
            notes.append(f"no float64 evaluation of {label}: the others took {REFERENCE_SECONDS:.0f} s")
            found.append(None)
            continue
        found.append(reference.run(inputs))
    if reference.reason is not None:
        notes.append(f"no float64 evaluation: {reference.reason}")
    return found
