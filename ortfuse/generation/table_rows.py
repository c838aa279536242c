"""The tables that positions index: how many tokens they have rows for, and slices of them as rows of the new tokens.

Formula: table[past : past + n] = table[past], ..., table[past + n - 1], for tables of at least past + n rows. A Slice stops at
the end of its table instead, so that the number of its rows is not known to be that of the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import GenerationError
from ortfuse.generation.decoder_interface import DecoderInterface
from ortfuse.generation.positional_values import Evaluator, PositionalValues, Step
from ortfuse.ir.dims import DimLike, at_most, is_nonnegative


def rows_allow(model: ir.Model, facts: Facts, values: PositionalValues, most: int) -> int:
    """The greatest length up to `most` for which all tables have rows.

    Args:
        model: A decoder.
        facts: Its facts.
        values: Its positional values.
        most: The length that is asked for.

    Raises:
        GenerationError: There are rows for one token only.
    """
    for node in model.graph:
        if (node.domain, node.op_type) == ("", "Gather") and node.inputs[1] in values:
            shape = facts.shape(node.inputs[0])
            rows = shape[node.attributes.get_int("axis", 0) or 0] if shape else None
            if isinstance(rows, int) and facts.is_fixed(node.inputs[0]) and node.inputs[1] is not None:
                most = _greatest(most, _reads_rows(values.evaluator([node.inputs[1]]), rows))
        elif node.op_type == "RotaryEmbedding":
            for value in node.inputs[2:4] if node.domain else node.inputs[1:3]:
                shape = facts.shape(value)
                if shape and len(shape) == 2 and isinstance(shape[0], int) and facts.is_fixed(value):
                    most = min(most, shape[0])
    if most < 2:
        raise GenerationError("the tables that positions index have rows for one token only")
    return most


def slices_to_rows(model: ir.Model, facts: Facts, interface: DecoderInterface, most: int) -> int:
    """Let Gather read the rows of constant tables that a Slice takes from one position to another, in place.

    Args:
        model: A decoder.
        facts: Its facts. They do not hold afterwards.
        interface: Its interface.
        most: The length that is asked for.

    Returns:
        The greatest length up to `most` for which the tables have these rows, which then are the same.
    """
    length = (facts.shape(interface.tokens) or (None, None))[1]
    past = (facts.shape(interface.caches[0].past) or ())[interface.caches[0].axis]
    if length is None or model.graph.opset_imports.get("", 0) < _RANGE:
        return most
    while slices := list(_slices_of_tables(model.graph, facts, past + length)):
        for node, axis, rows in slices:
            most = min(most, rows)
            _read_rows(model.graph, node, axis)
        while _drop_clamps(model.graph, facts, past + length, most):
            facts.renew()
        facts.renew()  # the sizes of what follows are only known now
    return most


def _drop_clamps(graph: ir.Graph, facts: Facts, total: DimLike, most: int) -> bool:
    """Replace Min(c, n) by n, in place, where n is at most the number of tokens and that is at most c; whether there was one.

    Exporters compute the rows of a slice that way: Min(rows, past + n) - Min(rows, past).
    """
    found = False
    for node in list(graph):
        if (node.domain, node.op_type) != ("", "Min") or len(node.inputs) != 2 or not node.outputs[0].uses():
            continue
        for number, clamp in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
            bound, counted = facts.const(clamp), None if number is None else facts.ints(number)
            if number is None or bound is None or counted is None or bound.size != 1 or bound.dtype.kind != "i":
                continue
            is_same = facts.shape(number) == facts.shape(node.outputs[0])
            if (
                is_same
                and bound.item() >= most
                and all(one is not None and at_most(one, total) for one in counted.elements)
            ):
                for use in tuple(node.outputs[0].uses()):
                    use.node.replace_input_with(use.idx, number)
                found = True
                break
    return found


def _slices_of_tables(graph: ir.Graph, facts: Facts, total: DimLike) -> Iterator[tuple[ir.Node, int, int]]:
    """Slices of constant tables between positions, with their axis and the rows that the tables have."""
    tables = set[ir.Value]()
    for node in graph:
        table = node.inputs[0] if node.inputs else None
        if table is None or not (facts.is_const(table) or table in tables) or node.domain:
            continue
        if node.op_type == "Gather":
            tables.add(node.outputs[0])
        found = _slice_of(node, facts) if node.op_type == "Slice" else None
        if found is None:
            continue
        tables.add(node.outputs[0])
        axis, start, end = found
        rows = (facts.shape(table) or ())[axis]
        if isinstance(rows, int) and not isinstance(end, int) and is_nonnegative(start) and at_most(end, total):
            yield node, axis, rows


_RANGE = 11
"""The opset that has Range."""


def _slice_of(node: ir.Node, facts: Facts) -> tuple[int, DimLike, DimLike] | None:
    """The axis, start and end of a Slice of one axis with a step of 1."""
    rank, numbers = facts.rank(node.inputs[0]), list(node.inputs[1:])
    read = [None if one is None else facts.ints(one) for one in (*numbers, *[None] * 4)[:4]]
    is_single = [
        one is None or (ints is not None and len(ints.elements) == 1) for one, ints in zip(numbers, read, strict=False)
    ]
    if rank is None or not all(is_single):
        return None
    start, end, axis, step = (None if known is None else known.elements[0] for known in read)
    axis, step = (0 if read[2] is None else axis), (1 if read[3] is None else step)
    if start is None or end is None or step != 1 or not isinstance(axis, int):
        return None
    return axis % rank, start, end


def _read_rows(graph: ir.Graph, node: ir.Node, axis: int) -> None:
    """Put a Gather in the place of a Slice."""
    names = [f"{node.name or node.outputs[0].name}_{what}" for what in ("scalar", "one")]
    kind = node.inputs[1].dtype if node.inputs[1] is not None else None
    arrays = (np.zeros(0, np.int64), np.array(1, np.int32 if kind == ir.DataType.INT32 else np.int64))
    shape, one = (
        ir.Value(name=name, const_value=ir.tensor(array, name=name)) for name, array in zip(names, arrays, strict=True)
    )
    for value, array in ((shape, arrays[0]), (one, arrays[1])):
        value.type, value.shape = ir.TensorType(ir.DataType.from_numpy(array.dtype)), ir.Shape(array.shape)
        graph.register_initializer(value)
    ends = [ir.node("Reshape", [number, shape]) for number in node.inputs[1:3]]
    counted = ir.node("Range", [*(end.outputs[0] for end in ends), one])
    gather = ir.node("Gather", [node.inputs[0], counted.outputs[0]], {"axis": axis})
    for number, made in enumerate((*ends, counted, gather)):
        made.outputs[0].name = f"{node.outputs[0].name}_rows_{number}"
    graph.insert_before(node, [*ends, counted, gather])
    old, new = node.outputs[0], gather.outputs[0]
    new.type = old.type
    for use in tuple(old.uses()):
        use.node.replace_input_with(use.idx, new)
    graph.outputs[:] = [new if value is old else value for value in graph.outputs]
    graph.remove(node, safe=True)


def _greatest(most: int, holds: Callable[[int], bool]) -> int:
    """The greatest number up to `most` for which something holds that holds for all smaller ones."""
    if holds(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _reads_rows(evaluator: Evaluator, rows: int) -> Callable[[int], bool]:
    """Whether all indices are below a number of rows when the last of so many tokens comes."""

    def holds(length: int) -> bool:
        (indices,) = next(evaluator.at([Step(length - 1, 1)]))
        return bool(indices.max(initial=0) < rows)

    return holds
