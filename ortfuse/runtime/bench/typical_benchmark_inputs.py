"""Generate benchmark inputs of typical size: one sample of 128 positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ortfuse.errors import CrashError, VerificationError
from ortfuse.runtime.inputs.generation import attempt, searches_for
from ortfuse.runtime.inputs.random_inputs import Inputs, InputSpec, input_specs
from ortfuse.runtime.inputs.size_search import climb
from ortfuse.runtime.inputs.sizes import OpenDim, Sizes, fixed_sizes, open_dims, uniform, wanted
from ortfuse.runtime.session import Session
from ortfuse.runtime.unrepresentable_models import Runnable, signature_of

LEADING, OTHERS = 1, 128
"""Default sizes of open dimensions: batch-like ones that lead an input, and all others (lengths)."""


def typical_inputs(model: Runnable, *, sizes: Mapping[str, int] | None = None, seed: int = 0) -> tuple[str, Inputs]:
    """Generate inputs to measure a model on.

    Args:
        model: Run once on the inputs; if it refuses the usual sizes, nearby ones are used, or else such as are found by trying.
        sizes: Overrides the usual sizes, by the name of an open dimension (or `input[axis]` if it has no name).
        seed: Seed of the random numbers.

    Returns:
        A description of the sizes, and the inputs.

    Raises:
        VerificationError: The model has no open dimension of that name, or does not run on any sizes that were tried.
    """
    graph = signature_of(model)
    specs = input_specs(graph)
    dims = open_dims(specs)
    fixed = fixed_sizes(dims, sizes or {})
    usual, searches = uniform(dims, LEADING, OTHERS) | fixed, searches_for(graph, specs)
    try:
        ran, note = attempt(Session(model), specs, usual, seed, fixed, searches())
    except CrashError:
        # The measurement reports the crash; other models may run on these inputs.
        ran, note = attempt(Session(model, optimise=False), specs, usual, seed, fixed, searches())
    if ran is None:
        found = None if sizes or not isinstance(model, ir.Model) else _found_by_trying(model, specs, usual, seed)
        if found is not None:
            return found
        where = "does not run at the sizes given" if sizes else "runs on none of the sizes tried"
        raise VerificationError(f"the model {where}: {(note or '').removeprefix('left out ')}; {_advice(dims)}")
    label, inputs, _ = ran
    return label, inputs


def _found_by_trying(model: ir.Model, specs: Sequence[InputSpec], usual: Sizes, seed: int) -> tuple[str, Inputs] | None:
    """A description of sizes that are far from the usual ones, and inputs of them; `None` if no sizes were found."""
    dims, session = open_dims(specs), Session(model, optimise=False)
    targets = wanted(dims)
    for start in (usual, targets[min(1, len(targets) - 1)]):
        sizes = climb(model, specs, start, seed)
        ran = None if sizes is None else attempt(session, specs, sizes, seed, sizes)[0]
        if ran is not None:
            return f"{ran[0]} (found by trying, the usual sizes are refused)", ran[1]
    return None


def _advice(dims: Sequence[OpenDim]) -> str:
    """How to name sizes that a model takes, or inputs."""
    inputs = "give inputs with --inputs FILE.npz"
    sizes = " ".join(f"--size {dim.label}=N" for dim in dims)
    return f"name sizes that it takes with {sizes}, or {inputs}" if sizes else inputs


def usual_sizes(model: Runnable, sizes: Mapping[str, int] | None = None) -> dict[str, int]:
    """The sizes of the open dimensions, by symbol: those that are given, by name, and else the usual ones.

    Raises:
        VerificationError: The model has no open dimension of that name.
    """
    dims = open_dims(input_specs(signature_of(model)))
    return uniform(dims, LEADING, OTHERS) | fixed_sizes(dims, sizes or {})


def labels_of_sizes(model: Runnable) -> dict[str, str]:
    """Names of open dimensions in messages: those that they have, or `input[axis]`."""
    return {dim.symbol: dim.label for dim in open_dims(input_specs(signature_of(model)))}


def check_sizes(model: ir.Model, sizes: Mapping[str, int]) -> None:
    """Check that a model has open dimensions with these names.

    Raises:
        VerificationError: It has no such dimension.
    """
    fixed_sizes(open_dims(input_specs(model)), sizes)
