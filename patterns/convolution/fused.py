"""Convolutions fused with what follows them: residual sum and activation.

fused_conv(x, W, b, z) = act(conv(x, W) + b + z)

The runtime makes the same of the nodes by itself wherever that pays; on the CPU the residual sum is fused only where both
operands are in its blocked layout (see `ortfuse.targets.blocked_layout`), and so never costs anything. The pass runs after the
others of the family: what is added may be a branch that the weights take.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.remark import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule
from ortfuse.rewrite.pattern import Match, computed, ms, op, opt, redundant, var
from ortfuse.targets import Quirk, unless_blocked

from .._common import is_not_quantised, same_shape
from .._proofs import COST, KERNEL
from ._instances import PADDED, images, typical
from ._layers import CONV, bias, convolution, weight, x

PASS = "fuse.fused_convolution"

RUNTIME = "ONNX Runtime contrib operator FusedConv"


@redundant(COST)
def runs_in_blocks(match: Match) -> Refusal | None:
    """Convolution and residual are in the runtime's blocked layout, if it has one."""
    if Quirk.UNBLOCKS_RESIDUAL_CONVOLUTIONS not in match.quirks:
        return None
    return unless_blocked(match["layer"], match.facts) or unless_blocked(match["z"], match.facts)


def zeros(match: Match) -> Any:
    """A bias of zeros, one per output channel."""
    array = match.const("weight")
    return np.zeros(array.shape[0], array.dtype)


def _pooled(build: Any) -> ir.Value:
    """A residual in the blocked layout."""
    image = build.input("image", build.dims("z"))
    made: ir.Value = build.node("MaxPool", [image], {"kernel_shape": [1, 1]}).outputs[0]
    return made


z = var("z")

RULES = [
    Rule(
        name="conv.residual_relu",
        pattern=op.Relu(convolution() + z),
        replace=ms.FusedConv(x, weight, bias | computed("zeros", zeros), z, activation="Relu", attributes=CONV),
        guards=(redundant(KERNEL)(same_shape("z", "layer")), runs_in_blocks, is_not_quantised),
        exactness=Exactness.ROUNDING,
        source=RUNTIME,
        proof=Proof(
            shapes={"x": "n 3 6 6", "weight": "16 3 3 3", "bias": "16", "z": "n 16 6 6"},
            attributes={"conv": [PADDED]},
            inputs={"z": _pooled},
            typical=(typical(z="1 64 56 56"),),
            redundant={"demand that *": COST},
        ),
    ),
    Rule(
        name="conv.relu",
        pattern=op.Relu(convolution()),
        replace=ms.FusedConv(x, weight, opt(bias), activation="Relu", attributes=CONV),
        guards=(is_not_quantised,),
        exactness=Exactness.ROUNDING,
        source=RUNTIME,
        proof=Proof(
            shapes=images("n 3 6 6", "4 3 3 3"),
            attributes={"conv": [PADDED]},
            redundant={"demand that *": COST},
            typical=(typical(),),
        ),
    ),
]
