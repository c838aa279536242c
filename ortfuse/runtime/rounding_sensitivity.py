"""Measure how far a model's outputs move when nothing but rounding changes.

The original is run again in ways that must not matter: with the runtime's own optimisations, with inputs and with weights
that are off by one rounding. The movement of its outputs, and their distance from float64, are the model's own
sensitivity. A result that moves further than `FACTOR` times that is not explained by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.ir import walk
from ortfuse.runtime.comparison import TOLERANCES, compare
from ortfuse.runtime.reference_runs import Experiment
from ortfuse.runtime.session import Arrays, Session, weight_bytes

FACTOR = 8.0
"""How many times further than the model moves by itself a result may be: the largest of a few samples is no bound."""

DRAWS = 3
"""How often inputs, and weights, are moved by one rounding."""

LARGEST = 256 << 20
"""Models with more bytes of weights than this are not run with other weights."""

OPTIMISED = "the runtime's optimisations"
"""One of the ways in which the original is run again."""

Array = np.ndarray[Any, Any]
Moved = Mapping[str, Mapping[str, float]]
"""For each output, what was changed and how far the output moved, relative to its scale."""


class Sensitivity:
    """The sensitivity of a model; each experiment is measured once, when it is first asked for."""

    def __init__(self, original: ir.Model) -> None:
        self._original = original
        self._known: dict[int, Moved] = {}

    def of(self, experiment: Experiment) -> Moved:
        """The movement of each output on the inputs of an experiment."""
        if id(experiment) not in self._known:
            self._known[id(experiment)] = self._measured(experiment)
        return self._known[id(experiment)]

    def _measured(self, experiment: Experiment) -> Moved:
        moved: dict[str, dict[str, float]] = {name: {} for name in experiment.expected}
        for what, outputs in self._runs(experiment.inputs):
            for name, array in experiment.expected.items():
                distance = compare(name, array, outputs.get(name)).relative
                moved[name][what] = max(distance, moved[name].get(what, 0.0))
        for name, array in experiment.expected.items():
            exact = (experiment.reference or {}).get(name)
            if isinstance(exact, np.ndarray) and _comparable(array, exact):
                moved[name]["float64"] = compare(name, array, exact.astype(array.dtype)).relative
        return moved

    def _runs(self, inputs: Mapping[str, Any]) -> Iterator[tuple[str, Arrays]]:
        """The outputs of the original under different rounding."""
        with suppress(VerificationError):
            yield OPTIMISED, Session(self._original, optimise=True).run(inputs)
        with suppress(VerificationError):
            session = Session(self._original, optimise=False)
            for seed in range(DRAWS):
                yield "inputs off by one rounding", session.run(shaken_inputs(inputs, seed))
        if weight_bytes(self._original) > LARGEST:
            return
        for seed in range(DRAWS):
            with suppress(VerificationError):
                yield (
                    "weights off by one rounding",
                    Session(shaken_model(self._original, seed), optimise=False).run(inputs),
                )


def _comparable(array: Any, exact: Array) -> bool:
    """Whether an output has floating-point numbers and was evaluated in float64."""
    return isinstance(array, np.ndarray) and array.shape == exact.shape and array.dtype.name in TOLERANCES


def shaken_inputs(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The inputs with each floating-point number that is not whole moved to a neighbour."""
    rng = np.random.default_rng(seed)
    return {name: shaken(array, rng) if isinstance(array, np.ndarray) else array for name, array in inputs.items()}


def shaken_model(model: ir.Model, seed: int) -> ir.Model:
    """A copy of the model with each floating-point weight that is not whole moved to a neighbour."""
    copy, rng = model.clone(), np.random.default_rng(seed)
    for graph in walk.graphs(copy):
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.dtype.is_floating_point():
                value.const_value = ir.Tensor(shaken(tensor.numpy(), rng), name=value.name)
    for node in walk.nodes(copy):
        attribute = node.attributes.get("value") if node.op_type == "Constant" and not node.domain else None
        if attribute is not None and not attribute.is_ref() and attribute.value.dtype.is_floating_point():
            node.attributes["value"] = ir.AttrTensor("value", ir.Tensor(shaken(attribute.value.numpy(), rng)))
    return copy


def shaken(array: Array, rng: np.random.Generator) -> Array:
    """An array of floating-point numbers in which those that are not whole are replaced by the next larger or smaller one."""
    limits = TOLERANCES.get(array.dtype.name)
    if limits is None or not array.size:
        return array
    with np.errstate(all="ignore"):
        wide = array.astype(np.float64)
        step = wide * rng.choice([-limits.epsilon, limits.epsilon], array.shape)
        movable = np.isfinite(wide) & (wide != np.round(wide))
        return np.asarray(np.where(movable, wide + step, wide)).astype(array.dtype)
