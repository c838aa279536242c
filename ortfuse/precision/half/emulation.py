"""Emulates operators in half precision on the CPU: each alone, on what the float32 model computes, rounded before and after.

So an overflow, a sum that loses its small terms, or the sine of a large rounded number is seen where it arises, and at no other
place. Operators in float32 that follow one another are emulated together: only what enters them is rounded. How an accelerator
adds up is not known; products and sums are therefore emulated on magnitudes too, which bounds every order of summation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.execution.inputs import Inputs
from ortfuse.execution.session import Session
from ortfuse.precision.half.masks import LARGEST, LEAST, clamped, is_bound, is_guard
from ortfuse.precision.half.network import Units

_SUMS = {"ReduceSum": "ReduceSum", "ReduceMean": "ReduceL1", "ReduceL1": "ReduceL1",
         "ReduceSumSquare": "ReduceSumSquare", "ReduceL2": "ReduceSumSquare"}  # fmt: skip
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "FusedMatMul"})

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
    if not emulation.model.graph.outputs:
        return []
    session = Session(emulation.model, optimise=False, lean=True)
    worst: dict[int, Finding] = {}
    for given in inputs:
        for finding in emulation.findings(given, session.run(given)):
            known = worst.get(finding.unit)
            if known is None or finding.error > known.error:
                worst[finding.unit] = finding
    return list(worst.values())


def defaults(graph: ir.Graph) -> dict[str, Any]:
    """What the inputs are that a caller leaves out, by name."""
    return {value.name or "": value.const_value.numpy() for value in graph.inputs if value.const_value is not None}


@dataclass(frozen=True)
class _Watch:
    """Two values, by name, that should be the same, and what to call the second; `kind` is their type."""

    unit: int
    own: str
    other: str
    what: str
    kind: ir.DataType


class _Emulation:
    """The model that computes each operator as it is and in half precision, and outputs both."""

    def __init__(self, units: Units, wide: Sequence[bool]) -> None:
        self._units, self._wide, self._half = units, wide, units.half
        self.model = units.model.clone()
        self._graph = self.model.graph
        pairs = list(zip(units.model.graph, self._graph, strict=True))
        self._copies: dict[ir.Value, ir.Value] = dict(zip(units.model.graph.inputs, self._graph.inputs, strict=True))
        for value in units.model.graph.initializers.values():
            self._copies[value] = self._graph.initializers[value.name or ""]
        for node, copy in pairs:
            self._copies.update(zip(node.outputs, copy.outputs, strict=True))
        self._rounded: dict[ir.Value, ir.Value] = {}
        self._twins: dict[ir.Value, ir.Value] = {}
        self._watched: list[_Watch] = []
        self._takers: dict[str, set[int]] = {}
        self._shown: dict[ir.Value, None] = {}
        self._clamped = clamped(units.model, units.facts, units.half)
        for node, copy in pairs:
            if node in units.of_node:
                self._emulate(node, copy)
        self._graph.outputs[:] = list(self._shown)

    def findings(self, inputs: Inputs, outputs: Mapping[str, Any]) -> list[Finding]:
        """What a run says."""
        known, name = {**defaults(self._graph), **inputs, **outputs}, self._half.name.lower()
        found = []
        for watch in self._watched:
            error, infinite = _apart(known[watch.own], known[watch.other], watch.kind)
            if infinite:
                found.append(Finding(watch.unit, f"{watch.what} overflows {name}", math.inf))
            else:
                off = f"{watch.what} is off by {error:.1g} of its norm in {name}"
                found.append(Finding(watch.unit, off if error > STEPS * EPSILON[self._half] else "", error))
        for value, takers in self._takers.items():
            if overflows(known[value], self._half):
                found += [Finding(unit, f"an operand overflows {name}", math.inf) for unit in takers]
        return found

    def _emulate(self, node: ir.Node, copy: ir.Node) -> None:
        unit, wide = self._units.of_node[node], self._wide[self._units.of_node[node]]
        places = self._units.units[unit].ports
        given = [
            self._given(node, value, unit, rounded=number in places.inputs and not wide)
            for number, value in enumerate(node.inputs)
        ]
        if wide and all(
            old is None or new is self._copies.get(old) for new, old in zip(given, node.inputs, strict=True)
        ):
            return
        twin = self._node(node, node.op_type, given, list(copy.attributes.values()), len(node.outputs))
        for number, (value, own, other) in enumerate(zip(node.outputs, copy.outputs, twin.outputs, strict=True)):
            if value.name == "":
                other.name = ""
                continue
            if number in places.outputs and not wide:
                other = self._round(other)
            if wide or value in self._clamped.masked:
                self._twins[value] = other
            if value not in self._clamped.masked:
                self._watch(unit, own, other, "its result", self._units.facts.dtype(value))
        if self._half == ir.DataType.FLOAT16 and not wide:
            self._sums(node, copy, unit)

    def _given(self, node: ir.Node, value: ir.Value | None, unit: int, *, rounded: bool) -> ir.Value | None:
        """What the twin of a node takes for an input: the value that the model computes, rounded if it is half."""
        own = None if value is None else self._copies.get(value)
        if value is None or own is None:
            return value
        if value in self._clamped.masked and value in self._twins:
            return self._twins[value]
        if value.is_initializer() and not value.is_graph_input():
            return self._constant(node, value, own) if rounded else own
        maker = self._units.makers.get(value)
        if maker is not None and (rounded or not self._wide[maker]):
            self._takers.setdefault(own.name or "", set()).add(unit)
            self._show(own, ir.DataType.FLOAT)
            return self._round(own)
        return self._twins.get(value, own)

    def _constant(self, node: ir.Node, value: ir.Value, own: ir.Value) -> ir.Value:
        if is_guard(value, self._half):
            assert value.const_value is not None
            return self._number(np.copysign(LEAST, value.const_value.numpy()).astype(np.float32))
        if value not in self._clamped.constants and not is_bound(node, value):
            return self._round(own)
        assert value.const_value is not None
        return self._round(self._number(np.clip(value.const_value.numpy(), -LARGEST[self._half], LARGEST[self._half])))

    def _round(self, value: ir.Value) -> ir.Value:
        """The value rounded to half precision, as float32. What bfloat16 could only round to infinity is its largest number."""
        if value not in self._rounded:
            held = value
            if self._half == ir.DataType.BFLOAT16:
                largest = np.float32(LARGEST[self._half])
                held = self._made("Max", [self._made("Min", [value, self._number(largest)]), self._number(-largest)])
            narrow = self._made("Cast", [held], [ir.AttrInt64("to", int(self._half))])
            self._rounded[value] = self._made("Cast", [narrow], [ir.AttrInt64("to", int(ir.DataType.FLOAT))])
        return self._rounded[value]

    def _sums(self, node: ir.Node, copy: ir.Node, unit: int) -> None:
        """Watch what an operator adds up, in whatever order: the sum of the magnitudes must not overflow."""
        if node.op_type in _PRODUCTS:
            operator, magnitudes = node.op_type, [value and self._made("Abs", [value]) for value in copy.inputs]
        elif node.op_type in _SUMS and not node.domain:
            operator, magnitudes = _SUMS[node.op_type], [self._made("Abs", copy.inputs[:1]), *copy.inputs[1:]]
        else:
            return
        total = self._node(node, operator, magnitudes, list(copy.attributes.values()), 1).outputs[0]
        self._watch(unit, total, self._round(total), "the sum of what it adds up", ir.DataType.FLOAT)

    def _watch(self, unit: int, own: ir.Value, other: ir.Value, what: str, kind: ir.DataType | None) -> None:
        if kind is None:
            return
        self._show(own, kind)
        self._show(other, kind)
        self._watched.append(_Watch(unit, own.name or "", other.name or "", what, kind))

    def _show(self, value: ir.Value, kind: ir.DataType) -> None:
        """Output a value that is no input."""
        if value.producer() is not None:
            value.type = value.type or ir.TensorType(kind)
            self._shown[value] = None

    def _node(
        self,
        like: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Sequence[ir.Attr],
        outputs: int,
    ) -> ir.Node:
        made = ir.Node(like.domain, op_type, inputs, attributes, version=like.version, num_outputs=outputs)
        self._graph.append(made)
        return made

    def _made(self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr] = ()) -> ir.Value:
        made = ir.Node("", op_type, inputs, attributes)
        self._graph.append(made)
        return made.outputs[0]

    def _number(self, array: Any) -> ir.Value:
        return self._made("Constant", [], [ir.AttrTensor("value", ir.tensor(np.asarray(array)))])


def _apart(own: Any, other: Any, kind: ir.DataType) -> tuple[float, bool]:
    """How far two arrays are apart in relation to the norm of the first, where that is finite; whether the second overflows."""
    if kind.is_floating_point():
        usable = np.isfinite(own)
        wide, off = np.where(usable, own, 0).astype(np.float64), np.where(usable, other, 0).astype(np.float64)
        if not np.isfinite(off).all():
            return math.inf, True
        size, distance = float(np.linalg.norm(wide)), float(np.linalg.norm(wide - off))
        return (distance / size if size else 0.0 if distance == 0 else math.inf), False
    differing = float(np.mean(own != other)) if own.size else 0.0
    if kind == ir.DataType.BOOL:
        return differing, False
    return (math.inf if differing else 0.0), False  # another integer may be another row


def overflows(array: Any, half: ir.DataType) -> bool:
    """Whether a finite number is rounded to infinity; the numbers of bfloat16 end where those of float32 do."""
    if half == ir.DataType.BFLOAT16 or not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        return False
    return bool((np.isfinite(array) & (np.abs(array) >= LARGEST[half] * (1 + 2.0**-12))).any())
