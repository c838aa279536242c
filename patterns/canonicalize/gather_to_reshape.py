"""Replace a Gather of all elements in order by Reshape.

x[i s + j t + ...] = reshape(x)        where the indices are 0, 1, 2, ... in the order of the result, as many as x has

Rationale: torch.export decomposes `as_strided` views into such a Gather.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.dims import product, reshape_target
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, computed, op, var

from .._shared_guards import ints
from ._affine_indices import rising

x, places = var("x", "n"), var("places")


def are_counted(match: Match) -> Refusal | None:
    """The places are those of all elements, in their order."""
    shapes, found = match.shapes("x", "places"), rising(match["places"], match.facts)
    if isinstance(shapes, Refusal):
        return shapes
    line, shape = shapes
    if found is None or found.start != 0 or product(shape) != line[0]:
        return match.refuse("condition", "places", "the places 0, 1, 2, ... of all elements")
    behind = [product(shape[axis + 1 :]) for axis in range(len(shape))]
    if all(dim == 1 or step == wanted for dim, step, wanted in zip(shape, found.steps, behind, strict=True)):
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
        name="gather.iota_indices_to_reshape",
        formula="Gather(x, i s + j t + ...), all elements in order",
        pattern=op.Gather(x, places, axis=0),
        replace=op.Reshape(x, computed("target", _target)),
        guards=(are_counted, has_a_target),
        exactness=Exactness.EXACT,
        source="ONNX operator Gather; torch.as_strided",
        test=RuleTest(
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
