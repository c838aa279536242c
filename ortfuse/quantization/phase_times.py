"""Record time, sessions and runs of each phase of a search."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ortfuse.runtime.session import USED
from ortfuse.serialization import Record, entry


def _rounded(seconds: float) -> float:
    return round(seconds, 3)


@dataclass
class Phase(Record):
    """One phase.

    Attributes:
        name: What is done.
        seconds: How long that takes.
        sessions: How many sessions it creates.
        runs: How many runs it makes.
    """

    name: str
    seconds: float = field(default=0.0, metadata=entry(convert=_rounded))
    sessions: int = 0
    runs: int = 0


class Phases:
    """The phases so far, each under its name; what is done within another phase counts there alone.

    Args:
        progress: Called with the name of each phase that begins.
    """

    def __init__(self, progress: Callable[[str], None] = lambda text: None) -> None:
        self.progress = progress
        self._found: dict[str, Phase] = {}
        self._open: list[Phase] = []
        self._since = self._now()

    @property
    def found(self) -> tuple[Phase, ...]:
        """The phases, in the order in which they began."""
        return tuple(self._found.values())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what is done within."""
        self._count()
        self._open.append(self._found.setdefault(name, Phase(name)))
        self.progress(name)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def _count(self) -> None:
        """Let what was done since the last time be part of the innermost phase."""
        before, self._since = self._since, self._now()
        if self._open:
            phase, spent = self._open[-1], [now - then for then, now in zip(before, self._since, strict=True)]
            phase.seconds += spent[0]
            phase.sessions += int(spent[1])
            phase.runs += int(spent[2])

    @staticmethod
    def _now() -> tuple[float, int, int]:
        return time.perf_counter(), USED["sessions"], USED["runs"]
