"""The inputs of a search, and those that it never sees.

Ranges of values and effects of rungs are measured on the first, and the bound has to hold on both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.bench.inputs import labels_of_sizes, usual_sizes
from ortfuse.errors import VerificationError
from ortfuse.execution.experiments import attempt
from ortfuse.execution.inputs import Inputs, input_specs
from ortfuse.execution.session import Session

GENERATED = (4, 12)
"""How many sets of inputs are generated for the search, and held out."""

MOST = 64
"""The most sets of inputs that are used of those that are given."""

WEAK = (
    "the inputs were generated, so the bound is weak: real inputs may reach values that these do not; "
    "give some of yours with --inputs"
)


@dataclass(frozen=True)
class Samples:
    """Sets of inputs.

    Attributes:
        search: What the search sees.
        held_out: What it does not see.
        label: What they are, in words.
        notes: What weakens the bound, in words.
    """

    search: tuple[Inputs, ...]
    held_out: tuple[Inputs, ...]
    label: str
    notes: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[Inputs, ...]:
        """All of them."""
        return (*self.search, *self.held_out)


def samples(
    session: Session, model: ir.Model, given: Sequence[Inputs] | None, sizes: Mapping[str, int], seed: int
) -> Samples:
    """The inputs of a search for a model: the user's, or generated ones.

    Args:
        session: A session of the original model.
        model: The original model.
        given: The user's sets of inputs; `None` to generate them.
        sizes: Sizes of open dimensions by name, for generated inputs.
        seed: Seed of what is random: the generated numbers, and which of the user's are held out.

    Raises:
        VerificationError: There is NaN in the inputs, or the model runs on none that could be generated.
    """
    if given is None:
        return _generated(session, model, sizes, seed)
    _refuse_nan(given)
    found, notes = list(given), []
    if len(found) == 1:
        found = _split(model, found[0])
    if len(found) > MOST:
        notes.append(f"{MOST} of the {len(found)} sets of inputs were used")
    order = np.random.default_rng(seed).permutation(len(found))[:MOST]
    found = [found[number] for number in order]
    if len(found) == 1:
        notes.append(
            "there is one set of inputs only, so nothing says that the bound holds on others; give more of them"
        )
        return Samples(tuple(found), (), "one set of inputs", tuple(notes))
    held = max(1, len(found) // 2)
    if len(found) < 8:
        notes.append(
            f"there are {len(found)} sets of inputs only, {held} of them held out: give more for a firmer bound"
        )
    label = f"{len(found)} sets of inputs, {held} of them held out"
    return Samples(tuple(found[held:]), tuple(found[:held]), label, tuple(notes))


def _generated(session: Session, model: ir.Model, sizes: Mapping[str, int], seed: int) -> Samples:
    count = sum(GENERATED) if input_specs(model) else 1
    label, made = generated(session, model, sizes, [1000 * seed + number for number in range(count)])
    if count == 1:
        return Samples(tuple(made), (), "no inputs")
    label = f"{len(made)} generated sets of inputs ({label}), {GENERATED[1]} of them held out"
    return Samples(tuple(made[: GENERATED[0]]), tuple(made[GENERATED[0] :]), label, (WEAK,))


def generated(
    session: Session, model: ir.Model, sizes: Mapping[str, int], seeds: Iterable[int]
) -> tuple[str, list[Inputs]]:
    """Sets of inputs of typical size, one for each seed, and their sizes in words.

    Args:
        session: A session of the model.
        model: The model.
        sizes: Sizes of open dimensions by name.
        seeds: The seeds.

    Raises:
        VerificationError: The model has no open dimension of a name, or runs on none of the sizes that were tried.
    """
    specs, usual = input_specs(model), usual_sizes(model, sizes)
    fixed = {symbol: usual[symbol] for symbol, label in labels_of_sizes(model).items() if label in sizes}
    made: list[Inputs] = []
    label = ""
    for seed in seeds:
        ran, note = attempt(session, specs, usual, seed, fixed)
        if ran is None:
            raise VerificationError(
                f"the model runs on none of the sizes tried; give inputs of yours with --inputs: {note}"
            )
        label, inputs, _ = ran
        made.append(inputs)
    return label, made


def _split(model: ir.Model, inputs: Inputs) -> list[Inputs]:
    """The elements of a batch as sets of their own, if all inputs have the same open dimension first."""
    values = [value for value in model.graph.inputs if value.name in inputs]
    firsts = {_first(value) for value in values}
    if len(firsts) != 1 or None in firsts or not all(isinstance(array, np.ndarray) for array in inputs.values()):
        return [inputs]
    counts = {array.shape[0] for array in inputs.values()}
    if len(counts) != 1 or min(counts) < 2:
        return [inputs]
    return [{name: array[number : number + 1] for name, array in inputs.items()} for number in range(min(counts))]


def _first(value: ir.Value) -> Any:
    """The name of the first dimension; `None` if it has none."""
    if value.shape is None or not len(value.shape) or isinstance(value.shape[0], int):
        return None
    return value.shape[0].value


def _refuse_nan(given: Sequence[Inputs]) -> None:
    for number, arrays in enumerate(given):
        for name, array in arrays.items():
            numbers = np.asarray(array)
            if numbers.dtype.kind == "f" and np.isnan(numbers).any():
                raise VerificationError(
                    f"inputs: the array '{name}' of set {number} (from 0) holds NaN, so no error can be measured; leave it out"
                )
