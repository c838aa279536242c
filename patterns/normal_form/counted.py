"""Elements of a line taken one after the other, which are the line in another shape.

x[i s + j t + ...] = reshape(x)        where the places are 0, 1, 2, ... in the order of the result, as many as x has

torch.export decomposes views by strides (`as_strided`) so, for one behind pools of one dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.dims import DimLike, product, reshape_target
from ortfuse.facts.facts import Facts
from ortfuse.pattern import Match, computed, op, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

from .._common import ints

MOST_NODES = 32
"""The most nodes that compute places."""

Steps = tuple[DimLike, ...]
"""By how much the places rise along each axis, from 0; 0 where they are all the same."""

x, places = var("x", "n"), var("places")


def _steps(value: ir.Value | None, facts: Facts) -> Steps | None:
    """How the numbers of a value rise along its axes; `None` if they do not begin with 0 and rise evenly, or that is not seen."""
    left, found = [value], dict[ir.Value, Steps | None]()
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


def _operands(value: ir.Value, facts: Facts) -> list[ir.Value]:
    """The values whose numbers make up these."""
    node = value.producer()
    if node is None or node.domain or facts.is_const(value) or node.op_type not in ("Add", "Mul", "Unsqueeze"):
        return []
    moved = node.inputs[:1] if node.op_type == "Unsqueeze" else node.inputs
    return [operand for operand in moved if operand is not None]


def _of(value: ir.Value, operands: list[Steps | None], facts: Facts) -> Steps | None:
    """The same, from that of what the value is computed from."""
    shape, node = facts.shape(value), value.producer()
    if shape is None or facts.dtype(value) is not ir.DataType.INT64:
        return None
    if facts.is_const(value):
        return _of_constant(facts.const(value))
    if node is None or node.domain:
        return None
    if node.op_type == "Range":
        start, step = (facts.ints(node.inputs[place]) for place in (0, 2))
        known = start is not None and step is not None and start.elements == (0,)
        return (step.elements[0],) if known and step is not None and step.elements[0] is not None else None
    if node.op_type == "Unsqueeze" and operands[0] is not None:
        return _spread(operands[0], facts.shape(node.inputs[0]) or (), shape)
    if node.op_type in ("Add", "Mul"):
        aligned = [_aligned(*one, shape, facts) for one in zip(operands, node.inputs, strict=True)]
        return _sum(aligned) if node.op_type == "Add" else _scaled(node, aligned, facts)
    return None


def _of_constant(array: np.ndarray[Any, Any] | None) -> Steps | None:
    if array is None or array.size == 0:
        return None
    steps = [int(np.take(array, 1, axis).flat[0]) if size > 1 else 0 for axis, size in enumerate(array.shape)]
    rising = sum(step * places for step, places in zip(steps, np.indices(array.shape), strict=True))
    return tuple(steps) if np.array_equal(array, rising) else None


def _aligned(steps: Steps | None, value: ir.Value | None, after: Sequence[DimLike], facts: Facts) -> Steps | None:
    """The steps of an operand along the axes of a result, to which it may be broadcast."""
    before = facts.shape(value)
    if steps is None or before is None:
        return None
    dims, found = after[len(after) - len(before) :], [0] * (len(after) - len(before))
    if any(dim not in (1, wanted) for dim, wanted in zip(before, dims, strict=True)):
        return None
    return (*found, *(0 if dim == 1 else step for step, dim in zip(steps, before, strict=True)))


def _sum(steps: Sequence[Steps | None]) -> Steps | None:
    known = [one for one in steps if one is not None]
    return tuple(sum(along) for along in zip(*known, strict=True)) if len(known) == len(steps) else None


def _spread(steps: Steps, before: tuple[DimLike, ...], after: tuple[DimLike, ...]) -> Steps | None:
    """The steps behind an Unsqueeze: where axes of size 1 are added does not matter, if the others stay in order."""
    left, found = [step for step, dim in zip(steps, before, strict=True) if dim != 1], list[DimLike]()
    for dim in after:
        found.append(0 if dim == 1 or not left else left.pop(0))
    return None if left else tuple(found)


def _scaled(node: ir.Node, steps: Sequence[Steps | None], facts: Facts) -> Steps | None:
    """The steps of a product with one number."""
    for place, one in enumerate(steps):
        number = facts.ints(node.inputs[1 - place])
        factor = number.elements[0] if number is not None and len(number.elements) == 1 else None
        if one is not None and factor is not None:
            return tuple(step * factor for step in one)
    return None


def are_counted(match: Match) -> Refusal | None:
    """The places are those of all elements, in their order."""
    shapes, steps = match.shapes("x", "places"), _steps(match["places"], match.facts)
    if isinstance(shapes, Refusal):
        return shapes
    line, shape = shapes
    if steps is None or len(steps) != len(shape) or product(shape) != line[0]:
        return match.refuse("condition", "places", "the places 0, 1, 2, ... of all elements")
    behind = [product(shape[axis + 1 :]) for axis in range(len(shape))]
    if all(dim == 1 or step == wanted for dim, step, wanted in zip(shape, steps, behind, strict=True)):
        return None
    return match.refuse("condition", "places", "the places 0, 1, 2, ... of all elements")


def has_a_target(match: Match) -> Refusal | None:
    """A constant Reshape target makes the result of x."""
    found = reshape_target(match.shape("x"), match.shape("places"))
    return (
        None if found is not None else match.refuse("shape", "places", "one that a constant Reshape target makes of x")
    )


def _target(match: Match) -> Any:
    return ints(reshape_target(match.shape("x"), match.shape("places")) or ())


def _places(step: int, last: int = 4) -> Any:
    """The places `step i + j` of a view of two rows and so many columns."""

    def make(build: Any) -> ir.Value:
        rows = build.constant(np.int64(2))
        counted = build.node("Range", [build.constant(np.int64(0)), rows, build.constant(np.int64(1))]).outputs[0]
        scaled = build.node("Mul", [counted, build.constant(np.int64(step))]).outputs[0]
        column = build.node("Unsqueeze", [scaled, build.constant([1, 2])]).outputs[0]
        made: ir.Value = build.node("Add", [column, build.constant(np.arange(last).reshape(-1, 1))]).outputs[0]
        return made

    return make


RULES = [
    Rule(
        name="places.counted",
        formula="x[i s + j t + ...], the places of all elements in their order",
        pattern=op.Gather(x, places, axis=0),
        replace=op.Reshape(x, computed("target", _target)),
        guards=(are_counted, has_a_target),
        exactness=Exactness.EXACT,
        source="ONNX operator Gather; torch.as_strided",
        proof=Proof(
            shapes={"x": "8"},
            inputs={"places": _places(4)},
            opset=17,
            counterexamples={
                "every second place": Variation(inputs={"places": _places(2)}),
                "overlapping": Variation(inputs={"places": _places(1)}),
                "not all of them": Variation(inputs={"places": _places(4, 3)}),
            },
        ),
    )
]
