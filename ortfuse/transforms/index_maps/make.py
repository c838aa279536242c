"""Nodes of plans, and sizes for them that are computed at run time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Fill
from ortfuse.analysis.transfer.value_fact import IntTensor
from ortfuse.ir.dims import Dim, DimLike
from ortfuse.transforms.node_builder import Builder

Operand: TypeAlias = "ir.Value | Make | tuple[int, ...] | int | Fill"

_SHAPE_HAS_ENDS = 15
"""The opset from which on Shape has `start` and `end`."""


@dataclass(frozen=True)
class Make:
    """A node of a plan.

    Attributes:
        op_type: The operator.
        operands: Values, other nodes, and constants: integers in a vector or single ones, and numbers to fill with.
        attributes: The attributes.
        is_size: Whether it computes sizes.
    """

    op_type: str
    operands: tuple[Operand, ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    is_size: bool = False

    def nodes(self) -> list[Make]:
        """All nodes of the plan, each once, after those that it reads."""
        found: dict[Make, None] = {}
        for operand in self.operands:
            if isinstance(operand, Make):
                found |= dict.fromkeys(operand.nodes())
        return [*found, self]

    def sources(self) -> set[ir.Value]:
        """The values that the plan reads."""
        return {operand for node in self.nodes() for operand in node.operands if isinstance(operand, ir.Value)}


Plan: TypeAlias = "ir.Value | Make"


class Supply:
    """Values that hold sizes, for plans that need these.

    Args:
        values: Integer tensors that are computed already, and tensors whose shapes may be read.
        facts: What is known about them.
        opset: The opset for which plans are written.
    """

    def __init__(self, values: Iterable[ir.Value], facts: Facts, opset: int) -> None:
        self.opset = opset
        self._vectors: dict[tuple[DimLike, ...], ir.Value] = {}
        self._numbers: dict[DimLike, ir.Value] = {}
        self._elements: dict[DimLike, tuple[ir.Value, int]] = {}
        self._axes: dict[DimLike, tuple[ir.Value, int]] = {}
        self._shapes: dict[ir.Value, tuple[DimLike, ...]] = {}
        for value in values:
            known = facts.ints(value) if facts.dtype(value) is ir.DataType.INT64 else None
            if known is not None and None not in known.elements:
                elements = tuple([one for one in known.elements if one is not None])
                if len(known.shape) == 1:
                    self._vectors.setdefault(elements, value)
                    for place, size in enumerate(elements):
                        self._elements.setdefault(size, (value, place))
                elif not known.shape:
                    self._numbers.setdefault(elements[0], value)
            shape = self._shapes[value] = facts.shape(value) or ()
            for along, size in enumerate(shape):
                if isinstance(size, Dim):
                    self._axes.setdefault(size, (value, along))

    @property
    def sizes(self) -> frozenset[object]:
        """All sizes that there are, alone and in a row."""
        return frozenset({*self._vectors, *self._numbers, *self._axes, *self._shapes.values()})

    def tensor(self, sizes: IntTensor) -> Plan | None:
        """Return a plan for a vector of sizes or a single one; `None` if they are numbers, or cannot be computed."""
        elements = [size for size in sizes.elements if size is not None]
        if len(elements) < len(sizes.elements) or len(sizes.shape) > 1 or all(isinstance(one, int) for one in elements):
            return None
        found = self.vector(elements) if sizes.shape else self._number(elements[0])
        return found if isinstance(found, ir.Value | Make) else None

    def _number(self, size: DimLike) -> Operand | None:
        """A size of rank 0."""
        if size in self._numbers:
            return self._numbers[size]
        if size in self._elements:
            return Make("Gather", self._elements[size], (("axis", 0),), is_size=True)
        if size in self._axes:
            value, along = self._axes[size]
            return Make("Gather", (Make("Shape", (value,), is_size=True), along), (("axis", 0),), is_size=True)
        return None

    def vector(self, sizes: Sequence[DimLike]) -> Operand | None:
        """Return an operand that holds these sizes; `None` if some cannot be computed from the values."""
        if all(isinstance(size, int) for size in sizes):
            return tuple([int(size) for size in sizes])  # type: ignore[arg-type]
        known = self._vectors.get(tuple(sizes))
        if known is not None:
            return known
        parts: list[Operand] = []
        numbers: list[int] = []
        at = 0
        while at < len(sizes):
            size = sizes[at]
            if isinstance(size, int):
                numbers.append(size)
                at += 1
                continue
            row, part = self._longest(sizes[at:])
            if part is None:
                return None
            parts += [tuple(numbers), part] if numbers else [part]
            numbers = []
            at += row
        parts += [tuple(numbers)] if numbers else []
        return parts[0] if len(parts) == 1 else Make("Concat", tuple(parts), (("axis", 0),), is_size=True)

    def _longest(self, sizes: Sequence[DimLike]) -> tuple[int, Operand | None]:
        """How many of these sizes, from the first one on, one value has in a row, and a vector of them."""
        for count in range(len(sizes), 1, -1):
            row = tuple(sizes[:count])
            if not isinstance(row[-1], Dim) and count < len(sizes):
                continue
            if row in self._vectors:
                return count, self._vectors[row]
            if self.opset < _SHAPE_HAS_ENDS:
                continue
            for value, shape in self._shapes.items():
                for start in range(len(shape) - count + 1):
                    if shape[start : start + count] == row:
                        ends = () if count == len(shape) else (("start", start), ("end", start + count))
                        return count, Make("Shape", (value,), ends, is_size=True)
        return 1, self._single(sizes[0])

    def _single(self, size: DimLike) -> Operand | None:
        """A vector of one size."""
        if (size,) in self._vectors:
            return self._vectors[size,]
        if size in self._axes and self.opset >= _SHAPE_HAS_ENDS:
            value, along = self._axes[size]
            return Make("Shape", (value,), (("start", along), ("end", along + 1)), is_size=True)
        if size in self._elements:
            value, along = self._elements[size]
            return Make("Gather", (value, (along,)), (("axis", 0),), is_size=True)
        if size in self._numbers:
            return Make("Reshape", (self._numbers[size], (1,)), is_size=True)
        if size in self._axes:
            value, along = self._axes[size]
            return Make("Gather", (Make("Shape", (value,), is_size=True), (along,)), (("axis", 0),), is_size=True)
        return None


def build_plan(plan: Plan, build: Builder, opset: int) -> ir.Value:
    """Build the nodes of a plan, which is written for an opset; returns its value."""
    if isinstance(plan, ir.Value):
        return plan
    made: dict[Make, ir.Value] = {}
    mark = None if opset == build.opset else opset

    def operand_of(operand: Operand) -> ir.Value:
        if isinstance(operand, ir.Value):
            return operand
        if isinstance(operand, Make):
            return made[operand]
        if isinstance(operand, Fill):
            return build.constant(ir.Tensor(np.frombuffer(operand.content, operand.dtype.numpy())[0].copy()))
        return build.ints(operand)

    for node in plan.nodes():
        operands = [operand_of(one) for one in node.operands]
        made[node] = build.node(node.op_type, operands, dict(node.attributes), version=mark)[0]
    return made[plan]
