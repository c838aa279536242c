"""Tell which int64 numbers fit into int32, and which are elements of tensors rather than sizes.

*Assumes:* Axes have at most 10^9 elements, and so have results of Range: as int64 they would fill 8 GB, more than WebAssembly and
the buffers of WebGPU hold. Casts of infinities and NaN to integers, which ONNX leaves undefined, may give anything.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.ranges.queries import Asking, RangeOf, Values
from ortfuse.analysis.ranges.range import Range, between, limits, of_pieces, stored
from ortfuse.ir.dims import DimLike, bounds, minimum, substituted, symbol, symbols

MOST_ELEMENTS = 10**9
"""The most elements of an axis."""

MOST_NODES = 64
"""The most nodes above an index that are looked at."""

_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)
_SHORT = limits(ir.DataType.INT32)
_PASSED = frozenset({
    *("Add", "Sub", "Mul", "Div", "CumSum", "Neg", "Abs", "Sign", "Min", "Max", "Clip", "Mod", "Unsqueeze", "Squeeze"),
    *("Reshape", "Expand", "Transpose", "Concat", "Tile", "Slice", "Gather", "Identity", "Flatten"),
})  # fmt: skip
"""Operators whose operands may be elements of tensors."""

_MAKES_ELEMENTS = frozenset({"Where", "Range", "ArgMax", "ArgMin", "TopK"})
_OF_THE_GPU = (ir.DataType.INT32, ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.FLOAT16)


class _IndexRange(RangeOf):
    """Return the range of the elements, where axes have at most `MOST_ELEMENTS`."""

    def answer(self, value: ir.Value, values: Values) -> Range | None:
        """The range of a value, None if nothing is known."""
        fact = values.analysis.fact(value)
        if fact.dtype in _INTEGERS and not fact.is_constant:
            elements = fact.integers() or ()
            known = [_bounded(element) for element in elements if element is not None]
            if known and len(known) == len(elements):
                pieces = [(low, high) for low, high in map(bounds, known) if low is not None and high is not None]
                return of_pieces(pieces) if len(pieces) == len(known) else None
        return super().answer(value, values)

    def _computed(self, value: ir.Value, values: Values) -> Range | None:
        node = value.producer()
        asking = None if node is None or node.domain else Asking(node, value, self, values)
        if asking is not None and asking.node.op_type == "Range":
            return _of_range(asking, super()._computed(value, values))
        if asking is not None and asking.node.op_type == "Cast" and _becomes_integer(asking):
            found: Range | None = asking.ask(asking.operand(0))
            return None if found is None else _truncated(found)
        return super()._computed(value, values)


def _bounded(size: DimLike) -> DimLike:
    """A number computed of sizes, each of which is at most that of the largest axis."""
    return substituted(size, {name: minimum(symbol(name), MOST_ELEMENTS) for name in symbols(size)})


def _of_range(op: Asking, found: Range | None) -> Range | None:
    """The numbers of a Range, of which there are not more than an axis has."""
    start, step = (op.ask(op.operand(index)) for index in (0, 2))
    if found is None or start is None or step is None or step.levels is None or len(step.levels) != 1 or start.nan:
        return found
    reach = (MOST_ELEMENTS - 1) * next(iter(step.levels))
    low, high = max(found.low, start.low + min(reach, 0)), min(found.high, start.high + max(reach, 0))
    return between(low, high) if low <= high else found


def _becomes_integer(op: Asking) -> bool:
    source = op.dtype(0)
    return source is not None and source.is_floating_point() and op.result_dtype in _INTEGERS


def _truncated(found: Range) -> Range | None:
    """Numbers as integers; of infinities and NaN these are not defined."""
    pieces = [piece for piece in found.pieces if all(map(math.isfinite, piece))]
    if any(math.isfinite(low) != math.isfinite(high) for low, high in found.pieces) or not pieces:
        return None
    return stored([(math.trunc(low), math.trunc(high)) for low, high in pieces], ir.DataType.INT64)


INDEX_RANGE = _IndexRange()
"""Asks for the range of int64 elements, where axes have at most `MOST_ELEMENTS`."""


def fits_int32(facts: Facts, value: ir.Value, *, as_integer: bool = False) -> bool:
    """Whether all elements are within int32; with `as_integer`, those of a float value after a Cast."""
    found: Range | None = facts.answering(INDEX_RANGE)(value)
    if found is not None and as_integer:
        found = _truncated(found)
    return found is not None and not found.nan and _SHORT[0] <= found.low and found.high <= _SHORT[1]


def counts_in_int32(facts: Facts, start: ir.Value, limit: ir.Value, step: ir.Value, numbers: ir.Value) -> bool:
    """Whether a Range of int64 counts upwards, and is the same in int32.

    The limit is at most a step behind the last number, unless there are no numbers, as with a limit below the start.
    """
    ask = facts.answering(INDEX_RANGE)
    by, least, found = facts.scalar(step), ask(limit), ask(numbers)
    if not isinstance(by, int) or by < 1 or least is None or found is None or not fits_int32(facts, start):
        return False
    return bool(_SHORT[0] <= least.low and _SHORT[0] <= found.low and found.high + by <= _SHORT[1])


def has_elements(facts: Facts, value: ir.Value | None) -> bool:
    """Whether int64 arithmetic reads elements of tensors that the GPU makes, or could make; sizes and inputs are not that."""
    stack, seen = [value], set[ir.Value]()
    while stack and len(seen) < MOST_NODES:
        one = stack.pop()
        node = None if one is None else one.producer()
        if one is None or node is None or one in seen or node.domain not in ("", "ai.onnx") or _is_size(facts, one):
            continue
        seen.add(one)
        if node.op_type in _MAKES_ELEMENTS:
            return True
        if node.op_type == "Cast" and facts.dtype(node.inputs[0]) in _OF_THE_GPU:
            return True
        if node.op_type in _PASSED:
            stack += [given for given in node.inputs if facts.dtype(given) == ir.DataType.INT64]
    return False


def _is_size(facts: Facts, value: ir.Value) -> bool:
    """Whether all elements are known as formulas of sizes."""
    known = facts.ints(value)
    return known is not None and all(element is not None for element in known.elements)
