"""Search for inputs that cover more branches of a model than the usual ones.

Sets of inputs are drawn in other ways (`ortfuse.runtime.inputs.sampling`) until a number of them in a row show nothing
new, or time is over. A set is kept if a run on it reaches a coverage point (`ortfuse.runtime.branch_coverage`) that no
other set reaches, or if an output that was empty, or nearly the same everywhere, is not so in it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.runtime.branch_coverage import Coverage, Kind, Point
from ortfuse.runtime.comparison import TOLERANCES
from ortfuse.runtime.inputs.random_inputs import Inputs, InputSpec, make_inputs
from ortfuse.runtime.inputs.sampling import Drawing, Integers, Masks
from ortfuse.runtime.session import Arrays
from ortfuse.serialization import Record

MOST_TRIES = 40
"""The most sets of inputs that are tried."""

IN_VAIN, IN_VAIN_OF_CHOICES = 6, 16
"""So many random sets in a row that show nothing new end the exploration; of several truth values and counts more."""

MOST_THRESHOLDS = 6
"""The most numbers with which inputs may be compared, beyond which they are drawn."""

MOST_KEPT = 8
"""The most sets that are kept."""

NEARLY = 1e-3
"""An output whose numbers differ by less than this share of their size is nearly constant."""

LEAST_LIMIT, LIMIT_FACTOR = 10.0, 20.0
"""Seconds after which a run is given up, and how many times longer than a usual run it may take."""

_SCALES = (10.0, 0.01, 100.0, 1.0, 1.0)
_OFFSETS = (0.0, 0.0, 0.0, 3.0, -3.0)
_COUNTS = (2, 4, 1, 0, 8, -3)
_INTEGERS = (Integers.SIGNED, Integers.EXTREME, Integers.SMALL)
_MASKS = (Masks.HIDDEN, Masks.WHOLE, Masks.PADDED)

_TOLD = (Kind.BODY, Kind.BRANCH, Kind.SELECTION, Kind.COUNT)
"""The kinds of points that are named if they are never reached; of the others only the number is told."""


@dataclass(frozen=True)
class Exercise(Record):
    """The coverage of a model by its runs.

    Attributes:
        points: The number of coverage points.
        reached: How many of them were reached.
        missing: What never happened: bodies that never ran, branches never taken, selections of nothing.
        empty: The outputs that were empty in every run.
        constant: The outputs whose numbers were nearly the same in every run, or nearly zero.
        outputs: The number of outputs.
        single: The open dimensions that were 1 in every run, by the names that messages use.
    """

    points: int = 0
    reached: int = 0
    missing: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()
    outputs: int = 0
    single: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether all bodies and branches ran, and every output had numbers to compare."""
        return not (self.missing or self.empty)

    @property
    def shows_nothing(self) -> bool:
        """Whether all outputs were empty in every run."""
        return bool(self.outputs) and len(self.empty) == self.outputs

    def remarks(self) -> list[str]:
        """The points that were not exercised, each as a clause."""
        found = list(self.missing)
        if self.empty:
            found.append(f"{_listed('output', self.empty)} empty in every run")
        if self.constant:
            found.append(f"{_listed('output', self.constant)} nearly constant, or near zero, in every run")
        if self.single:
            found.append(
                f"{_listed('dimension', self.single)} 1 in every run, as the model runs with no other size that was tried"
            )
        return found


def _listed(what: str, names: Sequence[str]) -> str:
    quoted = ", ".join(f"'{name}'" for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{what}{'s' if len(names) > 1 else ''} {quoted} {'were' if len(names) > 1 else 'was'}"


Ran = tuple[str, Inputs, Arrays]
"""One run: a description of its inputs, the inputs as arrays, and the outputs."""


@dataclass
class Shown:
    """The coverage by the runs so far."""

    coverage: Coverage
    reached: set[int] = field(default_factory=set)
    outputs: dict[str, str] = field(default_factory=dict)

    def take(self, ran: Ran, points: frozenset[int] | None) -> bool:
        """Note what a run shows; returns whether that is anything new."""
        new = bool(points and points - self.reached)
        self.reached |= points or frozenset()
        for name, array in ran[2].items():
            state = _state(array)
            if _ORDER[state] > _ORDER.get(self.outputs.get(name, ""), -1):
                new, self.outputs[name] = True, state
        return new

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing more to be shown."""
        return len(self.reached) == len(self.coverage.points) and set(self.outputs.values()) <= {_VARIED}

    def exercise(self, single: Sequence[str] = ()) -> Exercise:
        """The points that were covered, and those that were not."""
        points = self.coverage.points
        left = [point for number, point in enumerate(points) if number not in self.reached]
        return Exercise(
            len(points),
            len(points) - len(left),
            tuple(_without_implied(left)),
            tuple(name for name, state in self.outputs.items() if state == _EMPTY),
            tuple(name for name, state in self.outputs.items() if state == _CONSTANT),
            len(self.outputs),
            tuple(single),
        )


_EMPTY, _CONSTANT, _VARIED = "empty", "constant", "varied"
_ORDER = {_EMPTY: 0, _CONSTANT: 1, _VARIED: 2}


def _state(value: Any) -> str:
    """Whether an output is empty, nearly constant, or neither; only floating-point numbers count as constant."""
    if not isinstance(value, np.ndarray):
        return _VARIED if not isinstance(value, list | dict) or value else _EMPTY
    if not value.size:
        return _EMPTY
    limits = TOLERANCES.get(value.dtype.name)
    if limits is None:
        return _VARIED
    numbers = value.astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return _CONSTANT
    size = float(np.abs(numbers).max())
    spread = float(numbers.max() - numbers.min())
    if size < limits.least:
        return _CONSTANT
    return _CONSTANT if numbers.size > 1 and spread < NEARLY * size else _VARIED


def _without_implied(points: Sequence[Point]) -> Iterator[str]:
    """The points never reached, without those that another implies: a body that never ran did not run twice either."""
    never = {point.node for point in points if point.kind is Kind.BODY and not point.missing.endswith("once")}
    for point in points:
        if point.kind in _TOLD and not (
            point.kind is Kind.BODY and point.node in never and point.missing.endswith("once")
        ):
            yield point.text()


def explore(
    specs: Sequence[InputSpec],
    sizes: Sequence[tuple[str, Mapping[str, int]]],
    shown: Shown,
    run: Callable[[str, Inputs, float], Ran | None],
    seed: int,
    seconds: float,
    usual: float,
    thresholds: Sequence[float] = (),
) -> list[Ran]:
    """Runs of inputs that show something new, or have numbers at the ends of their types.

    Args:
        specs: The inputs.
        sizes: The sizes that the model runs with, each with a description; they are used in turn.
        shown: What was shown so far; it is brought up to date.
        run: Runs the model on inputs, under a description and a time limit; `None` if it refuses them.
        seed: Seed of the random numbers.
        seconds: How long to explore.
        usual: How long a usual run takes, in seconds.
        thresholds: Numbers with which the model compares others; some inputs are drawn so large that they pass these.
    """
    kept: list[Ran] = []
    end, limit, in_vain = time.monotonic() + seconds, max(LEAST_LIMIT, LIMIT_FACTOR * usual), 0
    options = _all_options(specs, thresholds)
    special = {name for name, ways in options.items() if any(way.is_special for way in ways)}
    choices = sum(spec.role.tells_sizes or spec.dtype == ir.DataType.BOOL for spec in specs)
    most = IN_VAIN_OF_CHOICES if choices > 1 else IN_VAIN
    for number, (planned, drawings) in enumerate(itertools.islice(_choices(options, seed), MOST_TRIES)):
        if len(kept) == MOST_KEPT or time.monotonic() > end or in_vain == most:
            break
        drawn = {name for name in special if drawings[name].is_special}
        if shown.is_complete and not drawn:
            if special:
                continue
            break
        label, chosen = sizes[number % len(sizes)]
        inputs = make_inputs(specs, chosen, seed + 1000 + number, drawings)
        points = shown.coverage.reached(inputs, limit)
        new = False
        if points is not None and (points - shown.reached or drawn or _doubtful(shown)):
            ran = run(f"{label}, other numbers", inputs, limit)
            new = ran is not None and (shown.take(ran, points) or bool(drawn))
            kept += [ran] if ran is not None and new else []
        special -= drawn
        in_vain = 0 if new or planned else in_vain + 1
    return kept


def _doubtful(shown: Shown) -> bool:
    return not set(shown.outputs.values()) <= {_VARIED}


def _all_options(specs: Sequence[InputSpec], thresholds: Sequence[float]) -> dict[str, list[Drawing]]:
    """The ways to draw each input; those whose roles leave no choice are left out."""
    found = {spec.name: _options(spec, number, thresholds) for number, spec in enumerate(specs)}
    return {name: ways for name, ways in found.items() if ways}


def _choices(options: Mapping[str, Sequence[Drawing]], seed: int) -> Iterator[tuple[bool, dict[str, Drawing]]]:
    """How inputs are drawn, one set after the other: each way for all inputs at once (`True`), then at random."""
    if not options:
        return
    for number in range(max(map(len, options.values()))):
        yield True, {name: ways[number % len(ways)] for name, ways in options.items()}
    rng = np.random.default_rng(seed)
    while True:
        yield False, {name: ways[int(rng.integers(len(ways)))] for name, ways in options.items()}


def _options(spec: InputSpec, number: int, thresholds: Sequence[float]) -> list[Drawing]:
    """The ways to draw an input; none if its role leaves no choice. Inputs of one kind begin with different ones."""
    role, usual = spec.role, Drawing()
    if spec.elements is not None or spec.dtype == ir.DataType.STRING:
        return []
    if role.mask is not None:
        found = [replace(usual, masks=masks) for masks in _MASKS]
        return found if spec.shape else [replace(usual, truth=truth) for truth in (False, True)]
    if role.tells_sizes:
        found = [replace(usual, count=count) for count in _COUNTS]
        return [*found[number % len(found) :], *found[: number % len(found)]]
    if spec.dtype.is_floating_point():
        found = [replace(usual, scale=scale, offset=offset) for scale, offset in zip(_SCALES, _OFFSETS, strict=True)]
        return [*found, *(replace(usual, scale=2 * far) for far in thresholds[:MOST_THRESHOLDS])]
    if spec.dtype == ir.DataType.BOOL:
        return [replace(usual, truth=truth) for truth in ((True, False), (False, True))[number % 2]]
    if role.is_free:
        return [replace(usual, integers=integers) for integers in _INTEGERS]
    return [usual]
