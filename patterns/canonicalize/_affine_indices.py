"""Index tensors as affine functions of position: a start and a stride for each axis, read off the nodes that compute them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.ir.traits import RESHAPES

MOST_NODES = 32
"""The most nodes that compute places."""

_MOVED = frozenset({*RESHAPES, "Expand"})
_OPERATORS = frozenset({"Add", "Mul", *_MOVED})


@dataclass(frozen=True)
class Rising:
    """Numbers that rise evenly along each axis.

    Attributes:
        start: The first of them.
        steps: By how much they rise along each axis; 0 where they are all the same.
    """

    start: DimLike
    steps: tuple[DimLike, ...]


def rising(value: ir.Value | None, facts: Facts) -> Rising | None:
    """How the numbers of a tensor of int64 rise; `None` if they do not rise evenly along all axes, or that is not seen."""
    left, found = [value], dict[ir.Value, Rising | None]()
    while left and len(found) <= MOST_NODES:
        one = left[-1]
        if one is None:
            return None
        operands = _operands(one, facts)
        missing = [operand for operand in operands if operand not in found]
        if missing and len(left) <= MOST_NODES:
            left += missing
        else:
            found[one] = _of(one, [found.get(operand) for operand in operands], facts)
            left.pop()
    return found.get(value) if value is not None else None


def rising_constant(array: np.ndarray[Any, Any] | None) -> Rising | None:
    """The same of a constant."""
    if array is None or array.size == 0:
        return None
    first = int(array.flat[0])
    steps = [int(np.take(array, 1, axis).flat[0]) - first if size > 1 else 0 for axis, size in enumerate(array.shape)]
    counted: Any = first
    for axis, (step, size) in enumerate(zip(steps, array.shape, strict=True)):
        counted = counted + step * np.arange(size).reshape(-1, *(1,) * (array.ndim - axis - 1))
    return Rising(first, tuple(steps)) if bool(np.all(array == counted)) else None


def _operands(value: ir.Value, facts: Facts) -> list[ir.Value]:
    """The values whose numbers make up these."""
    node = value.producer()
    if node is None or node.domain or facts.is_const(value) or node.op_type not in _OPERATORS:
        return []
    moved = node.inputs[:1] if node.op_type in _MOVED else node.inputs
    return [operand for operand in moved if operand is not None]


def _of(value: ir.Value, operands: list[Rising | None], facts: Facts) -> Rising | None:
    """The same, from that of what the value is computed from."""
    shape, node = facts.shape(value), value.producer()
    if shape is None or facts.dtype(value) is not ir.DataType.INT64:
        return None
    if facts.is_const(value):
        return rising_constant(facts.const(value))
    if node is None or node.domain:
        return None
    if node.op_type == "Range":
        return _range(node, facts)
    if node.op_type in RESHAPES and operands[0] is not None:
        return _spread(operands[0], facts.shape(node.inputs[0]) or (), shape)
    if node.op_type in ("Add", "Mul", "Expand"):
        aligned = [_aligned(*one, shape, facts) for one in zip(operands, node.inputs, strict=False)]
        return aligned[0] if node.op_type == "Expand" else _combined(node, aligned, facts)
    return None


def _range(node: ir.Node, facts: Facts) -> Rising | None:
    known = [facts.ints(node.inputs[place]) for place in (0, 2)]
    start, step = (None if one is None else one.elements[0] for one in known)
    return None if start is None or step is None else Rising(start, (step,))


def _aligned(found: Rising | None, value: ir.Value | None, after: Sequence[DimLike], facts: Facts) -> Rising | None:
    """The numbers of an operand along the axes of a result, to which it may be broadcast."""
    before = facts.shape(value)
    if found is None or before is None:
        return None
    more = len(after) - len(before)
    if any(dim not in (1, wanted) for dim, wanted in zip(before, after[more:], strict=True)):
        return None
    steps = [0 if dim == 1 else step for step, dim in zip(found.steps, before, strict=True)]
    return Rising(found.start, (*(0,) * more, *steps))


def _spread(found: Rising, before: tuple[DimLike, ...], after: tuple[DimLike, ...]) -> Rising | None:
    """The numbers in another shape: where axes of size 1 are added or dropped does not matter, if the others stay."""
    left = [(step, dim) for step, dim in zip(found.steps, before, strict=True) if dim != 1]
    if [dim for _, dim in left] != [dim for dim in after if dim != 1]:
        return None
    return Rising(found.start, tuple([0 if dim == 1 else left.pop(0)[0] for dim in after]))


def _combined(node: ir.Node, operands: Sequence[Rising | None], facts: Facts) -> Rising | None:
    """Sums, and products with one number."""
    known = [one for one in operands if one is not None]
    if node.op_type == "Add":
        if len(known) < len(operands):
            return None
        steps = tuple(sum(along) for along in zip(*(one.steps for one in known), strict=True))
        return Rising(sum(one.start for one in known), steps)
    for place, one in enumerate(operands):
        number = facts.ints(node.inputs[1 - place])
        factor = number.elements[0] if number is not None and len(number.elements) == 1 else None
        if one is not None and factor is not None:
            return Rising(one.start * factor, tuple(step * factor for step in one.steps))
    return None
