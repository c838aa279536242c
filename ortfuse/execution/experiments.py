"""Runs the original on inputs of several sizes: the results that every candidate is compared with."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.errors import CrashError, VerificationError
from ortfuse.execution.as_it_is import AsItIs, Runnable, signature_of
from ortfuse.execution.caches import caches_of
from ortfuse.execution.input_sizes import Search, Sizes, describe, open_dims, wanted
from ortfuse.execution.inputs import Inputs, InputSpec, input_specs, make_inputs
from ortfuse.execution.joined_sizes import joined_sizes
from ortfuse.execution.matched_sizes import matched_sizes
from ortfuse.execution.precision import coarsest
from ortfuse.execution.reference import Reference
from ortfuse.execution.session import Arrays, Session
from ortfuse.graph import walk
from ortfuse.graph.traits import RANDOM, has

REFERENCE_SECONDS = 60.0
"""The time limit for float64 evaluations: once it is exceeded, further inputs are compared without one."""

FEW = 3
"""How many sizes are tried beside empty caches."""


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
    session, graph = Session(original, optimise=False), signature_of(original)
    notes = [f"{kind} draws random numbers: outputs that depend on them cannot be compared" for kind in _random(graph)]
    if inputs is not None:
        ran = [_given(session, number, array) for number, array in enumerate(inputs)]
    else:
        caches = caches_of(graph) if specs is None else frozenset()
        search = searches_for(graph)() if specs is None else Search(specs)
        ran = _generated(session, search, seed, notes, caches)
    if also is not None:
        label, last, _ = ran[-1]
        ran.append(_ran(session, f"{label}, other numbers", also(last)))
    del session  # frees its memory before the next evaluation, which needs as much
    references: Sequence[Arrays | None] = [None] * len(ran)
    if isinstance(original, AsItIs):
        notes.append("no float64 evaluation: a graph cannot represent the model")
    elif reference:
        references = _references(original, ran, notes)
    precision = coarsest(graph)
    return [
        Experiment(label, array, expected, exact, precision)
        for (label, array, expected), exact in zip(ran, references, strict=True)
    ], notes


def searches_for(model: ir.Model, specs: Sequence[InputSpec] | None = None) -> Callable[[], Search]:
    """Makes searches for sizes of a model's inputs that heed what its operators say about them."""
    given = input_specs(model) if specs is None else specs
    matched = functools.cache(functools.partial(matched_sizes, model))
    return functools.partial(Search, given, joined_sizes(model), matched)


Ran = tuple[str, Inputs, Arrays]
"""One run: a description of its inputs, the inputs as arrays, and the outputs."""


def _random(model: ir.Model) -> list[str]:
    return sorted({node.op_type for node in walk.nodes(model) if has(node, RANDOM)})


def _given(session: Session, number: int, inputs: Inputs) -> Ran:
    return _ran(session, f"given inputs {number}", inputs)


def _ran(session: Session, label: str, inputs: Inputs) -> Ran:
    try:
        return label, inputs, session.run(inputs)
    except VerificationError as error:
        raise type(error)(f"{label}: the original model cannot be executed on them: {error}") from error


def _generated(session: Session, search: Search, seed: int, notes: list[str], caches: Set[str]) -> list[Ran]:
    specs = search.specs
    targets = wanted(open_dims(specs))
    ran, failure = [], VerificationError
    for number, sizes in enumerate(targets):
        try:
            result, note = attempt(session, specs, sizes, seed + number, search=search)
        except CrashError as error:
            result, note, failure = None, f"left out {describe(open_dims(specs), sizes)}: {error}", CrashError
        notes += [note] if note else []
        ran += [result] if result is not None else []
    if not ran:
        raise failure(
            "the original model runs on none of the inputs tried; give your own with --inputs FILE.npz: "
            + "; ".join(notes)
        )
    return [*ran, *_with_empty(session, specs, targets[-1], seed, caches, search)]


def _with_empty(
    session: Session, specs: Sequence[InputSpec], sizes: Sizes, seed: int, caches: Set[str], search: Search
) -> list[Ran]:
    """A run with empty caches, as before the first step of a decoder; none if the model has no caches or refuses them."""
    empty = dict.fromkeys(caches & sizes.keys(), 0)
    if not empty:
        return []
    try:
        found, _ = attempt(session, specs, sizes | empty, seed, empty, search, FEW)
    except CrashError:
        return []
    return [] if found is None else [found]


def attempt(
    session: Session,
    specs: Sequence[InputSpec],
    sizes: Sizes,
    seed: int,
    fixed: Sizes | None = None,
    search: Search | None = None,
    most: int | None = None,
) -> tuple[Ran | None, str]:
    """Run a model on generated inputs of `sizes`, or of nearby sizes if it refuses those.

    Args:
        session: A session of the model.
        specs: Its inputs.
        sizes: Sizes by symbol.
        seed: Seed of the random numbers.
        fixed: Sizes that must not be changed.
        search: Remembers what the model refused before.
        most: How many sizes are tried at most.

    Returns:
        Label, inputs and outputs, `None` if the model accepts no nearby sizes; and a note if it did not accept `sizes`.

    Raises:
        CrashError: The runtime crashes; other sizes are then not tried, since each attempt could crash another process.
    """
    dims, search = open_dims(specs), search or Search(specs)
    first_error = "sizes tried before, a dimension below 1, or tensors that are joined though their sizes differ"
    for count, candidate in enumerate(itertools.islice(search.candidates(sizes, fixed), most)):
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
