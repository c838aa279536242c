"""The result of measuring rule costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ortfuse.serialization import Record

Step: TypeAlias = Callable[[int, int, str], None]
"""Called before each measurement: how many are done, how many there are, and what is measured."""


@dataclass(frozen=True)
class Decision:
    """A decision that the measurements here change.

    Attributes:
        rule: The rule.
        sizes: The sizes.
        shipped: The speedup in the table that comes with ortfuse.
        measured: The speedup on this machine.
    """

    rule: str
    sizes: str
    shipped: float
    measured: float


@dataclass(frozen=True)
class Calibration(Record):
    """The costs of this machine.

    Attributes:
        runtime: The runtime that they hold for.
        processor: The processor.
        threads: The threads per operator; 0 is as many as the runtime chooses.
        speedups: What has been measured by now: speedups by sizes, by rule.
        measured: How many of these are new.
        remaining: How many are still to be measured, because the budget was used up.
        inconclusive: What could not be told because the machine was busy; it is measured again next time.
        unmeasurable: What cannot be measured here in float32: a rule is silent on what it declares, or the runtime refuses it.
        changed: The decisions that are others than those of the shipped table.
        table: The kind of processor of the shipped table, and whether it is this one's.
        file: Where the costs are kept.
        problem: Why they could not be kept; empty if they were.
    """

    runtime: str
    processor: str
    threads: int
    speedups: dict[str, dict[str, float]] = field(repr=False)
    measured: int
    remaining: int
    inconclusive: tuple[str, ...]
    unmeasurable: tuple[str, ...]
    changed: tuple[Decision, ...]
    table: tuple[str, bool]
    file: Path
    problem: str = ""
