"""Add a bias of zeros to LayerNormalization, for releases whose optimisers read the bias that it lacks.

layernorm(x, scale) = layernorm(x, scale, 0)

Found by creating sessions in ONNX Runtime 1.17 and 1.18: a LayerNormalization without a bias in front of several MatMuls ends the
process, unless AttentionFusion is disabled.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, attr, computed, op, var
from ortfuse.targets import Quirk

PASS = "lower_operators"

_kept = {name: attr(name) for name in ("axis", "epsilon", "stash_type")}


def _known_shape(match: Match) -> list[int] | None:
    shape = match.shape("scale")
    sizes = [size for size in shape or () if isinstance(size, int)]
    return sizes if shape is not None and len(sizes) == len(shape) else None


def _shape_is_known(match: Match) -> Refusal | None:
    if match.dtype("scale") is None:
        return match.refuse("dtype", "scale", "a known type")
    return None if _known_shape(match) is not None else match.refuse("shape", "scale", "known sizes")


def _zeros(match: Match) -> np.ndarray[Any, Any]:
    dtype = match.dtype("scale")
    assert dtype is not None
    return np.zeros(_known_shape(match) or (), dtype.numpy())


RULES = [
    Rule(
        name="layernorm.add_zero_bias",
        pattern=op.LayerNormalization(var("x"), var("scale"), **_kept),
        replace=op.LayerNormalization(var("x"), var("scale"), computed("bias", _zeros), **_kept),
        guards=(_shape_is_known,),
        is_refinement=True,
        because=Quirk.READS_ABSENT_BIASES,
        exactness=Exactness.ROUNDING,
        source="ONNX operator LayerNormalization",
        test=RuleTest(
            shapes=({"x": "b s 8", "scale": "8"}, {"x": "b 3 8", "scale": "3 8"}),
            attributes=(
                {"axis": [-1, 2], "epsilon": [1e-5, 0.1], "stash_type": [1]},
                {"axis": [1], "epsilon": [1e-5], "stash_type": [1]},
            ),
            opset=17,
        ),
    ),
]
