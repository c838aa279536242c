"""Fuse Conv, the Add of a residual and Relu into FusedConv.

fused_conv(x, W, b, z) = relu(conv(x, W) + b + z)

The runtime fuses these nodes itself where it pays. On the CPU the residual is fused only where both operands are in the blocked
layout (`ortfuse.targets.cpu.blocked_layout`). The pass runs after the others of the family: weights may take the added branch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, computed, ms, op, opt, redundant, var
from ortfuse.targets import Quirk

from .._rule_test_inputs import COST, KERNEL
from .._shared_guards import is_not_quantised, same_shape
from ._conv_weights import CONV, bias, convolution, weight, x
from ._test_instances import PADDED, images, typical

PASS = "fuse.fused_convolution"

RUNTIME = "ONNX Runtime contrib operator FusedConv"


@redundant(COST)
def runs_in_blocks(match: Match) -> Refusal | None:
    """Convolution and residual are in the runtime's blocked layout, if it has one."""
    layout = match.target.blocked_layout
    if Quirk.UNBLOCKS_RESIDUAL_CONVOLUTIONS not in match.quirks or layout is None:
        return None
    return layout.unless_blocked(match["layer"], match.facts) or layout.unless_blocked(match["z"], match.facts)


@redundant(COST)
def is_last_of_two_layers(match: Match) -> Refusal | None:
    """The layer has the larger strides, kernel or numbers of two convolutions that are added, and takes the other in.

    Which of two operands comes first would decide otherwise.
    """
    maker = match["z"].producer()
    if maker is None or maker.op_type != "Conv" or maker.domain:
        return None
    if len(maker.outputs[0].uses()) > 1 or maker.outputs[0].is_graph_output():
        return None
    mine, other = (_rank(node, match) for node in (match["layer"].producer(), maker))
    return (
        None if mine is None or other is None or mine >= other else match.refuse("needless", "z", found="it takes in x")
    )


def _rank(node: ir.Node, match: Match) -> tuple[Any, ...] | None:
    array = match.facts.const(node.inputs[1])
    if array is None:
        return None
    strides = parameter(node, "strides", match.facts)
    return tuple(strides) if isinstance(strides, tuple | list) else (), array.shape, array.ravel()[:8].tolist()


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
        name="conv.fuse_residual_add_relu",
        pattern=op.Relu(convolution() + z),
        replace=ms.FusedConv(x, weight, bias | computed("zeros", zeros), z, activation="Relu", attributes=CONV),
        guards=(redundant(KERNEL)(same_shape("z", "layer")), runs_in_blocks, is_not_quantised, is_last_of_two_layers),
        exactness=Exactness.ROUNDING,
        source=RUNTIME,
        test=RuleTest(
            shapes={"x": "n 3 6 6", "weight": "16 3 3 3", "bias": "16", "z": "n 16 6 6"},
            attributes={"conv": [PADDED]},
            inputs={"z": _pooled},
            typical=(typical(z="1 64 56 56"),),
            redundant={"demand that *": COST},
        ),
    ),
    Rule(
        name="conv.fuse_relu",
        pattern=op.Relu(convolution()),
        replace=ms.FusedConv(x, weight, opt(bias), activation="Relu", attributes=CONV),
        guards=(is_not_quantised,),
        exactness=Exactness.ROUNDING,
        source=RUNTIME,
        test=RuleTest(
            shapes=images("n 3 6 6", "4 3 3 3"),
            attributes={"conv": [PADDED]},
            redundant={"demand that *": COST},
            typical=(typical(),),
        ),
    ),
]
