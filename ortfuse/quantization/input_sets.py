"""Divide inputs into those of the search, held-out ones, and fresh ones for the result.

Ranges of values are observed on some inputs of the search. Effects of schemes are measured on the others, on which ranges were
not fitted. The held-out inputs decide how far the search goes. The fresh ones decide whether its result is good, and serve for
nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.runtime.bench.typical_benchmark_inputs import labels_of_sizes, usual_sizes
from ortfuse.runtime.inputs.coverage_guided_inputs import Ran
from ortfuse.runtime.inputs.generation import attempt, searches_for
from ortfuse.runtime.inputs.random_inputs import Inputs, input_specs
from ortfuse.runtime.session import Arrays, Session

TRIED_SEEDS, FAR_SEED = 5, 1_000_003
"""How many seeds are tried for a set of inputs, and how far apart: some may have words that the model refuses."""

PROBED = 3
"""The number of sets of inputs on which effects are measured."""

GENERATED = (PROBED + 12, 21)
"""How many sets of inputs are generated for the search, and held out."""

FRESH = (24, 900)
"""How many further ones are generated at least and at most, to run the result on; with the others less than seeds are apart."""

SEEDS_APART = 1000
"""How far those of one seed are from those of the next."""

FRESH_SECONDS = 3.0
"""How long the original runs on those at most, once there are enough; less where little time is given."""

FRESH_SHARE = 0.05
"""The share of the given time that this may take."""

LEAST = (PROBED + 6, 8, 8)
"""The numbers of sets for the search, held out and fresh, where time is short.

Fewer sets make the expected error larger. There are no sizes between these, as measurements count for the same inputs alone.
"""

SETS_SHARE = 0.15
"""The share of the given time that the original may take to run on those of the search and those held out."""

FRESH_BYTES = 1 << 30
"""How many bytes of these and of the original's outputs are kept."""

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
        fresh: What only its result is run on, with the outputs of the original.
        label: What they are, in words.
        notes: What weakens the bound, in words.
        outputs: The outputs of the original on all but the fresh ones, if they are known already.
    """

    search: tuple[Inputs, ...]
    held_out: tuple[Inputs, ...]
    label: str
    notes: tuple[str, ...] = ()
    outputs: tuple[Arrays, ...] = ()
    fresh: tuple[tuple[Inputs, Arrays], ...] = ()

    @property
    def ranges(self) -> tuple[Inputs, ...]:
        """The sets that ranges are observed on: disjoint from those that effects are measured on, if there are enough."""
        return self.search[self._first_for_ranges :]

    def telling(self, fitted: bool) -> tuple[int, ...]:
        """The places in `all` of those that are like any others to a model; of all if there are none.

        Args:
            fitted: Whether the model has ranges or weights by what was observed: it is better on the inputs that were.
        """
        every = range(len(self.all))
        observed = range(self._first_for_ranges, len(self.search)) if fitted else ()
        return tuple(number for number in every if number not in observed) or tuple(every)

    @property
    def _first_for_ranges(self) -> int:
        return PROBED if len(self.search) >= 3 * PROBED else 0

    @property
    def all(self) -> tuple[Inputs, ...]:
        """All but the fresh ones."""
        return (*self.search, *self.held_out)


def samples(
    session: Session,
    model: ir.Model,
    given: Sequence[Inputs] | None,
    sizes: Mapping[str, int],
    seed: int,
    budget: float | None = None,
) -> Samples:
    """The inputs of a search for a model: the user's, or generated ones.

    Args:
        session: A session of the original model.
        model: The original model.
        given: The user's sets of inputs; `None` to generate them.
        sizes: Sizes of open dimensions by name, for generated inputs.
        seed: Seed of what is random: the generated numbers, and which of the user's are held out.
        budget: The seconds that the search may take; `None` for any number.

    Raises:
        VerificationError: The model runs on none that could be generated.
    """
    seconds = FRESH_SECONDS if budget is None else min(FRESH_SECONDS, FRESH_SHARE * budget)
    of_search = math.inf if budget is None else SETS_SHARE * budget
    if given is None:
        return _generated(session, model, sizes, seed, seconds, of_search)
    found, notes = list(given), []
    if len(found) == 1:
        found = _split(model, found[0])
    order = np.random.default_rng(seed).permutation(len(found))
    most = MOST if budget is None else _affordable(session, found, of_search)
    found, others = [found[number] for number in order[:most]], [found[number] for number in order[most:]]
    fewest = FRESH[0] if most == MOST else LEAST[2]
    fresh = _fresh(((arrays, session.run(arrays)) for arrays in others), seconds, fewest)
    if others:
        notes.append(
            f"the search used {most} of the {len(order)} sets of inputs, the check of its result {len(fresh)} others"
        )
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
    return Samples(tuple(found[held:]), tuple(found[:held]), label, tuple(notes), fresh=fresh)


def _affordable(session: Session, given: Sequence[Inputs], seconds: float) -> int:
    """How many of the user's sets of inputs are used: `MOST`, or fewer if the model cannot run on as many in these seconds."""
    session.run(given[0])
    started = time.perf_counter()
    session.run(given[0])
    each = time.perf_counter() - started
    return MOST if min(MOST, len(given)) * each <= seconds else sum(LEAST[:2])


def _fresh(
    ran: Iterable[tuple[Inputs, Arrays]], seconds: float, least: int = FRESH[0]
) -> tuple[tuple[Inputs, Arrays], ...]:
    """As many inputs with their outputs as there is time and room for, and so many at least if there is room."""
    found: list[tuple[Inputs, Arrays]] = []
    room, started = FRESH_BYTES, time.perf_counter()
    for inputs, outputs in ran:
        found.append((inputs, outputs))
        room -= _bytes(inputs) + _bytes(outputs)
        spent = len(found) >= least and time.perf_counter() - started > seconds
        if spent or room < 0 or len(found) == FRESH[1]:
            break
    return tuple(found)


def _bytes(arrays: Mapping[str, Any]) -> int:
    return sum(getattr(array, "nbytes", 0) for array in arrays.values())


def _generated(
    session: Session, model: ir.Model, sizes: Mapping[str, int], seed: int, seconds: float, of_search: float
) -> Samples:
    """Generated inputs: fewer where the original would run on them for longer than it may (see `LEAST`).

    Args:
        session: A session of the original model.
        model: The original model.
        sizes: Sizes of open dimensions by name.
        seed: Seed of the generated numbers.
        seconds: How long the original may run on fresh ones, once there are enough of them.
        of_search: How long it may run on the others.
    """
    first, count, notes = SEEDS_APART * seed, sum(GENERATED), [WEAK]
    if not input_specs(model):
        return Samples(tuple(generated(session, model, sizes, [first])[1]), (), "no inputs")
    ran = _ran(session, model, sizes, range(first, first + count + FRESH[1]))
    made: list[Inputs] = []
    outputs: list[Arrays] = []
    few, fewest, room, started = sum(LEAST[:2]), FRESH[0], FRESH_BYTES, time.perf_counter()
    text = ""
    for label, inputs, found in ran:
        text = label
        made.append(inputs)
        room -= _bytes(found)
        outputs = [*outputs, found] if room > 0 else []
        if len(made) == few and (time.perf_counter() - started) * count / few > of_search:
            fewest = LEAST[2]
            notes.append(
                f"the original ran on {len(made)} generated sets of inputs instead of {count} in the time given: fewer leave "
                "a larger error to be expected, so that less is lowered; more time, or inputs of yours, may lower more"
            )
            break
        if len(made) == count:
            break
    fresh = _fresh(((inputs, outputs) for _, inputs, outputs in ran), seconds, fewest)
    split = max(LEAST[0], round(len(made) * GENERATED[0] / count))
    label = (
        f"{len(made)} generated sets of inputs ({text}), {len(made) - split} of them held out, "
        f"and {len(fresh)} for the result"
    )
    return Samples(tuple(made[:split]), tuple(made[split:]), label, tuple(notes), tuple(outputs), fresh)


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
    ran = list(_ran(session, model, sizes, seeds))
    return ran[-1][0] if ran else "", [inputs for _, inputs, _ in ran]


def fresh_runs(
    session: Session, model: ir.Model, seeds: Iterable[int], seconds: float, least: int = FRESH[0]
) -> list[tuple[Inputs, Arrays]]:
    """Generated inputs of typical size with what the model makes of them: as many as there is time and room for.

    Args:
        session: A session of the model.
        model: The model.
        seeds: The seeds of the sets.
        seconds: How long the model runs on them, once there are enough.
        least: How many are enough.

    Raises:
        VerificationError: The model runs on none of the sizes that were tried.
    """
    return list(_fresh(((inputs, outputs) for _, inputs, outputs in _ran(session, model, {}, seeds)), seconds, least))


def _ran(session: Session, model: ir.Model, sizes: Mapping[str, int], seeds: Iterable[int]) -> Iterator[Ran]:
    """The model run on inputs of typical size, one set for each seed."""
    specs, usual = input_specs(model), usual_sizes(model, sizes)
    fixed = {symbol: usual[symbol] for symbol, label in labels_of_sizes(model).items() if label in sizes}
    searches = searches_for(model, specs)
    for seed in seeds:
        ran, note = attempt(session, specs, usual, seed, fixed, searches())
        for other in range(1, TRIED_SEEDS if ran is None else 0):
            ran, _ = attempt(session, specs, usual, seed + other * FAR_SEED, fixed, searches())
            if ran is not None:
                break
        if ran is None:
            raise VerificationError(
                f"the model runs on none of the sizes tried; give inputs of yours with --inputs: {note}"
            )
        yield ran


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


def refuse_nan(given: Sequence[Inputs]) -> None:
    """Refuse inputs on which no error can be measured.

    Raises:
        VerificationError: There is NaN in them.
    """
    for number, arrays in enumerate(given):
        for name, array in arrays.items():
            numbers = np.asarray(array)
            if numbers.dtype.kind == "f" and np.isnan(numbers).any():
                raise VerificationError(
                    f"inputs: the array '{name}' of set {number} (from 0) holds NaN, so no error can be measured; leave it out"
                )
