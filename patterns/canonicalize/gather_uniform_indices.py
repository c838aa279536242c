"""Gather fewer rows where an Add broadcasts them: for indices that are all the same, or expanded along the batch.

x + table[k, k, ...] = x + row k              x + table[expand(i, shape)] = x + table[i]

Rationale: token-type embeddings without an input, and position embeddings that are the same for the whole batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, attr, computed, const, op, var

from .._rule_test_inputs import computed_shape
from .._shared_guards import same_shape

SOURCE = "ONNX operator Gather"

x, indices = var("x"), var("indices")


def _is_of_rows(axis: Any, facts: Facts) -> bool:
    return axis in (None, 0)


rows = attr("axis", _is_of_rows, "the first")


def names_one_row(match: Match) -> Refusal | None:
    """All indices are the same, of a row that the table has."""
    row, shape = match.facts.fill(match["same"]), match.shape("table")
    if row is None or shape is None or not isinstance(shape[0], int):
        return match.refuse("values_unknown", "same", "one number everywhere")
    return match.unless_value("same", -shape[0] <= row < shape[0], f"a row of {shape[0]}")


def _row(match: Match) -> np.ndarray[Any, Any]:
    row: np.ndarray[Any, Any] = match.const("table")[match.facts.fill(match["same"])]
    return row


def is_repeated(match: Match) -> Refusal | None:
    """Indices are repeated along axes of size 1, and no axes are added."""
    shapes = match.shapes("indices", "repeated")
    if isinstance(shapes, Refusal):
        return shapes
    small, wide = shapes
    alike = len(small) == len(wide) and all(dim in (1, other) for dim, other in zip(small, wide, strict=True))
    return None if alike else match.refuse("shape", "indices", wide)


def _is_integer(value: ir.Value, facts: Facts) -> bool:
    return facts.fill(value) is not None and not facts.is_const(value)


def _filled(build: Any) -> ir.Value:
    """As many ones as an input has elements."""
    sizes = build.node("Shape", [build.input("like", build.dims("same"))]).outputs[0]
    made: ir.Value = build.node("ConstantOfShape", [sizes], {"value": ir.tensor(np.array([1]))}).outputs[0]
    return made


def _times(build: Any) -> ir.Value:
    """As often as x has elements along its first axis."""
    source = next(value for value in build.graph.inputs if value.name == "x")
    batch = build.node("Gather", [build.node("Shape", [source]).outputs[0], build.constant([0])]).outputs[0]
    made: ir.Value = build.node("Concat", [batch, build.constant([1])], {"axis": 0}).outputs[0]
    return made


RULES = [
    Rule(
        name="gather.add_of_splat_gather_to_add_row",
        formula="x + Gather(table, indices that are all the same)",
        pattern=op.Add(x, op.Gather(const("table"), var("same", _is_integer, "one number everywhere"), axis=rows)),
        replace=op.Add(x, computed("row", _row)),
        guards=(same_shape("x", "root"), names_one_row),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "b s 4", "table": "3 4", "same": "b s"},
            attributes={"axis": [0]},
            inputs={"same": _filled},
        ),
    ),
    Rule(
        name="gather.unbroadcast_indices_of_added_rows",
        formula="x + Gather(table, expand(indices))",
        pattern=op.Add(
            x,
            op.Gather(
                var("table"),
                (op.Expand(indices, var("shape")).kept() | op.Tile(indices, var("times")).kept()).named("repeated"),
                axis=rows,
            ),
        ),
        replace=op.Add(x, op.Gather(var("table"), indices, axis=0)),
        guards=(same_shape("x", "root"), is_repeated),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "b 3 4", "table": "6 4", "indices": "1 3", "shape": "2", "times": "2"},
            attributes={"axis": [0]},
            constants={"indices": np.array([[0, 2, 5]])},
            inputs={"shape": computed_shape("x", 1, [3]), "times": _times},
            counterexamples={
                "more positions than x has": Variation(shapes={"x": "b 1 4"}),
            },
        ),
    ),
]  # fmt: skip
