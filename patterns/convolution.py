"""Convolutions fused with what follows them: batch normalisation, residual sum, activation.

bn(y) = (y - mean) / sqrt(var + eps) * scale + B                              Ioffe & Szegedy, arXiv:1502.03167
bn(conv(x, W) + b) = conv(x, W s) + (b - mean) s + B,   s = scale / sqrt(var + eps), one factor per output channel
fused_conv(x, W, b, z) = act(conv(x, W) + b + z)

The runtime makes the same of the nodes by itself wherever that pays; on the CPU the residual sum is fused only where both
operands are in its blocked layout (see `ortfuse.targets.blocked_layout`), and so never costs anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.pattern import Match, all_attributes, attr, computed, const, ms, op, opt, redundant, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule
from ortfuse.targets import Quirk, unless_blocked

from ._common import same_shape
from ._proofs import COST, KERNEL

SOURCE = "arXiv:1502.03167"
RUNTIME = "ONNX Runtime contrib operator FusedConv"

x, weight, bias = var("x"), const("weight"), const("bias")
convolution = op.Conv(x, weight, opt(bias), attributes=all_attributes("conv"))
transposed = op.ConvTranspose(x, weight, opt(bias), attributes=all_attributes("conv"))
statistics = [const(name, "_") for name in ("scale", "shift", "mean", "variance")]


def _batch_norm(y: Any) -> Any:
    return op.BatchNormalization(
        y,
        *statistics,
        epsilon=attr("epsilon"),
        momentum=attr("momentum"),
        training_mode=attr("training", lambda mode, facts: not mode, "inference"),
    )


def _factor(match: Match) -> Any:
    variance = match.const("variance").astype(np.float64)
    return match.const("scale").astype(np.float64) / np.sqrt(variance + match["epsilon"])


def folded_weight(match: Match) -> Any:
    """W s for Conv, whose weight has the output channels first."""
    array = match.const("weight")
    return (array * _factor(match).reshape(-1, *[1] * (array.ndim - 1))).astype(array.dtype)


def folded_transposed_weight(match: Match) -> Any:
    """W s for ConvTranspose, whose weight is [in, out / group, ...]: group g of the inputs computes group g of the outputs."""
    array = match.const("weight")
    groups = int(match["conv"].get("group", 1))
    factor = _factor(match).reshape(groups, 1, array.shape[1], *[1] * (array.ndim - 2))
    grouped = array.reshape(groups, array.shape[0] // groups, *array.shape[1:])
    return (grouped * factor).reshape(array.shape).astype(array.dtype)


def folded_bias(match: Match) -> Any:
    """(b - mean) s + B."""
    mean = match.const("mean").astype(np.float64)
    bias_value = 0.0 if match["bias"] is None else match.const("bias").astype(np.float64)
    result = (bias_value - mean) * _factor(match) + match.const("shift").astype(np.float64)
    return result.astype(match.const("weight").dtype)


CANNOT_TRAIN = "the runtime cannot train"


@redundant(CANNOT_TRAIN)
def only_the_result(match: Match) -> Refusal | None:
    """Only the first output is used: before opset 14, a BatchNormalization with more outputs is in training mode."""
    node = match.root.producer()
    others = node.outputs[1:] if node is not None else ()
    if not any(other.name for other in others):
        return None
    return match.refuse(
        "condition", "root", "the one output of a BatchNormalization that is not training", "one of several outputs"
    )


def statistics_are_finite(match: Match) -> Refusal | None:
    """Every factor scale / sqrt(variance + eps) is finite, which excludes a non-positive variance + eps."""
    finite = bool(np.all(np.isfinite(_factor(match))))
    return match.unless_value("variance", finite, "such that scale / sqrt(variance + epsilon) is finite")


@redundant(COST)
def runs_in_blocks(match: Match) -> Refusal | None:
    """Convolution and residual are in the runtime's blocked layout, if it has one."""
    if Quirk.UNBLOCKS_RESIDUAL_CONVOLUTIONS not in match.quirks:
        return None
    return unless_blocked(match["convolved"], match.facts) or unless_blocked(match["z"], match.facts)


def zeros(match: Match) -> Any:
    """A bias of zeros, one per output channel."""
    array = match.const("weight")
    return np.zeros(array.shape[0], array.dtype)


_CONV = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1), "group": 1}
_STATISTICS = {"scale": "4", "shift": "4", "mean": "4", "variance": "4"}
_MADE = {"variance": "positive"}
_TRAINING = {
    "check of attribute training": CANNOT_TRAIN,
}


def _pooled(build: Any) -> ir.Value:
    """A residual in the blocked layout."""
    image = build.input("image", build.dims("z"))
    made: ir.Value = build.node("MaxPool", [image], {"kernel_shape": [1, 1]}).outputs[0]
    return made


_BN_ATTRIBUTES: dict[str, list[Any]] = {"epsilon": [1e-5, 1e-3], "momentum": [0.9], "training": [0]}

z = var("z")
sum_with_residual = convolution.named("convolved") + z

RULES = [
    Rule(
        name="conv.batch_norm",
        formula="BatchNormalization(Conv(x, W, b))",
        pattern=_batch_norm(convolution),
        replace=op.Conv(
            x, computed("weight", folded_weight), computed("bias", folded_bias), attributes=all_attributes("conv")
        ),
        guards=(only_the_result, statistics_are_finite),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        proof=Proof(
            shapes=(
                {"x": "n 3 6 6", "weight": "4 3 3 3", "bias": "4", **_STATISTICS},
                {"x": "n 4 6 6", "weight": "4 2 3 3", "bias": "4", **_STATISTICS},
            ),
            attributes={"conv": [_CONV, {**_CONV, "group": 2}], **_BN_ATTRIBUTES},
            constants=_MADE,
            redundant=_TRAINING,
        ),
    ),
    Rule(
        name="conv.transpose_batch_norm",
        formula="BatchNormalization(ConvTranspose(x, W, b))",
        pattern=_batch_norm(transposed),
        replace=op.ConvTranspose(
            x,
            computed("weight", folded_transposed_weight),
            computed("bias", folded_bias),
            attributes=all_attributes("conv"),
        ),
        guards=(only_the_result, statistics_are_finite),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        proof=Proof(
            shapes=(
                {"x": "n 3 5 5", "weight": "3 4 3 3", "bias": "4", **_STATISTICS},
                {"x": "n 4 5 5", "weight": "4 2 3 3", "bias": "4", **_STATISTICS},
            ),
            attributes={"conv": [_CONV, {**_CONV, "group": 2}], **_BN_ATTRIBUTES},
            constants=_MADE,
            redundant=_TRAINING,
        ),
    ),
    Rule(
        name="conv.residual_relu",
        pattern=op.Relu(sum_with_residual),
        replace=ms.FusedConv(
            x, weight, bias | computed("zeros", zeros), z, activation="Relu", attributes=all_attributes("conv")
        ),
        guards=(redundant(KERNEL)(same_shape("z", "convolved")), runs_in_blocks),
        exactness=Exactness.ROUNDING,
        source=RUNTIME,
        proof=Proof(
            shapes={"x": "n 3 6 6", "weight": "16 3 3 3", "bias": "16", "z": "n 16 6 6"},
            attributes={"conv": [_CONV]},
            inputs={"z": _pooled},
            redundant={"demand that *": COST},
        ),
    ),
    Rule(
        name="conv.relu",
        pattern=op.Relu(convolution),
        replace=ms.FusedConv(x, weight, opt(bias), activation="Relu", attributes=all_attributes("conv")),
        exactness=Exactness.ROUNDING,
        source=RUNTIME,
        proof=Proof(
            shapes={"x": "n 3 6 6", "weight": "4 3 3 3", "bias": "4"},
            attributes={"conv": [_CONV]},
            redundant={"demand that *": COST},
        ),
    ),
]
