"""Expansions that the operator's own broadcasting makes unnecessary, and factors that are all ones.

x / expand(y, shape(x)) = x / y           x * ones = x
where(expand(condition, shape(x)), x, y) = where(condition, x, y)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.pattern import Match, const, op, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule

from .._common import is_filled_with, same_shape
from .._proofs import NUMBERS, computed_shape

SOURCE = "Multidirectional broadcasting in ONNX"

x, y = var("x"), var("y")
expanded = op.Expand(y, var("shape")).kept()


_EXPANDED = {"x": "b 3 4", "y": "b 3 1", "shape": "3"}
_expanded_shape = computed_shape("y", 1, [3, 4])


def _without_expand(name: str) -> Rule:
    build: Any = getattr(op, name)
    return Rule(
        name=f"broadcast.{name.lower()}",
        formula=f"{name}(x, expand(y, shape(x)))",
        pattern=build(x, expanded),
        replace=build(x, y),
        guards=(same_shape("x", "root"),),
        exactness=Exactness.EXACT,
        source=SOURCE,
        proof=Proof(shapes=_EXPANDED, inputs={"shape": _expanded_shape}),
    )


def branch_has_shape(match: Match) -> Refusal | None:
    """One of the branches has the shape of the result already."""
    return match.unless_same_shape("x", "root") and match.unless_same_shape("other", "root")


RULES = [
    Rule(
        name="broadcast.where",
        formula="Where(expand(y, shape(x)), x, other)",
        pattern=op.Where(expanded, x, var("other")),
        replace=op.Where(y, x, var("other")),
        guards=(branch_has_shape,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        proof=Proof(
            shapes=({**_EXPANDED, "other": "1"}, {**_EXPANDED, "x": "1", "other": "b 3 4"}),
            inputs={"y": "bool", "shape": _expanded_shape},
        ),
    ),
    *(_without_expand(name) for name in ("Add", "Sub", "Mul", "Div")),
    Rule(
        name="broadcast.ones",
        formula="x * ones",
        pattern=op.Mul(x, const("ones", is_filled_with(1), "all 1")),
        replace=x,
        guards=(same_shape("x", "root"),),
        exactness=Exactness.EXACT,
        source=SOURCE,
        proof=Proof(
            shapes={"x": "b 3 4", "ones": "3 1"},
            constants={"ones": np.ones((3, 1))},
            redundant={"demand that *": NUMBERS},
        ),
    ),
]
