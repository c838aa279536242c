"""Find changes that the runtime's own optimisations make to the original: other numbers, or a refusal to run.

Rounding is no such change: an output counts as changed if it moves further than a few times what inputs and weights off by one
rounding move it. In a model with quantised numbers, which the runtime then computes in integers, only a change as large
as `QUANTISED` counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.ir import walk
from ortfuse.ir.traits import DEQUANTISES, MICROSOFT, QUANTISES, has
from ortfuse.runtime.comparison import compare_all
from ortfuse.runtime.reference_runs import Experiment
from ortfuse.runtime.rounding_sensitivity import FACTOR, OPTIMISED, Sensitivity
from ortfuse.runtime.session import Session
from ortfuse.runtime.verification_time_budget import Budget
from ortfuse.serialization import Record

QUANTISED = 0.3
"""The change, relative to the scale of an output, above which it is not due to integer kernels alone."""


@dataclass(frozen=True)
class RuntimeChange(Record):
    """The changes of a model by the runtime's own optimisations.

    Attributes:
        label: The inputs on which they do it.
        output: The output that changes most; empty if the runtime refuses to run.
        relative: By how much, relative to its scale; infinite where NaN, infinity or another shape appears.
        refusal: The runtime's message if it refuses to run.
        optimisers: The optimisers that do it, by the runtime's names; empty if they are not known.
        is_avoided: Whether the other model is right in spite of them.
    """

    label: str
    output: str = ""
    relative: float = 0.0
    refusal: str = ""
    optimisers: tuple[str, ...] = ()
    is_avoided: bool = False

    def named(self, optimisers: Sequence[str]) -> RuntimeChange:
        """The same with the optimisers that do it."""
        return replace(self, optimisers=tuple(optimisers))

    def text(self) -> str:
        """A sentence on what is done, and by what."""
        who = ", ".join(self.optimisers) or "its own optimisations"
        ends = "s" * (len(self.optimisers) == 1)
        if self.refusal:
            what = f"keep{ends} it from running the original with {self.label}: {self.refusal}"
        elif math.isfinite(self.relative):
            what = f"move{ends} output '{self.output}' of the original by {self.relative:.2g} of its scale with {self.label}"
        else:
            what = (
                f"change{ends} NaN, infinity or the shape of output '{self.output}' of the original with {self.label}"
            )
        avoided = "; the result avoids that" if self.is_avoided else ""
        return f"ONNX Runtime is to blame, not a rewrite: {who} {what}{avoided}"


def runtime_change(
    original: ir.Model, found: Sequence[Experiment], sensitivity: Sensitivity, budget: Budget | None = None
) -> RuntimeChange | None:
    """The changes of a model by the runtime's optimisations; `None` if they are no more than rounding.

    Args:
        original: The model.
        found: What it computes without them, on the inputs to look at.
        sensitivity: That of the model.
        budget: The time for looking.
    """
    budget = budget or Budget()
    try:
        session = Session(original, optimise=True)
    except VerificationError:
        return None  # whether a model can be loaded at all is told elsewhere
    least = QUANTISED if _is_quantised(original) else 0.0
    for experiment in found:
        if budget.left <= 0:
            break
        try:
            outputs = session.run(experiment.inputs)
        except VerificationError as error:
            return RuntimeChange(experiment.label, refusal=str(error))
        differences = compare_all(experiment.expected, outputs, experiment.reference, None, experiment.precision)
        wrong = [one for one in differences if not one.ok and one.relative > least]
        for one in sorted(wrong, key=lambda one: -one.relative):
            moved = sensitivity.of(experiment).get(one.output, {})
            own = max((far for what, far in moved.items() if what != OPTIMISED and math.isfinite(far)), default=0.0)
            if one.relative > FACTOR * own:
                return RuntimeChange(experiment.label, one.output, one.relative)
    return None


def refuses(original: ir.Model, experiment: Experiment) -> bool:
    """Whether the runtime's own optimisations keep it from running a model on inputs on which it runs it without them."""
    try:
        Session(original, optimise=True).run(experiment.inputs)
    except VerificationError:
        return True
    return False


def _is_quantised(model: ir.Model) -> bool:
    """Whether a model has quantised numbers, or weights that the runtime computes with in integers."""
    return any(
        has(node, QUANTISES | DEQUANTISES) or (node.domain == MICROSOFT and "Bits" in node.op_type)
        for node in walk.nodes(model)
    )
