"""Compare two models region by region, on the values of the original, to locate differences.

So no difference at one place is amplified by what comes after it, however sensitive the model is. Values of the same name
in both main graphs are taken to be meant to be the same; that they are is what is checked (see `ortfuse.ir.graph_diff`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import OrtfuseError
from ortfuse.ir.graph_diff import Region, changed
from ortfuse.runtime.comparison import compare_all
from ortfuse.runtime.float64.reference import Reference
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.reference_runs import Experiment, experiments
from ortfuse.runtime.rounding_sensitivity import shaken_model
from ortfuse.runtime.session import Session
from ortfuse.runtime.submodel import computing, declare_inputs, model_of, taken
from ortfuse.verification.compare_with_imposed_decisions import compare_decided
from ortfuse.verification.verdict import judge

SAME = 1e-6
"""Relative error in float64 up to which both sides count as the same mathematics; constants are rounded to float32."""

BLUNT = 1e-2
"""The limit of sensitivity: if weights off by one rounding move a value by more than this in float64, float64 is no judge."""

FACTOR = 4.0
"""How many times further apart in float64 both sides may be than the old one with weights off by one rounding."""

SECONDS = 120.0
"""The time limit for comparing the places of one model."""


@dataclass(frozen=True)
class Places:
    """The outcome: how many places were compared, and what is wrong at the first that is not the same, if any."""

    count: int
    wrong: str = ""

    def text(self) -> str:
        """The outcome if nothing is wrong."""
        if self.count == 1:
            return "the place where they differ computes the same on the values that reach it"
        return f"the {self.count} places where they differ compute the same on the values that reach them"


def apart_in_float64(before: ir.Model, after: ir.Model, inputs: Sequence[Inputs]) -> dict[str, float] | None:
    """The distance of each output of two models in float64, relative to its scale; `None` if that cannot be evaluated."""
    first, second = Reference(before), Reference(after)
    apart: dict[str, float] = {}
    for given in inputs:
        one = first.run(given)
        other = None if one is None else second.run(given)
        if one is None or other is None:
            return None
        for found in compare_all(one, other, None, SAME):
            apart[found.output] = max(found.relative, apart.get(found.output, 0.0))
    return apart


def compare_places(
    original: ir.Model, candidate: ir.Model, experiment: Experiment, seconds: float = SECONDS
) -> Places | None:
    """Compare two models wherever they differ, on the values that the original computes there.

    Args:
        original: The original.
        candidate: The other model.
        experiment: The original on some inputs.
        seconds: How long that may take.

    Returns:
        The outcome, or `None` if a place cannot be cut out or run, or all of them take too long.
    """
    started, count = time.monotonic(), 0
    try:
        regions = [region for region in changed(original.graph, candidate.graph, _same, inside=True) if region.outputs]
        known = _values_at(original, regions, experiment.inputs)
        for region in regions:
            if time.monotonic() - started > seconds:
                return None
            wrong = _wrong_at(region, original, candidate, known)
            if wrong:
                return Places(
                    count, f"'{region.outputs[-1][0].name}' is another value already where it is computed: {wrong}"
                )
            count += 1
    except (OrtfuseError, KeyError):
        return None
    return Places(count)


def _same(one: ir.TensorProtocol | None, other: ir.TensorProtocol | None) -> bool:
    if one is other:
        return True
    if one is None or other is None or one.dtype != other.dtype or tuple(one.shape) != tuple(other.shape):
        return False
    return one.tobytes() == other.tobytes()


def _values_at(original: ir.Model, regions: Sequence[Region], inputs: Inputs) -> dict[str, Any]:
    """The values that regions take from outside, by name, as the original computes them on `inputs`."""
    wanted = {value.name for region in regions for nodes in (region.old, region.new) for value in taken(nodes)}
    computed = {value.name: value for node in original.graph for value in node.outputs if value.name in wanted}
    known = dict(inputs)
    if computed:
        named = [(name or "", value) for name, value in computed.items()]
        known |= Session(computing(original, named), optimise=False).run(inputs)
    return known


def _wrong_at(region: Region, original: ir.Model, candidate: ir.Model, known: Mapping[str, Any]) -> str:
    """The difference of the two sides of a region, as text; empty if there is none."""
    if not region.old:
        return ""
    pairs = region.outputs
    constants = [_constant(one) is not None and _same(_constant(one), _constant(other)) for one, other in pairs]
    if all(constants):
        return ""
    before = _side(region.old, [(old.name or "", old) for old, _ in pairs], original, known)
    after = _side(region.new, [(old.name or "", new) for old, new in pairs], candidate, known)
    names = {value.name for model in (before, after) for value in model.graph.inputs}
    given = {name: known[name] for name in names if name}
    found, _ = experiments(before, [given])
    wrong = [d for trial in judge(found, after, levels=(False,)) for d in trial.outputs if not d.ok]
    decided = compare_decided(before, after, found[0], optimise=False) if wrong else None
    if decided is not None:
        wrong = [difference for difference in wrong if not decided.differences[difference.output].ok]
    apart = apart_in_float64(before, after, [given])
    most = max((apart or {}).values(), default=0.0)
    if most > SAME and most > FACTOR * _own(before, given):
        return f"in float64 by {most:.2g} of its scale"
    if apart is not None:
        wrong = [difference for difference in wrong if not np.isfinite(difference.relative)]
    return wrong[0].reason if wrong else ""


def _own(before: ir.Model, given: Inputs) -> float:
    """How far weights off by one rounding of float32 move a side in float64; 0 if so far that this says nothing."""
    moved = max((apart_in_float64(before, shaken_model(before, 0), [given]) or {}).values(), default=0.0)
    return moved if moved <= BLUNT else 0.0


def _constant(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of a constant, in whatever form it stands in the model."""
    node = value.producer()
    if node is None:
        return value.const_value
    attribute = node.attributes.get("value") if node.op_type == "Constant" and not node.domain else None
    return None if attribute is None or attribute.is_ref() else attribute.as_tensor()


def _side(
    nodes: Sequence[ir.Node], outputs: Sequence[tuple[str, ir.Value]], model: ir.Model, known: Mapping[str, Any]
) -> ir.Model:
    """The nodes of one side of a region as a model."""
    used = dict.fromkeys([*taken(nodes), *(value for _, value in outputs if value.producer() not in set(nodes))])
    constants = {
        value: value.const_value for value in used if value.const_value is not None and value.producer() is None
    }
    inputs = {value: value.name or "" for value in used if value not in constants}
    made = model_of(nodes, inputs, outputs, constants, model.graph.opset_imports, functions=model.functions.values())
    declare_inputs(made, known)
    return made
