"""Emulate operators in half precision on the CPU: each alone, on float32 inputs, rounded before and after.

This locates numerical problems at their origin, in the bodies of If, Loop and Scan too. Examples are an overflow, a sum
that loses its small terms, and the sine of a large rounded number. Operators in float32 that follow one another in a
graph are emulated together: only their common inputs are rounded. The summation order of an accelerator is unknown.
Products and sums are therefore emulated on magnitudes too, which bounds every order of summation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir import walk
from ortfuse.ir.operator_registry import sums_products
from ortfuse.ir.traits import QUANTISES, has
from ortfuse.quantization.half.add_distance_outputs import NOT_ZERO, OPSET, Reading, Tally, handed_up, has_bodies
from ortfuse.quantization.half.clamp_mask_constants import LARGEST, LEAST, clamped, is_bound, is_guard
from ortfuse.quantization.half.same_type_units import FLOAT, Units, graph_of
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import Session

_SUMS = {"ReduceSum": "ReduceSum", "ReduceMean": "ReduceL1", "ReduceL1": "ReduceL1",
         "ReduceSumSquare": "ReduceSumSquare", "ReduceL2": "ReduceSumSquare"}  # fmt: skip

_COUNTED = frozenset({"NonZero", "Unique", "Compress", "NonMaxSuppression"})
"""Operators of which the number of results depends on the numbers that they take."""

STEPS = 16.0
"""How many roundings an operator may be off by, in relation to the norm of its result."""

EPSILON = {ir.DataType.FLOAT16: 2.0**-11, ir.DataType.BFLOAT16: 2.0**-8}
"""The relative error of rounding."""


@dataclass(frozen=True)
class Finding:
    """An operator in the type chosen for it.

    Attributes:
        unit: The number of its unit.
        reason: What is wrong, in words; empty if nothing is.
        error: The norm of the error of its result in relation to that of the result; infinite if it overflows.
    """

    unit: int
    reason: str
    error: float


def emulate(units: Units, wide: Sequence[bool], inputs: Sequence[Inputs]) -> list[Finding]:
    """How operators compute in the types chosen for them, at their worst on several inputs; without those that need not change.

    Args:
        units: The model.
        wide: For each unit whether it computes in float32.
        inputs: Inputs of the model.

    Raises:
        VerificationError: The model cannot be executed on the inputs.
    """
    emulation = _Emulation(units, wide)
    worst = {finding.unit: finding for finding in emulation.known}
    if emulation.model.graph.outputs:
        session = Session(emulation.model, optimise=False, lean=True)
        for given in inputs:
            (numbers,) = session.run(given).values()
            for finding in emulation.findings(numbers.tolist()):
                known = worst.get(finding.unit)
                if known is None or finding.error > known.error:
                    worst[finding.unit] = finding
    return list(worst.values())


def defaults(graph: ir.Graph) -> dict[str, Any]:
    """The values of the inputs that a caller leaves out, by name."""
    return {value.name or "": value.const_value.numpy() for value in graph.inputs if value.const_value is not None}


class _Emulation:
    """The model that computes each operator as it is and in half precision, and outputs how far these are apart.

    Attributes:
        model: The model.
        known: What is known without running it.
    """

    def __init__(self, units: Units, wide: Sequence[bool]) -> None:
        self._units, self._wide, self._half = units, wide, units.half
        self.model, self.known = units.model.clone(), list[Finding]()
        self._readings: list[Reading] = []
        if self.model.graph.opset_imports.get("", 1) < OPSET:
            self.model.graph.outputs[:] = []
            return
        pairs = list(zip(walk.nested(units.model.graph), walk.nested(self.model.graph), strict=True))
        self._copies = {value: copy for old, new in pairs for value, copy in _values(old, new)}
        self._rounded: dict[tuple[Tally, ir.Value], ir.Value] = {}
        self._twins: dict[tuple[Tally, ir.Value], ir.Value] = {}
        self._takers: dict[tuple[Tally, ir.Value], dict[int, None]] = {}
        self._clamped = clamped(units.model, units.facts, units.half)
        self._tallies = {graph: Tally(graph) for graph in _followed(self.model.graph)}
        for old, new in pairs:
            for node, copy in list(zip(old, new, strict=True)):
                if node in units.of_node and new in self._tallies:
                    self._emulate(node, copy, self._tallies[new])
        self._hand_on(dict(pairs))
        for (tally, own), takers in self._takers.items():
            self._watch_range(tally, own, tuple(takers))
        found = handed_up(self._tallies, self.model.graph, self.model.graph.opset_imports[""])
        self.model.graph.outputs[:] = []
        if found is not None:
            self._readings, vector = found
            self.model.graph.outputs.append(vector)

    def findings(self, numbers: Sequence[float]) -> Iterator[Finding]:
        """The findings of a run.

        Args:
            numbers: The output of the model.
        """
        name, steps = self._half.name.lower(), STEPS * EPSILON[self._half]
        for reading, number in zip(self._readings, numbers, strict=True):
            reason, error = "", math.inf if number >= NOT_ZERO else number
            if reading.kind == "range":
                if not number:
                    continue
                reason, error = f"{reading.what} overflows {name}", math.inf
            elif math.isinf(number):
                reason = f"{reading.what} overflows {name}"
            elif math.isinf(error):
                reason = f"{reading.what} has other indices or integers in {name}"
                if reading.kind == "error":
                    reason = f"{reading.what} is not 0 in {name}, as it is in float32"
            elif error > steps:
                reason = f"{reading.what} is off by {error:.1g} of its norm in {name}"
            for unit in reading.units:
                yield Finding(unit, reason, error)

    def _emulate(self, node: ir.Node, copy: ir.Node, tally: Tally) -> None:
        unit, wide = self._units.of_node[node], self._wide[self._units.of_node[node]]
        places = self._units.units[unit].ports
        given = [
            self._given(node, value, unit, tally, rounded=number in places.inputs and not wide)
            for number, value in enumerate(node.inputs)
        ]
        if wide and all(
            old is None or new is self._copies.get(old) for new, old in zip(given, node.inputs, strict=True)
        ):
            return
        attributes = list(copy.attributes.values())
        twin = tally.node(node.domain, node.op_type, given, attributes, len(node.outputs), node.version)
        for number, (value, own, other) in enumerate(zip(node.outputs, copy.outputs, twin.outputs, strict=True)):
            if value.name == "":
                other.name = ""
                continue
            if number in places.outputs and not wide:
                other = self._round(tally, other)
            if wide or value in self._clamped.masked:
                self._twins[tally, value] = other
            if value not in self._clamped.masked:
                self._watch(tally, node, unit, own, other, self._units.facts.dtype(value))
        if self._half == ir.DataType.FLOAT16 and not wide:
            self._watch_sums(node, copy, unit, tally)

    def _given(
        self, node: ir.Node, value: ir.Value | None, unit: int, tally: Tally, *, rounded: bool
    ) -> ir.Value | None:
        """Return the input of the emulated copy of a node: the value of the model, rounded if it is half."""
        own = None if value is None else self._copies.get(value)
        if value is None or own is None:
            return value
        if value in self._clamped.masked and (tally, value) in self._twins:
            return self._twins[tally, value]
        if value.is_initializer() and not value.is_graph_input():
            return self._constant(node, value, own, tally) if rounded else own
        maker = self._units.makers.get(value)
        if maker is not None and (rounded or not self._wide[maker]):
            self._takers.setdefault((tally, own), {})[unit] = None
            return self._round(tally, own)
        return self._twins.get((tally, value), own)

    def _constant(self, node: ir.Node, value: ir.Value, own: ir.Value, tally: Tally) -> ir.Value:
        if is_guard(value, self._half):
            assert value.const_value is not None
            return tally.constant(np.copysign(LEAST, value.const_value.numpy()).astype(np.float32))
        if value not in self._clamped.constants and not is_bound(node, value):
            return self._round(tally, own)
        assert value.const_value is not None
        return self._round(
            tally, tally.constant(np.clip(value.const_value.numpy(), -LARGEST[self._half], LARGEST[self._half]))
        )

    def _round(self, tally: Tally, value: ir.Value) -> ir.Value:
        """Return the value rounded to half precision, as float32.

        Numbers that bfloat16 would round to infinity become its largest number.
        """
        if (tally, value) not in self._rounded:
            held = value
            if self._half == ir.DataType.BFLOAT16:
                largest = np.float32(LARGEST[self._half])
                held = tally.made("Min", [value, tally.constant(largest)])
                held = tally.made("Max", [held, tally.constant(-largest)])
            self._rounded[tally, value] = tally.cast(tally.cast(held, self._half), ir.DataType.FLOAT)
        return self._rounded[tally, value]

    def _watch(
        self, tally: Tally, node: ir.Node, unit: int, own: ir.Value, other: ir.Value, kind: ir.DataType | None
    ) -> None:
        """Measure how far the result of an operator is off."""
        if kind is None:
            return
        if kind == ir.DataType.STRING:
            self.known.append(Finding(unit, "its text would be another", math.inf))
        elif node.op_type in _COUNTED:
            tally.differ(Reading((unit,), "its result", "integers"), own, other, as_many=False)
        elif kind.is_floating_point() or kind == ir.DataType.BOOL or has(node, QUANTISES):
            tally.apart(Reading((unit,), "its result"), own, other, kind)
        else:
            tally.differ(Reading((unit,), "its result", "integers"), own, other, as_many=True)

    def _watch_sums(self, node: ir.Node, copy: ir.Node, unit: int, tally: Tally) -> None:
        """Watch what an operator adds up, in whatever order: the sum of the magnitudes must not overflow."""
        if sums_products(node):
            operator, magnitudes = node.op_type, [value and tally.made("Abs", [value]) for value in copy.inputs]
        elif node.op_type in _SUMS and not node.domain:
            operator, magnitudes = _SUMS[node.op_type], [tally.made("Abs", copy.inputs[:1]), *copy.inputs[1:]]
        else:
            return
        attributes = list(copy.attributes.values())
        total = tally.node(node.domain, operator, magnitudes, attributes, version=node.version).outputs[0]
        reading = Reading((unit,), "the sum of what it adds up")
        tally.apart(reading, total, self._round(tally, total), ir.DataType.FLOAT)

    def _watch_range(self, tally: Tally, value: ir.Value, units: tuple[int, ...]) -> None:
        """Watch whether an operand is rounded to infinity; the numbers of bfloat16 end where those of float32 do."""
        if self._half == ir.DataType.FLOAT16:
            tally.beyond(Reading(units, "an operand", "range"), value, BEYOND)

    def _hand_on(self, copies: dict[ir.Graph, ir.Graph]) -> None:
        """Watch loop-carried values in half precision that are computed in float32."""
        units = self._units
        for value, uses in units.uses.items():
            for use, unit in uses.items():
                graph = graph_of(use)
                is_end = unit == FLOAT or units.units[unit].node is not None or use[0] is units.model.graph
                if is_end or self._wide[unit] or not self._wide[units.makers.get(value, FLOAT)]:
                    continue
                tally = self._tallies.get(copies[graph])
                if tally is not None:
                    own = self._copies[value]
                    reading = Reading((unit,), "what it hands on")
                    tally.apart(reading, own, self._round(tally, own), ir.DataType.FLOAT)


def _values(old: ir.Graph, new: ir.Graph) -> Iterator[tuple[ir.Value, ir.Value]]:
    """The values of a graph with those of its copy."""
    yield from zip(old.inputs, new.inputs, strict=True)
    yield from ((value, new.initializers[name]) for name, value in old.initializers.items())
    for node, copy in zip(old, new, strict=True):
        yield from zip(node.outputs, copy.outputs, strict=True)


def _followed(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph, and the bodies in it from which numbers can be handed up."""
    yield graph
    for node in graph:
        if has_bodies(node):
            for body in walk.subgraphs(node):
                yield from _followed(body)


BEYOND = LARGEST[ir.DataType.FLOAT16] * (1 + 2.0**-12)
"""The least number that is rounded to infinity."""


def overflows(array: Any, half: ir.DataType) -> bool:
    """Whether a finite number is rounded to infinity; the numbers of bfloat16 end where those of float32 do."""
    if half == ir.DataType.BFLOAT16 or not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        return False
    return bool((np.isfinite(array) & (np.abs(array) >= BEYOND)).any())
