"""Generate inputs of several sizes that together exercise the whole model."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from ortfuse.errors import CrashError, VerificationError
from ortfuse.runtime.inputs.broadcast_sizes import matched_sizes
from ortfuse.runtime.inputs.comparison_thresholds import thresholds
from ortfuse.runtime.inputs.concat_sizes import joined_sizes
from ortfuse.runtime.inputs.coverage_guided_inputs import Ran, Shown, explore
from ortfuse.runtime.inputs.find_kv_caches import caches_of
from ortfuse.runtime.inputs.random_inputs import Inputs, InputSpec, input_specs, make_inputs
from ortfuse.runtime.inputs.sampling import COUNTS, EASIER, Drawing
from ortfuse.runtime.inputs.size_search import climb
from ortfuse.runtime.inputs.sizes import Search, Sizes, describe, fixed_sizes, obeys, open_dims, wanted
from ortfuse.runtime.session import Session
from ortfuse.runtime.verification_time_budget import EXPLORING, Budget

FEW = 3
"""How many sizes are tried beside empty caches."""

REPEATED = 3
"""How many sets of inputs are drawn for a model whose sizes are all fixed: 2 if all inputs are floating-point numbers, more if
there are counts among them."""


BY_CHANCE = 300
"""How many counts that differ from each other are tried if a model refuses equal ones."""

QUIET = 2.0**-6
"""The scale of small numbers, whose variance is about as large as usual epsilons."""


def searches_for(model: ir.Model, specs: Sequence[InputSpec] | None = None) -> Callable[[], Search]:
    """Make searches for sizes of a model's inputs that heed what its operators say about them."""
    given = input_specs(model) if specs is None else specs
    matched = functools.cache(functools.partial(matched_sizes, model))
    return functools.partial(Search, given, joined_sizes(model), matched)


class Generation:
    """Generate inputs for a model and run it on them.

    Args:
        session: A session of the model.
        graph: The model, or one with its inputs and outputs.
        search: Makes searches for sizes.
        seed: Seed of the numbers.
        notes: Takes notes on what the model refuses.
        budget: The time for all runs.
        within: Whether the inputs are those of a part of a model, whose integers may be all but small ones for reasons that the
            part does not show.
    """

    def __init__(
        self,
        session: Session,
        graph: ir.Model,
        search: Callable[[], Search],
        seed: int,
        notes: list[str],
        budget: Budget,
        *,
        within: bool = False,
    ) -> None:
        self._session, self._graph, self._seed, self._notes, self._budget = session, graph, seed, notes, budget
        self._search = search()
        self._specs = self._search.specs
        self._dims = open_dims(self._specs)
        ways = _drawings(self._specs)
        self._drawings = ways[1:] if within and len(ways) > 1 else ways
        self._accepted: list[tuple[Ran, Sizes]] = []
        self._seconds = 0.0

    def run(self, sizes: Mapping[str, int], shown: Shown) -> tuple[list[Ran], list[str]]:
        """Runs that exercise the model, and the labels of open dimensions that are 1 in all of them.

        Args:
            sizes: Sizes of open dimensions by label, for one more run.
            shown: What was shown; it is brought up to date.
        """
        ran, single = self.usual(sizes)
        ran += self._with_small_numbers()
        for one in ran:
            shown.take(one, shown.coverage.reached(one[1]))
        accepted = [(describe(self._dims, chosen), chosen) for _, chosen in reversed(self._accepted)]
        found = explore(
            self._specs,
            accepted,
            shown,
            self._run_once,
            self._seed,
            self._budget.share(EXPLORING),
            self._seconds,
            thresholds(self._graph),
        )
        return [*ran, *found], single

    def usual(self, sizes: Mapping[str, int] | None = None, *, thorough: bool = True) -> tuple[list[Ran], list[str]]:
        """Runs on inputs of the usual sizes, and the labels of open dimensions that are 1 in all of them.

        Args:
            sizes: Sizes of open dimensions by label, for one more run.
            thorough: Whether sizes are sought beyond the usual ones and those near them, and empty caches tried.
        """
        given = fixed_sizes(self._dims, sizes or {})
        targets: list[tuple[Sizes, Sizes | None]] = [(target, None) for target in self._targets()]
        if given:
            targets = [({**targets[min(1, len(targets) - 1)][0], **given}, given), *targets]
        failure: type[VerificationError] = VerificationError
        for number, (target, fixed) in enumerate(targets):
            if self._accepted and not self._budget.allows(self._seconds, 1 - EXPLORING):
                self._notes.append(f"left out {describe(self._dims, target)}: the time for verifying is over")
                continue
            try:
                self._attempt(target, number, fixed)
            except CrashError as error:
                self._notes.append(f"left out {describe(self._dims, target)}: {error}")
                failure = CrashError
        if not self._accepted and failure is VerificationError and thorough:
            self._by_chance(targets[min(1, len(targets) - 1)][0])
        if not self._accepted and failure is VerificationError and thorough:
            self._climb(targets[min(1, len(targets) - 1)][0])
        if not self._accepted:
            tried = "; ".join(self._notes)
            raise failure(
                f"the original model runs on none of the inputs tried; give your own with --inputs FILE.npz: {tried}"
            )
        single = self._raised() if thorough else []
        ran = [one for one, _ in self._accepted]
        return [*ran, *(self._with_empty(targets[-1][0]) if thorough else [])], single

    def _targets(self) -> list[Sizes]:
        made = wanted(self._dims)
        if len(made) > 1:
            return made
        if any(spec.role.tells_sizes for spec in self._specs):
            return made * len(COUNTS)
        counted = any(not spec.dtype.is_floating_point() for spec in self._specs)
        return made * (REPEATED if counted else min(len(self._specs), 2) or 1)

    def _attempt(self, target: Sizes, number: int, fixed: Sizes | None = None) -> None:
        started = time.monotonic()
        found: tuple[Ran, Sizes] | None
        if any(target == sizes for _, sizes in self._accepted):
            again = self._once(target, self._seed + number)
            found = None if again is None else (again, target)
        else:
            found, note = _attempted(
                self._session, self._specs, target, self._seed + number, fixed, self._search, drawings=self._drawings
            )
            self._notes += [note] if note else []
        if found is not None:
            self._accepted.append(found)
            self._seconds = max(self._seconds, time.monotonic() - started)

    def _by_chance(self, sizes: Sizes) -> None:
        """Try counts that differ from each other, which may have to add up to a size."""
        counted = [spec.name for spec in self._specs if spec.role.tells_sizes and spec.shape]
        drawings = dict.fromkeys(counted, Drawing(varied=True))
        found: list[Ran] = []
        for seed in range(self._seed, self._seed + (BY_CHANCE if counted else 0)):
            ran = self._run_once(describe(self._dims, sizes), make_inputs(self._specs, sizes, seed, drawings), None)
            found += [] if ran is None else [ran]
            if len(found) == REPEATED:
                break
        self._accepted += [(ran, sizes) for ran in found]

    def _climb(self, start: Sizes) -> None:
        """Look for sizes by how far the model gets with others; then for larger and smaller ones around them."""
        found = climb(self._graph, self._specs, start, self._seed)
        if found is None:
            return
        self._notes.clear()
        self._notes.append(f"the usual sizes are refused; {describe(self._dims, found)} was found by trying")
        first = self._once(found, self._seed)
        if first is None:
            return
        self._accepted.append((first, found))
        for symbol in found:
            for other in (found[symbol] + 1, found[symbol] * 2):
                made = {**self._accepted[-1][1], symbol: other}
                ran = self._once(made, self._seed + 1)
                if ran is not None:
                    self._accepted.append((ran, made))
                    break

    def _raised(self) -> list[str]:
        """Try larger sizes for open dimensions that were 1 in every run; returns the labels of those that remain 1."""
        single = [dim for dim in self._dims if all(sizes[dim.symbol] == 1 for _, sizes in self._accepted)]
        left = []
        for dim in single:
            base = self._accepted[-1][1]
            for size in (2, 3, 4) if self._budget.allows(self._seconds, 1 - EXPLORING) else ():
                made = {**base, dim.symbol: size}
                ran = self._once(made, self._seed + size)
                if ran is not None:
                    self._accepted.append((ran, made))
                    break
            else:
                left.append(dim.label)
        return left

    def _once(self, sizes: Sizes, seed: int) -> Ran | None:
        """One run at these sizes; `None` if the model refuses it, or they are not within declared bounds."""
        if not obeys(self._dims, sizes):
            return None
        for drawings in self._drawings:
            try:
                inputs = make_inputs(self._specs, sizes, seed, drawings)
            except VerificationError:
                return None
            ran = self._run_once(describe(self._dims, sizes), inputs, None)
            if ran is not None:
                return ran
        return None

    def _run_once(self, label: str, inputs: Inputs, limit: float | None) -> Ran | None:
        try:
            return label, inputs, self._session.run(inputs, limit=limit)
        except VerificationError:
            return None

    def _with_small_numbers(self) -> list[Ran]:
        """A run on numbers so small that what is added to variances matters; none if no input is of free numbers."""
        small = {spec.name: Drawing(scale=QUIET) for spec in self._specs if _is_numbers(spec)}
        if not small or not self._budget.allows(self._seconds, 1 - EXPLORING):
            return []
        chosen = self._accepted[-1][1]
        label = f"{describe(self._dims, chosen)}, small numbers"
        ran = self._run_once(label, make_inputs(self._specs, chosen, self._seed + len(self._accepted), small), None)
        return [] if ran is None else [ran]

    def _with_empty(self, sizes: Sizes) -> list[Ran]:
        """A run with empty caches, as before the first step of a decoder; none if the model has no caches or refuses them."""
        empty = dict.fromkeys(caches_of(self._graph) & sizes.keys(), 0)
        if not empty or not obeys(self._dims, empty):
            return []
        try:
            found, _ = attempt(self._session, self._specs, sizes | empty, self._seed, empty, self._search, FEW)
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
    found, note = _attempted(session, specs, sizes, seed, fixed, search, most)
    return (None if found is None else found[0]), note


def _attempted(
    session: Session,
    specs: Sequence[InputSpec],
    sizes: Sizes,
    seed: int,
    fixed: Sizes | None = None,
    search: Search | None = None,
    most: int | None = None,
    drawings: Sequence[Mapping[str, Drawing]] | None = None,
) -> tuple[tuple[Ran, Sizes] | None, str]:
    """Return the result of `attempt` with the sizes; inputs are drawn in one way after the other."""
    dims, search = open_dims(specs), search or Search(specs)
    first_error = "sizes tried before, a dimension below 1, or tensors that are joined though their sizes differ"
    for count, candidate in enumerate(itertools.islice(search.candidates(sizes, fixed), most)):
        for drawn in _drawings(specs) if drawings is None else drawings:
            inputs = make_inputs(specs, candidate, seed, drawn)
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
            return ((label, inputs, outputs), candidate), note
    return None, f"left out {describe(dims, sizes)}: {first_error}"


def _drawings(specs: Sequence[InputSpec]) -> list[Mapping[str, Drawing]]:
    """How inputs are drawn, one way after the other until a model accepts them: as usual, and with integers that ask for less."""
    free = [spec.name for spec in specs if _has_choice(spec)]
    return [{}, *(dict.fromkeys(free, easier) for easier in EASIER)] if free else [{}]


def _is_numbers(spec: InputSpec) -> bool:
    """Whether an input is of floating-point numbers that nothing restricts."""
    role = spec.role
    return spec.dtype.is_floating_point() and bool(spec.shape) and role.mask is None and not role.tells_sizes


def _has_choice(spec: InputSpec) -> bool:
    """Whether there are several ways to draw the integers of an input."""
    if spec.elements is not None or spec.dtype == ir.DataType.STRING:
        return False
    whole = spec.dtype.is_integer() and spec.dtype != ir.DataType.BOOL
    return spec.role.tells_sizes or (whole and spec.role.is_free)
