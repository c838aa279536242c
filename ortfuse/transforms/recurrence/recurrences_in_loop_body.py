"""The recurrences in the body of a loop: cells, steps of operators, linear states and windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.ir.traits import MICROSOFT
from ortfuse.transforms.context import Context
from ortfuse.transforms.recurrence.body_cells import Recurrence, recurrences
from ortfuse.transforms.recurrence.describe_loop import Iteration
from ortfuse.transforms.recurrence.linear_state import LinearState, linear_states
from ortfuse.transforms.recurrence.recurrent_ops_in_loop_body import Step, steps_in
from ortfuse.transforms.recurrence.sequence_lengths_in_loop_body import Choices
from ortfuse.transforms.recurrence.sliding_window_states import Window, windows_in


@dataclass(frozen=True)
class Body:
    """A recognised value in the body of a loop.

    Attributes:
        iteration: What is handed on, taken and stacked.
        choices: What depends on the lengths of rows.
        cells: The recurrent cells, by their new hidden states.
        steps: The operators that make one step of a recurrence.
        linear: The states that change linearly.
        windows: The states that keep the last elements of a sequence, by what they are after a run.
    """

    iteration: Iteration
    choices: Choices
    cells: Mapping[ir.Value, Recurrence]
    steps: Mapping[ir.Node, Step]
    linear: Sequence[LinearState]
    windows: Mapping[ir.Value, Window]

    @property
    def kinds(self) -> str:
        """The recurrences by their names."""
        cells, steps = (one.kind for one in self.cells.values()), (node.op_type for node in self.steps)
        return ", ".join(sorted({*cells, *steps, *(["linear"] if self.linear else [])}))


def body_of(iteration: Iteration, context: Context) -> Body:
    """A recognised value in the body of a loop."""
    choices = Choices(iteration, context.facts)
    cells, steps = recurrences(iteration, choices, context.facts), steps_in(iteration, context.facts)
    has_linear = context.target.supports(MICROSOFT, "LinearAttention", 1, [ir.DataType.FLOAT] * 3)
    found = linear_states(iteration, context.facts) if has_linear else ()
    handed_on = [one.states for one in cells.values()] + [one.states for one in steps.values()]
    recurrent = {state.after for states in handed_on for state in states}
    linear = [one for one in found if one.state.after not in recurrent]
    return Body(iteration, choices, cells, steps, linear, windows_in(iteration, context.facts))
