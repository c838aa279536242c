"""Find the edits without which the runtime loads a result, where it does not load the result as it is.

A result can be right and still break when a session optimises it. The first edit with which the runtime no longer loads the
model is found by binary search and left out, until the rest loads. Each search begins behind the edit that the last one found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import onnx_ir as ir

from ortfuse.ir.edit import Edit, Inspector
from ortfuse.ir.refusal import Refusal, Subject, refuse
from ortfuse.pipeline.manager import NECESSARY
from ortfuse.runtime.load_check import Loading
from ortfuse.runtime.session_subprocess import Level
from ortfuse.verification.bisection.bisect_pipeline import Gate, Key, Restriction
from ortfuse.verification.bisection.delta_debugging import first_showing

_MOST_RUNS = 40
"""Runs of the pipeline before it is given up. Each takes about as long as the optimisation itself."""

_ALIKE = 3
"""Edits of one rule or pass after which all others of it are left out, too: in models with many layers, each layer has one."""


@dataclass
class Avoiding:
    """An inspector that leaves some edits out, and asks another one about the rest."""

    avoided: Collection[Key]
    then: Inspector | None = None
    left_out: set[Key] = field(default_factory=set)

    def objection(self, edit: Edit) -> Refusal | None:
        """Why an edit is left out, if it is."""
        key = (edit.author, edit.name)
        if key in self.avoided and edit.author not in NECESSARY:
            self.left_out.add(key)
            return refuse("left_out", Subject("value", edit.name), found="the runtime would not load the result")
        return None if self.then is None else self.then.objection(edit)


def edits_to_avoid(make: Callable[[Inspector], ir.Model], levels: Sequence[Level]) -> tuple[Key, ...] | None:
    """The edits without which the runtime loads the result; `None` if there are none, or finding them takes too many runs.

    Args:
        make: Runs the pipeline on a fresh copy of the model under an inspector.
        levels: The levels of the runtime's own optimisations at which it has to load.
    """

    runs = 0

    def loads(inspector: Inspector) -> bool:
        nonlocal runs
        runs += 1
        if runs > _MOST_RUNS:
            raise _TooManyRunsError
        return not Loading.of_graph(make(inspector), levels).problem()

    with suppress(_TooManyRunsError):
        return _searched(loads)
    return None


class _TooManyRunsError(Exception):
    """The pipeline was run too often."""


def _searched(loads: Callable[[Inspector], bool]) -> tuple[Key, ...] | None:
    """The edits without which a result loads; `None` if it does not do so without any edit."""
    avoided: dict[Key, None] = {}
    found: Counter[str] = Counter()
    loading: int | None = None  # with this many of the first edits, it loads
    while True:
        gate = Gate(Restriction())
        if loads(Avoiding(avoided, gate)):
            return tuple(avoided)
        if loading is None and not (gate.applied and loads(Avoiding(avoided, Gate(Restriction(first=0))))):
            return None
        if len(gate.applied) <= (loading or 0):
            return None  # what was left out made other edits
        showing = partial(_breaks, loads, avoided)
        last = first_showing(len(gate.applied), showing, loading or 0)
        author, _ = culprit = gate.applied[last - 1]
        found[author] += 1
        alike = [key for key in gate.applied[last:] if key[0] == author] if found[author] >= _ALIKE else []
        avoided |= dict.fromkeys((culprit, *alike))
        loading = last - 1


def _breaks(loads: Callable[[Inspector], bool], avoided: Collection[Key], first: int) -> bool:
    """Whether the result does not load with the first edits, but for those that are avoided."""
    return not loads(Avoiding(avoided, Gate(Restriction(first=first))))
