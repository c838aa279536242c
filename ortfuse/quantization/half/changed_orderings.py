"""Decide whether an error stems from near ties that TopK, ArgMax, ArgMin or NonMaxSuppression order differently.

Numbers that differ by rounding alone are the same to everything else. Here another row is taken, so that an output is as far off
as two rows are apart, and an output of indices has others. In the order of float32 the model is run once more: what is off then
is the error of its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.nn_module_of_node import describe_in_module
from ortfuse.quantization.metrics import METRICS
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import Arrays, Session
from ortfuse.runtime.submodel import forced

Array = np.ndarray[Any, Any]
Run = tuple[Inputs, Arrays]
"""Inputs, with what the float32 model makes of them."""

Runner = Callable[[ir.Model], Callable[[Inputs], Arrays]]
"""Loads a model; what it returns runs that on inputs of the original's types."""

PREFIX = "ortfuse.given."
"""Prefix of the names of inputs that hold decisions."""

_DECISIONS = {"TopK": 1, "ArgMax": 0, "ArgMin": 0, "NonMaxSuppression": 0}
"""Operators that decide, with the output that holds the indices."""

OPSET = 11
"""The opset from which on there is GatherElements."""

TOLD = 0.01
"""Errors from here on are looked into."""


@dataclass(frozen=True)
class InOrder:
    """The errors of outputs where everything is in the order of float32, and which operators have another, in words."""

    errors: Mapping[str, float]
    notes: Sequence[str]


def in_order(
    original: ir.Model, other: ir.Model, errors: Mapping[str, float], ran: Sequence[Run], load: Runner
) -> InOrder:
    """The errors of a model where it takes and orders what its original does; none if it does so anyway, or they are small.

    Args:
        original: The original, without functions.
        other: The model, whose indices have the names that they have in the original.
        errors: The errors of its outputs.
        ran: Inputs, with the outputs of the original.
        load: Loads `other`, or a copy.

    Raises:
        VerificationError: A model cannot be run.
    """
    nodes = list(_deciding(original)) if original.graph.opset_imports.get("", 1) >= OPSET else []
    if not nodes or max(errors.values(), default=0.0) < TOLD:
        return InOrder({}, ())
    decisions = {_indices(node).name or "": node for node in nodes}
    scores = {node.inputs[0].name or "" for node in nodes if node.inputs[0] is not None}
    session, run = (
        Session(forced(original, {}, "", {*decisions, *scores}), optimise=False),
        load(forced(other, {}, "", decisions)),
    )
    changed: dict[str, _Changed] = {}
    found = dict.fromkeys(errors, 0.0)
    given_order = None
    for inputs, outputs in ran:
        before, after = {**inputs, **session.run(inputs)}, run(inputs)
        for name, node in decisions.items():
            if not np.array_equal(before[name], after[name]):
                changed[name] = changed.get(name, _Changed(node)).with_more(before, before[name], after[name])
        given_order = given_order or load(_with_given_order(other))
        results = given_order({**inputs, **{f"{PREFIX}{name}": before[name] for name in decisions}})
        for name, error in METRICS["l2"].each(outputs, results).items():
            found[name] = max(found.get(name, 0.0), 0.0 if name in decisions else error)
    return InOrder(found, [one.text() for one in changed.values()]) if changed else InOrder({}, ())


@dataclass(frozen=True)
class _Changed:
    """An operator that decides otherwise: how often, of how many times, and how far apart what it decides between is."""

    node: ir.Node
    count: int = 0
    total: int = 0
    gap: float = 0.0

    def with_more(self, values: Mapping[str, Any], own: Array, other: Array) -> _Changed:
        """The same with another run."""
        if own.shape != other.shape:
            return _Changed(self.node, self.count + 1, self.total + 1, self.gap)
        gap = self.gap
        given = self.node.inputs[0]
        scores = None if given is None else values.get(given.name or "")
        if self.node.op_type != "NonMaxSuppression" and isinstance(scores, np.ndarray):
            gap = max(gap, _gap(self.node, scores, own, other))
        return _Changed(self.node, self.count + int((own != other).sum()), self.total + own.size, gap)

    def text(self) -> str:
        """It in words."""
        apart = f", between numbers that are at most {self.gap:.1g} of the largest apart" if self.gap else ""
        return f"{describe_in_module(self.node)} decides otherwise in {self.count} of {self.total} cases{apart}"


def _gap(node: ir.Node, scores: Array, own: Array, other: Array) -> float:
    axis = node.attributes.get_int("axis", -1 if node.op_type == "TopK" else 0) or 0
    if node.op_type != "TopK" and not node.attributes.get_int("keepdims", 1):
        own, other = np.expand_dims(own, axis), np.expand_dims(other, axis)
    one, two = (np.take_along_axis(scores, index, axis).astype(np.float64) for index in (own, other))
    largest = float(
        np.abs(scores[np.isfinite(scores)]).max(initial=0.0)
    )  # others are left out of the choice by infinity
    both = np.isfinite(one) & np.isfinite(two)
    return float(np.abs(one[both] - two[both]).max(initial=0.0)) / largest if largest else 0.0


def _deciding(model: ir.Model) -> Iterator[ir.Node]:
    """The operators of the main graph that decide."""
    for node in model.graph:
        if node.op_type in _DECISIONS and not node.domain and _indices(node).name:
            yield node


def _indices(node: ir.Node) -> ir.Value:
    return node.outputs[_DECISIONS[node.op_type]]


def _with_given_order(model: ir.Model) -> ir.Model:
    """A copy that takes the indices of operators that decide as further inputs."""
    copy = model.clone()
    graph = copy.graph
    for node in list(_deciding(copy)):
        indices = _indices(node)
        given = ir.Value(name=f"{PREFIX}{indices.name}", type=ir.TensorType(ir.DataType.INT64), shape=indices.shape)
        if node.op_type == "TopK" and node.outputs[0].name:
            _take(graph, node, given)
        for use in tuple(indices.uses()):
            use.node.replace_input_with(use.idx, given)
        graph.inputs.append(given)
    return copy


def _take(graph: ir.Graph, node: ir.Node, given: ir.Value) -> None:
    """Let what uses the numbers of a TopK take those at the given indices."""
    value = node.outputs[0]
    axis = node.attributes.get_int("axis", -1)
    made = ir.node("GatherElements", [node.inputs[0], given], {"axis": -1 if axis is None else axis})
    taken = made.outputs[0]
    taken.name, taken.type, taken.shape = f"{PREFIX}{value.name}", value.type, value.shape
    for use in tuple(value.uses()):
        use.node.replace_input_with(use.idx, taken)
    graph.insert_after(node, made)
    places = [number for number, output in enumerate(graph.outputs) if output is value]
    if places:
        value.name, taken.name = taken.name, value.name
    for number in places:
        graph.outputs[number] = taken
