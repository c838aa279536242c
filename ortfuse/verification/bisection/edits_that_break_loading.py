"""Find the edits without which the runtime loads a result, where it does not load the result as it is.

A result can be right and still break when a session optimises it. The first edit with which the runtime no longer loads the
model is found by binary search and left out, until the rest loads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.ir.edit import Edit, Inspector
from ortfuse.ir.refusal import Refusal, Subject, refuse
from ortfuse.pipeline.manager import NECESSARY
from ortfuse.runtime.load_check import Loading
from ortfuse.runtime.session_subprocess import Level
from ortfuse.verification.bisection.bisect_pipeline import Gate, Key, Restriction
from ortfuse.verification.bisection.delta_debugging import first_showing

_MOST = 12
"""Edits that are left out before it is given up."""


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
    """The edits without which the runtime loads the result; `None` if it does not do so either without any edit.

    Args:
        make: Runs the pipeline on a fresh copy of the model under an inspector.
        levels: The levels of the runtime's own optimisations at which it has to load.
    """

    def loads(inspector: Inspector) -> bool:
        return not Loading.of_graph(make(inspector), levels).problem()

    avoided: list[Key] = []
    while len(avoided) < _MOST:
        gate = Gate(Restriction())
        if loads(Avoiding(avoided, gate)):
            return tuple(avoided)
        count = len(gate.applied)
        if not count or not loads(Avoiding(avoided, Gate(Restriction(first=0)))):
            return None
        last = first_showing(count, lambda first: not loads(Avoiding(avoided, Gate(Restriction(first=first)))))
        avoided.append(gate.applied[last - 1])
    return None
