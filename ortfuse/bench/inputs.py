"""Inputs of the size that a benchmark is usually about: one sample of 128 positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ortfuse.errors import CrashError, VerificationError
from ortfuse.execution.experiments import attempt
from ortfuse.execution.input_sizes import OpenDim, open_dims, uniform
from ortfuse.execution.inputs import Inputs, input_specs
from ortfuse.execution.session import Session

LEADING, OTHERS = 1, 128
"""Sizes of open dimensions: those that lead an input (batches), and the others (lengths)."""


def typical_inputs(model: ir.Model, *, sizes: Mapping[str, int] | None = None, seed: int = 0) -> tuple[str, Inputs]:
    """Generate inputs to measure a model on.

    Args:
        model: Is run once on them; where it refuses the usual sizes, others near them are taken.
        sizes: By the name of an open dimension (or `input[axis]` if it has none), instead of the usual ones.
        seed: Of the random numbers.

    Returns:
        The sizes in words, and the inputs.

    Raises:
        VerificationError: The model has no such open dimension, or runs on nothing that was tried.
    """
    specs = input_specs(model)
    dims = open_dims(specs)
    fixed = _fixed(dims, sizes or {})
    usual = uniform(dims, LEADING, OTHERS) | fixed
    try:
        ran, note = attempt(Session(model), specs, usual, seed, fixed)
    except CrashError:
        # That is for the measurement to say; other models may run on what this one accepts.
        ran, note = attempt(Session(model, optimise=False), specs, usual, seed, fixed)
    if ran is None:
        raise VerificationError(f"the model runs on none of the sizes tried: {note}")
    label, inputs, _ = ran
    return label, inputs


def check_sizes(model: ir.Model, sizes: Mapping[str, int]) -> None:
    """See that a model has open dimensions of these names.

    Raises:
        VerificationError: It has not.
    """
    _fixed(open_dims(input_specs(model)), sizes)


def _fixed(dims: Sequence[OpenDim], sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes by symbol instead of by name."""
    symbols = {dim.label: dim.symbol for dim in dims}
    for name in sizes:
        if name not in symbols:
            there = f"write one of {', '.join(symbols)}" if symbols else "all their sizes are fixed"
            raise VerificationError(f"size of '{name}': the inputs have no open dimension of that name; {there}")
    return {symbols[name]: size for name, size in sizes.items()}
