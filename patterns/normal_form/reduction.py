"""Reductions whose axes a Reshape or Unsqueeze restores with size 1: the reduction can keep them instead (keepdims=1).

torch.export writes the variance of a normalisation like this.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.pattern import Match, attr, computed, op, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

from .._common import ints

x = var("x")
axes = attr("axes", lambda found, facts: isinstance(found, tuple) and len(found) > 0, "given")


def restores_the_axes(match: Match) -> Refusal | None:
    """The result has the shape of x with 1 for each reduced axis."""
    shape = match.shape("x")
    if shape is None:
        return match.refuse("shape", "x")
    return match.unless_shape([1 if axis in match["axes"] else dim for axis, dim in enumerate(shape)], "root")


def given_axes() -> Any:
    """The axes as an input, as in newer opsets."""
    return computed("axes", lambda match: ints(match["axes"]))


def _keepdims(name: str) -> Rule:
    build = getattr(op, name)
    reduced = build(x, axes=axes, keepdims=0)
    return Rule(
        name=f"reduction.keepdims_{name.removeprefix('Reduce').lower()}",
        formula=f"reshape({name}(x, keepdims=0))",
        pattern=op.Reshape(reduced, var("shape"), allowzero=attr("allowzero")) | op.Unsqueeze(reduced, axes=axes),
        replace=(build(x, given_axes(), keepdims=1), build(x, axes=attr("axes"), keepdims=1)),
        guards=(restores_the_axes,),
        exactness=Exactness.EXACT,
        source=f"ONNX operator {name}",
        proof=Proof(
            shapes={"x": "2 3 4", "shape": "3"},
            constants={"shape": np.array([2, 1, 4])},
            attributes={"axes": [(1,)], "allowzero": [0]},
            counterexamples={
                "all axes, not given": Variation(
                    shapes={"x": "1 1 1"}, constants={"shape": np.array([1, 1, 1])}, attributes={"axes": None}
                )
            },
        ),
    )


RULES = [_keepdims(name) for name in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2")]
