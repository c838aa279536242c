"""Check that the user's inputs have the sizes that were declared of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import VerificationError
from ortfuse.ir.dims import DimLike, bounds, evaluate, only_atom
from ortfuse.runtime.inputs.random_inputs import Inputs


def demand_declared(model: ir.Model, inputs: Sequence[Inputs]) -> None:
    """Check that every set of inputs has sizes as declared: equal where one name stands, and within bounds.

    Raises:
        VerificationError: One has not.
    """
    facts = Facts(model, as_declared=True)
    shapes = {value.name or "": facts.shape(value) or () for value in model.graph.inputs}
    for number, given in enumerate(inputs):
        sizes: dict[str, int] = {}
        axes = [
            (name, axis, dim, size)
            for name, shape in shapes.items()
            for axis, (dim, size) in enumerate(zip(shape, _shape(given.get(name)), strict=False))
        ]
        for name, axis, dim, size in axes:
            atom = only_atom(dim)
            known = size if atom is None or atom.kind else sizes.setdefault(atom.name, size)
            low, high = bounds(dim)
            if known != size or (low is not None and size < low) or (high is not None and size > high):
                raise VerificationError(_refused(number, name, axis, size, dim, known))
        for name, axis, dim, size in axes:
            try:
                expected = evaluate(dim, sizes)
            except (KeyError, ZeroDivisionError):
                continue
            if expected != size:
                raise VerificationError(_refused(number, name, axis, size, dim, expected))


def _shape(array: Any) -> tuple[int, ...]:
    return array.shape if isinstance(array, np.ndarray) else ()


def _refused(number: int, name: str, axis: int, size: int, dim: DimLike, known: int) -> str:
    low, high = bounds(dim)
    said = f"{dim}, which is {known} here" if known != size else f"{dim}, declared to be within {low}:{high}"
    return f"inputs {number}: '{name}' has {size} along axis {axis}, and that is {said}; give inputs as declared"
