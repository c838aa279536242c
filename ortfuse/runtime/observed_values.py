"""Record inner values of a run, on which parts of the model are checked."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortfuse.errors import OrtfuseError
from ortfuse.runtime.inputs.generation import attempt, searches_for
from ortfuse.runtime.inputs.random_inputs import Inputs, input_specs
from ortfuse.runtime.inputs.sizes import open_dims, wanted
from ortfuse.runtime.session import Session, weight_bytes
from ortfuse.runtime.submodel import showing

LARGEST = 256 << 20
"""Models with more bytes of weights than this are not run: parts of them are checked one by one so that they need not be."""

ENOUGH = 256 << 20
"""The most bytes of values that are kept; what comes after is not observed."""


def observe(model: ir.Model, seed: int = 0) -> Inputs:
    """The values of the main graph on generated inputs of odd sizes, by name.

    Returns:
        The arrays; none if the model is large or cannot be run.
    """
    if weight_bytes(model) > LARGEST:
        return {}
    try:
        specs = input_specs(model)
        sizes = wanted(open_dims(specs))
        session = Session(showing(model), optimise=False, lean=True)
        ran, _ = attempt(session, specs, sizes[min(1, len(sizes) - 1)], seed, search=searches_for(model, specs)())
    except OrtfuseError:
        return {}
    if ran is None:
        return {}
    found: Inputs = {}
    left = ENOUGH
    for name, array in {**ran[1], **ran[2]}.items():
        if isinstance(array, np.ndarray) and array.nbytes <= left:
            found[name] = array
            left -= array.nbytes
    return found
