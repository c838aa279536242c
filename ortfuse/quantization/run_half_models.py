"""Run half-precision models on float32 inputs, as the runtime executes them or emulated with their roundings.

The CPU provider drops most roundings to float16 and has few kernels for bfloat16.
`ortfuse.quantization.emulate_half_model_in_float32` rounds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.quantization.emulate_half_model_in_float32 import HALVES, halves_of, imitation
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import Arrays, Session
from ortfuse.runtime.unrepresentable_models import Runnable, signature_of

_ROUNDED = "the second model was also run in float32, rounded to {} after every operator: the CPU provider does not round there"
_IMITATED = "the runtime does not execute the {} of the second model: it was run in float32, rounded to that"


class LikeFloat32:
    """Sessions of a model that take and give float32 where its original does.

    Attributes:
        notes: What is to be known about how it was run.
    """

    def __init__(self, original: Runnable, other: Runnable) -> None:
        """Load `other`, and what imitates it if it has roundings to half precision that its original has not.

        Raises:
            VerificationError: The runtime refuses the model.
        """
        self.notes: list[str] = []
        before = halves_of(original) if isinstance(original, ir.Model) else HALVES
        halves = halves_of(other) - before if isinstance(other, ir.Model) else frozenset()
        names = " and ".join(sorted(kind.name.lower() for kind in halves))
        imitated = imitation(other) if halves and isinstance(other, ir.Model) else None
        self._runs: list[Callable[[Inputs], Arrays]] = []
        try:
            self._runs.append(run_of(Session(other), original, other))
        except VerificationError:
            if imitated is None:
                raise
            self.notes.append(_IMITATED.format(names))
        if imitated is None:
            return
        try:
            self._runs.append(run_of(Session(imitated, optimise=False), original, imitated))
        except VerificationError:
            if not self._runs:
                raise
        else:
            self.notes = self.notes or [_ROUNDED.format(names)]

    def runs(self, inputs: Inputs) -> list[Arrays]:
        """The outputs by name of each way to run it."""
        return [run(inputs) for run in self._runs]


def run_of(session: Session, original: Runnable, other: Runnable) -> Callable[[Inputs], Arrays]:
    """Run a session of a model on inputs of its original's types, and return outputs of those."""
    before, after = signature_of(original).graph, signature_of(other).graph
    wide = {value.name for value in (*before.inputs, *before.outputs) if value.dtype == ir.DataType.FLOAT}
    takes = {value.name: value.dtype.numpy() for value in after.inputs if value.name in wide and value.dtype in HALVES}
    widens = {value.name for value in after.outputs if value.name in wide and value.dtype in HALVES}

    def run(inputs: Inputs) -> Arrays:
        found = session.run({name: one.astype(takes[name]) if name in takes else one for name, one in inputs.items()})
        return {name: one.astype(np.float32) if name in widens else one for name, one in found.items()}

    return run
