"""Values that masks choose: `Where(m, a, b)`, `m a + (1 - m) b`, `b + m (a - b)`, `m a`; and what masks compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from typing import TypeVar

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.ir.traits import RESHAPES
from ortfuse.rewrite.pattern.node_parameters import parameter

COMPARISONS = {"Less": (True, 0), "LessOrEqual": (True, 1), "GreaterOrEqual": (False, 0), "Greater": (False, 1)}
"""Whether number ? length is true before the end, and what is to be added to a length for the end."""

MIRRORED = {"Less": "Greater", "LessOrEqual": "GreaterOrEqual", "Greater": "Less", "GreaterOrEqual": "LessOrEqual"}
_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)

_T = TypeVar("_T")


def chosen(
    node: ir.Node, facts: Facts, said: Callable[[ir.Value, DimLike], tuple[_T, bool] | None]
) -> tuple[_T, ir.Value, ir.Value | None] | None:
    """By what the result of a node, [batch, size], is chosen, and its values before the end of a row and from there on.

    `said` tells of a condition, [batch, 1], what it says about the ends of rows, and whether it is true before them.
    """
    shape = facts.shape(node.outputs[0])
    if shape is None or len(shape) != 2:
        return None
    for mask, yes, no in selections(node, facts):
        condition = _unexpanded(mask)
        found = said(condition, shape[0]) if facts.shape(condition) == (shape[0], 1) else None
        if found is not None:
            before, behind = (yes, no) if found[1] else (no, yes)
            if before is not None:
                return found[0], before, behind
    return None


def _unexpanded(mask: ir.Value) -> ir.Value:
    """The repeated part of a mask."""
    node = mask.producer()
    expands = node is not None and node.op_type == "Expand" and not node.domain
    return node.inputs[0] or mask if expands and node is not None else mask


def selections(node: ir.Node, facts: Facts) -> Iterator[tuple[ir.Value, ir.Value, ir.Value | None]]:
    """Masks by which a node may choose, with what it takes where they are true and where they are not (`None`: 0)."""
    operands = [value for value in node.inputs if value is not None]
    if node.domain:
        return
    if node.op_type == "Where":
        yield operands[0], operands[1], operands[2]
    if node.op_type == "Mul":
        for mask, yes in permutations(operands, 2):
            yield mask, yes, None
    if node.op_type == "Add":
        yield from _sums(operands, facts)


def _sums(operands: list[ir.Value], facts: Facts) -> Iterator[tuple[ir.Value, ir.Value, ir.Value]]:
    for first, second in permutations(operands, 2):
        for mask, yes in permutations(_operands_of(first, "Mul"), 2):
            for rest, no in permutations(_operands_of(second, "Mul"), 2):
                if _is_rest(rest, mask, facts):
                    yield mask, yes, no
            if (difference := _operands_of(yes, "Sub")) and difference[1] is second:
                yield mask, difference[0], second


def _operands_of(value: ir.Value, op_type: str) -> list[ir.Value]:
    """The operands of the node of a type that computes a value; none if another one does."""
    node = value.producer()
    found = [] if node is None or node.domain or node.op_type != op_type else [*node.inputs]
    return [operand for operand in found if operand is not None]


def _is_rest(value: ir.Value, mask: ir.Value, facts: Facts) -> bool:
    """Whether a value is 1 - mask, or converted from the opposite of what the mask is converted from."""
    operands = _operands_of(value, "Sub")
    if operands and operands[1] is mask:
        return facts.fill(operands[0]) == 1
    (one, is_negated), (other, is_other_negated) = _truth(mask, facts), _truth(value, facts)
    return one is not None and one is other and is_negated is not is_other_negated


def _truth(value: ir.Value, facts: Facts) -> tuple[ir.Value | None, bool]:
    """The truth values from which a value is converted, and whether from their opposite."""
    found = next(iter(_operands_of(value, "Cast")), None)
    if found is None or facts.dtype(found) != ir.DataType.BOOL:
        return None, False
    opposites = _operands_of(found, "Not")
    return (opposites[0], True) if opposites else (found, False)


def opposite(node: ir.Node, facts: Facts) -> ir.Value | None:
    """The mask of which a node computes the opposite: Not, or 1 - mask."""
    if node.domain or node.op_type not in ("Not", "Sub"):
        return None
    if node.op_type == "Not":
        return node.inputs[0]
    is_same_shape = facts.shape(node.inputs[1]) == facts.shape(node.outputs[0]) is not None
    return node.inputs[1] if is_same_shape and facts.fill(node.inputs[0]) == 1 else None  # type: ignore[arg-type]


def axis_above(node: ir.Node, axis: int, facts: Facts) -> int | None:
    """Return the index of an axis in the operand of a node that moves axes or is elementwise."""
    before, after = facts.shape(node.inputs[0]), facts.shape(node.outputs[0])
    if before is None or after is None or after[axis] == 1:
        return None
    if node.op_type == "Cast":
        return axis
    if node.op_type == "Transpose":
        found = parameter(node, "perm", facts)[axis]
        return found if isinstance(found, int) else None
    places = [place for place, size in enumerate(before) if size != 1]
    if node.op_type not in RESHAPES or [before[place] for place in places] != [size for size in after if size != 1]:
        return None
    return places[sum(size != 1 for size in after[:axis])]


def is_row(value: ir.Value, axis: int, facts: Facts) -> bool:
    """Whether all axes of a value have size 1 but one, counted from the back."""
    shape = facts.shape(value)
    if shape is None or -axis > len(shape):
        return False
    return all(size == 1 for place, size in enumerate(shape) if place != len(shape) + axis)


def first_in_range(value: ir.Value, facts: Facts) -> int | None:
    """The first of numbers that are counted up in a row."""
    known, total = facts.ints(value), 0
    if known is not None and known.elements:
        first = known.elements[0]
        counted = isinstance(first, int) and list(known.elements) == list(range(first, first + len(known.elements)))
        return first if counted and isinstance(first, int) else None
    while (node := value.producer()) is not None and not node.domain and node.op_type != "Range":
        more = added(node, facts)
        if more is None or node.inputs[0] is None:
            return None
        total, value = total + more, node.inputs[0]
    if node is None or node.domain or facts.scalar(node.inputs[2]) != 1:
        return None
    begin = facts.scalar(node.inputs[0])
    return begin + total if isinstance(begin, int) else None


def added(node: ir.Node, facts: Facts) -> int | None:
    """Return the constant that a node adds to integers, if it changes nothing else but axes of size 1."""
    if node.op_type in ("Add", "Sub"):
        number = facts.scalar(node.inputs[1])
        return None if not isinstance(number, int) else number if node.op_type == "Add" else -number
    is_moved = node.op_type in RESHAPES | {"Cast"} and facts.dtype(node.outputs[0]) in _INTEGERS
    return 0 if is_moved else None


def row_lengths(
    value: ir.Value, batch: DimLike, axis: int | None, facts: Facts, body: ir.Graph | None = None
) -> ir.Value | None:
    """A value before the loop with this body that has one integer for each row, and none of its own along an axis."""
    while body is not None and value.graph is body and (node := value.producer()) is not None and not node.domain:
        if node.op_type not in RESHAPES or node.inputs[0] is None:
            return None
        value = node.inputs[0]
    shape = facts.shape(value)
    if shape is None or (body is not None and value.graph is body) or facts.dtype(value) not in _INTEGERS:
        return None
    if axis is not None and -axis <= len(shape) and shape[axis] != 1:
        return None
    rows = [size for size in shape if size != 1]
    return value if rows == ([] if batch == 1 else [batch]) else None
