"""Convolutions fused with the batch normalisation that follows them.

bn(y) = (y - mean) / sqrt(var + eps) * scale + B                              Ioffe & Szegedy, arXiv:1502.03167
bn(conv(x, W) + b) = conv(x, W s) + (b - mean) s + B,   s = scale / sqrt(var + eps), one factor per output channel

Activations and residual sums are left to the runtime, which fuses them with the convolution wherever that pays, in its
blocked layout too. Written into the model, the fused operator would hide the convolution from quantizers and shape inference.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.pattern import Match, all_attributes, attr, computed, const, op, opt, redundant, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule

SOURCE = "arXiv:1502.03167"

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


_CONV = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1), "group": 1}
_STATISTICS = {"scale": "4", "shift": "4", "mean": "4", "variance": "4"}
_MADE = {"variance": "positive"}
_TRAINING = {
    "check of attribute training": CANNOT_TRAIN,
}


_BN_ATTRIBUTES: dict[str, list[Any]] = {"epsilon": [1e-5, 1e-3], "momentum": [0.9], "training": [0]}

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
]
