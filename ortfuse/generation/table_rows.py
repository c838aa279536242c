"""The greatest number of tokens for which the tables that positions index have rows."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import GenerationError
from ortfuse.generation.positional_values import Evaluator, PositionalValues, Step


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
            if isinstance(rows, int) and node.inputs[0] not in values and node.inputs[1] is not None:
                most = _greatest(most, _reads_rows(values.evaluator([node.inputs[1]]), rows))
        elif node.op_type == "RotaryEmbedding":
            for value in node.inputs[2:4] if node.domain else node.inputs[1:3]:
                shape = facts.shape(value)
                if shape and len(shape) == 2 and isinstance(shape[0], int):
                    most = min(most, shape[0])
    if most < 2:
        raise GenerationError("the tables that positions index have rows for one token only")
    return most


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
