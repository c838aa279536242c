"""Operands that an operator broadcasts by itself, and factors of 1 in every place.

x / expand(y, shape(x)) = x / y           x * ones = x
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.facts.facts import Facts
from ortfuse.pattern import const, op, var
from ortfuse.rewrite import Exactness, Proof, Rule

from .._common import same_shape
from .._proofs import NUMBERS, computed_shape

SOURCE = "Multidirectional broadcasting in ONNX"
LARGEST = 1 << 16
"""Numbers of a constant that are looked at."""

x, y = var("x"), var("y")
expanded = op.Expand(y, var("shape")).kept()


def is_ones(value: ir.Value, facts: Facts) -> bool:
    """A check for constants: every number is 1, of a constant that is not large."""
    sizes = [dim for dim in facts.shape(value) or () if isinstance(dim, int)]
    if not sizes or len(sizes) != facts.rank(value):
        return False
    array = facts.const(value) if 0 < math.prod(sizes) <= LARGEST else None
    return array is not None and bool(np.all(array == 1))


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
        proof=Proof(
            shapes={"x": "b 3 4", "y": "b 3 1", "shape": "3"}, inputs={"shape": computed_shape("x", 1, [3, 4])}
        ),
    )


RULES = [
    *(_without_expand(name) for name in ("Add", "Sub", "Mul", "Div")),
    Rule(
        name="broadcast.ones",
        formula="x * ones",
        pattern=op.Mul(x, const("ones", is_ones, "all 1")),
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
