"""Choose which equivalent spellings of a pattern to build: each option once, then pairs of options.

A builder asks a `Chooser` at each degree of freedom ("freedom") of a pattern. The degrees of freedom depend on the
options taken (an alternative not taken asks nothing), so they are discovered as instances are built.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

Option = tuple[str, int]
"""The label of a freedom, and the number of the option taken."""

_CANDIDATES = 6
"""The number of random fills, of which the one with the most new pairs is built."""


@dataclass(frozen=True)
class Point:
    """One freedom: its label, its options in words, and the options under which it is asked at all."""

    label: str
    options: tuple[str, ...]
    context: tuple[Option, ...]


class Chooser:
    """Answer each choice as `wanted` says, or else with the first option; record what was asked and answered."""

    def __init__(self, wanted: Mapping[str, int] | None = None) -> None:
        self.wanted = dict(wanted or {})
        self.points: dict[str, Point] = {}
        self.made: dict[str, int] = {}
        self._context: list[Option] = []

    def pick(self, label: str, options: Sequence[str], forced: int | None = None) -> int:
        """The number of the option to take; `forced`, if given, is the only one possible here."""
        if len(options) < 2:
            return 0
        if label not in self.made:
            wanted = self.wanted.get(label, 0)
            self.made[label] = forced if forced is not None else wanted if wanted < len(options) else 0
            self.points[label] = Point(label, tuple(options), tuple(self._context))
        return self.made[label]

    @contextmanager
    def below(self, label: str) -> Iterator[None]:
        """A context in which everything is asked only because of the option taken for `label`."""
        if label not in self.made:
            yield
            return
        self._context.append((label, self.made[label]))
        yield
        self._context.pop()

    @property
    def options(self) -> frozenset[Option]:
        """Every option taken."""
        return frozenset(self.made.items())


@dataclass
class Coverage:
    """The known options (and pairs of options), and those that some instance of the rule has had."""

    points: dict[str, Point] = field(default_factory=dict)
    covered: set[Option] = field(default_factory=set)
    pairs: set[tuple[Option, Option]] = field(default_factory=set)
    asked: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each freedom, the choices of a spelling in which it was asked: one that ran, if there is any."""

    def learn(self, chooser: Chooser) -> None:
        """Record the freedoms that a spelling was asked about."""
        for label, point in chooser.points.items():
            self.asked.setdefault(label, dict(chooser.made))
            known = self.points.get(label)
            # The fewest choices that lead to a freedom are kept; some options may exist only in some spellings.
            if known is None or len(point.context) < len(known.context) or len(point.options) > len(known.options):
                self.points[label] = point

    def cover(self, chooser: Chooser) -> None:
        """Record that a spelling ran and that the rule fired on it."""
        for label in chooser.made:
            if not any((label, index) in self.covered for index in range(len(self.points[label].options))):
                self.asked[label] = dict(chooser.made)
        self.covered |= chooser.options
        self.pairs.update(itertools.combinations(sorted(chooser.options), 2))

    def uncovered(self) -> list[Option]:
        """Options that no instance had."""
        return [
            (label, index)
            for label, point in self.points.items()
            for index in range(len(point.options))
            if (label, index) not in self.covered
        ]

    def text(self, option: Option) -> str:
        """An option in words, such as `bias: absent`."""
        return f"{option[0]}: {self.points[option[0]].options[option[1]]}"

    def count(self) -> tuple[int, int]:
        """The number of known options, and of known pairs of options whose freedoms can be asked together."""
        points = list(self.points.values())
        pairs = sum(
            len(one.options) * len(other.options) for one, other in itertools.combinations(points, 2)
            if _compatible(one, other)
        )  # fmt: skip
        return sum(len(point.options) for point in points), pairs


def _compatible(one: Point, other: Point) -> bool:
    wanted = dict(one.context)
    return all(wanted.get(label, index) == index for label, index in other.context)


def spellings(attempt: Callable[[Chooser], bool], coverage: Coverage, budget: int, seed: int = 0) -> None:
    """Let `attempt` build spellings until each option was tried, and `budget` more for pairs of options.

    `attempt` builds what a chooser says, records it in `coverage`, and returns whether to continue.
    """
    tried: set[Option] = set()
    if not attempt(Chooser()):
        return
    while True:
        missing = next((option for option in coverage.uncovered() if option not in tried), None)
        if missing is None:
            break
        tried.add(missing)
        if not attempt(Chooser({**dict(coverage.points[missing[0]].context), missing[0]: missing[1]})):
            return
    # Freedoms that their context alone does not lead to are reached by the choices that led to them before.
    for label, index in coverage.uncovered():
        if not attempt(Chooser({**coverage.asked[label], label: index})):
            return
    generator = random.Random(seed)
    for _ in range(budget):
        wanted = _next_pair(coverage, generator)
        if wanted is None or not attempt(Chooser(wanted)):
            return


def _next_pair(coverage: Coverage, generator: random.Random) -> dict[str, int] | None:
    """Options for a spelling with a pair not covered yet, and as many other new pairs as a few random fills find."""
    points = list(coverage.points.values())
    if not points:
        return None
    best: tuple[int, dict[str, int]] | None = None
    missing = coverage.uncovered()
    for _ in range(_CANDIDATES):
        wanted = {point.label: generator.randrange(len(point.options)) for point in points}
        seeds = [generator.choice(missing)] if missing else []
        seeds += [(point.label, wanted[point.label]) for point in generator.sample(points, min(2, len(points)))]
        for label, index in reversed(seeds):
            wanted |= {**dict(coverage.points[label].context), label: index}
        asked = sorted(
            (label, index)
            for label, index in wanted.items()
            if all(wanted.get(above) == option for above, option in coverage.points[label].context)
        )
        new = len(set(itertools.combinations(asked, 2)) - coverage.pairs)
        if best is None or new > best[0]:
            best = (new, wanted)
    return best[1] if best is not None and best[0] else None
