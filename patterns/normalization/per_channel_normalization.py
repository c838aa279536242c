"""Fuse InstanceNormalization, BatchNormalization and LayerNormalization with one scale and bias per channel.

instancenorm(x) = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * scale + bias, means over all axes from the third
                                                                                   Ulyanov et al., arXiv:1607.08022
layernorm over axis 1 of [n, c, h, w] = layernorm over the last axis of [n, h, w, c]
batchnorm(x)    = (x - mean) / sqrt(variance + eps) * scale + bias, all constants          arXiv:1502.03167

If the means of an image are over its channels alone (axis 1), LayerNormalization computes it between two Transposes.

GroupNormalization has no kernel on the CPU, where the runtime makes 30 nodes of it: see `decompose_group_normalization`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.traits import MICROSOFT, has
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, computed, const, op, opt, redundant, scalar, var

from .._rule_test_inputs import COST, NUMBERS
from .._shared_guards import array_like
from ._instance_norm_guards import convolved, has_pixels, keeps_digits
from ._unit_batch_normalization import unit_batch_normalization
from .layer_and_rms_normalization import bias, normalised, scale

BATCH_NORM = "arXiv:1502.03167"

_CONVOLUTIONS = frozenset({"Conv", f"{MICROSOFT}.FusedConv"})

x = var("x")


def is_channel_vector(value: ir.Value, facts: Facts) -> bool:
    """A check for constants: one number for each index of one axis, with the rank of images."""
    shape = facts.shape(value)
    return shape is not None and len(shape) >= 3 and sum(dim != 1 for dim in shape) <= 1


def _channels(match: Match) -> int | None:
    shape = match.shape("x")
    return shape[1] if shape is not None and len(shape) >= 3 and isinstance(shape[1], int) else None


def by_channel(*names: str) -> Guard:
    """Each of the captured values, if present, is a finite constant with one number for each channel of x."""

    def guard(match: Match) -> Refusal | None:
        channels, rank = _channels(match), match.rank("x")
        if rank is None or rank < 3:
            return match.refuse("rank", "x", "at least 3")
        if channels is None:
            return match.refuse_dimension("x", 1, "a known number of channels")
        for name in names:
            if match.get(name) is None:
                continue
            shape, array = match.shape(name), match.const(name)
            if shape is None or len(shape) > rank or (1,) * (rank - len(shape)) + shape != _shape(channels, rank):
                return match.refuse("shape", name, _shape(channels, rank))
            if array is None or not np.all(np.isfinite(array)):
                return match.refuse("value", name, "constant and finite")
        return None

    return guard


def _shape(channels: int, rank: int) -> tuple[int, ...]:
    return (1, channels, *[1] * (rank - 2))


def normalises_each_channel(match: Match) -> Refusal | None:
    """The axes are all those from the third on, and LayerNormalization could not absorb the scale and bias."""
    rank, axes = match.rank("x"), match["axes"]
    if rank is None or axes != tuple(range(2, rank)):
        return match.refuse("attribute", "axes", "all from the third on")
    if match["epsilon"] < 0:
        return match.refuse("value", "epsilon", "at least 0")
    if match["scale"] is None and match["bias"] is None:
        dims = (match.shape("x") or ())[2:]
        return (
            match.refuse("other_rule", "root", "LayerNormalization")
            if all(isinstance(dim, int) for dim in dims)
            else None
        )
    return None


def _pixels(match: Match) -> Sequence[DimLike] | None:
    shape = match.shape("x")
    return None if shape is None else shape[2:]


def _vector(match: Match, name: str, default: float) -> Any:
    channels = _channels(match)
    assert channels is not None
    found = match.const(name) if match.get(name) is not None else None
    return np.full(channels, default) if found is None else found.astype(np.float64).reshape(channels)


def channel_vector(name: str, default: float) -> Any:
    """The captured constant as a vector, or a vector of `default`."""
    return computed(f"{name}_vector", lambda match: array_like(match, _vector(match, name, default)))


def _factor(match: Match) -> Any:
    return _vector(match, "factor", 1.0) / _vector(match, "divisor", 1.0)


def offset_is_moderate(match: Match) -> Refusal | None:
    """The mean is not many deviations from 0: BatchNormalization computes x s - mean s, which would then lose digits."""
    with np.errstate(all="ignore"):
        factor = array_like(match, _factor(match)).astype(np.float64)
        lost = np.abs(_vector(match, "mean", 0.0) * factor)
    return match.unless_value(
        "mean", bool(np.all(np.isfinite(factor)) and np.all(lost <= 64)), "within 64 deviations of 0"
    )


@redundant(COST)
def is_not_taken_in(match: Match) -> Refusal | None:
    """No convolution takes the factor into its weights, and no BatchNormalization before it takes all."""
    maker = match["x"].producer()
    if maker is not None and maker.op_type == "BatchNormalization":
        return match.refuse("other_rule", "x", "a normalisation with its own scale and shift")
    if any(use.idx == 0 and has(use.node, _CONVOLUTIONS) for use in match.root.uses()):
        return match.refuse("other_rule", "root", "a convolution")
    return None


def _constant(name: str) -> Pattern:
    return const(name, is_channel_vector, "one number for each channel")


factor, divisor, shift = _constant("factor"), _constant("divisor"), _constant("shift")
centred = op.Sub(x, _constant("mean"))
scaled = op.Mul(centred, factor) | op.Div(centred, divisor) | op.Mul(op.Div(centred, divisor), factor)
batch_norm = unit_batch_normalization(
    x,
    computed("scale", lambda match: array_like(match, _factor(match))),
    channel_vector("shift", 0.0),
    channel_vector("mean", 0.0),
    lambda match: _channels(match) or 0,
)


def _batch_norm(name: str, formula: str, pattern: Pattern, *guards: Guard) -> Rule:
    names = ("factor", "divisor", "mean", "shift")
    return Rule(
        name=name,
        formula=formula,
        pattern=pattern,
        replace=batch_norm,
        guards=(by_channel(*names), is_not_taken_in, *guards),
        exactness=Exactness.ROUNDING,
        source=BATCH_NORM,
        test=RuleTest(
            shapes=(
                {"x": "n 3 4 5", **dict.fromkeys(names, "3 1 1")},
                {"x": "n 2 s", **dict.fromkeys(names, "1 2 1")},
            ),
            constants={"divisor": "positive"},
            dtypes=("float32", "float64"),
            redundant={"check of *": "by_channel asks for the same", "demand that *": NUMBERS},
            typical=tuple(
                {"x": f"1 {size}", **dict.fromkeys(names, f"1 {size.split()[0]} 1 1")}
                for size in ("64 56 56", "512 7 7", "32 112 112")
            ),
        ),
    )


def normalises_channels(match: Match) -> Refusal | None:
    """The means are over axis 1 of an image."""
    if match["epsilon"] < 0:
        return match.refuse("value", "epsilon", "at least 0")
    return match.unless_rank("x", 4, 5) or match.unless_value("axes", match["axes"] == (1,), "(1,)")


def _last(match: Match) -> list[int]:
    return [0, *range(2, match.rank("x") or 0), 1]


def _second(match: Match) -> list[int]:
    rank = match.rank("x") or 0
    return [0, rank - 1, *range(1, rank - 1)]


RULES = [
    Rule(
        name="instancenorm.from_decomposed_form",
        formula="(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * scale + bias, for each channel",
        pattern=normalised * opt(scale) + opt(bias),
        replace=op.InstanceNormalization(
            x, channel_vector("scale", 1.0), channel_vector("bias", 0.0), epsilon=scalar("epsilon")
        ),
        guards=(normalises_each_channel, by_channel("scale", "bias"), has_pixels("x"), keeps_digits(_pixels)),
        exactness=Exactness.ROUNDING,
        source="arXiv:1607.08022",
        test=RuleTest(
            inputs={"x": convolved(1)},
            shapes=(
                {"x": "n 3 4 s", "scale": "3 1 1", "bias": "3 1 1"},
                {"x": "n 2 s", "scale": "1 2 1", "bias": "2 1"},
            ),
            attributes=({"axes": [(2, 3), (-2, -1)]}, {"axes": [(2,)]}),
            # For a single element, the kernel computes x f - mean f, with an error proportional to f = 1 / sqrt(epsilon).
            scalars={"epsilon": [0.125, 0.5]},
            constants={"scale": "normal", "bias": "normal"},
            typical=({"x": "1 64 56 56", "scale": "64 1 1", "bias": "64 1 1"},),
            redundant={"check of attribute axes": "normalises_each_channel asks for all axes from the third on"},
        ),
    ),
    Rule(
        name="layernorm.from_decomposed_form_channels_first",
        formula="(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * scale + bias, means over axis 1",
        pattern=normalised * opt(scale) + opt(bias),
        replace=op.Transpose(
            op.LayerNormalization(
                op.Transpose(x, perm=_last),
                channel_vector("scale", 1.0),
                channel_vector("bias", 0.0),
                axis=-1,
                epsilon=scalar("epsilon"),
            ),
            perm=_second,
        ),
        guards=(normalises_channels, by_channel("scale", "bias")),
        exactness=Exactness.ROUNDING,
        source="arXiv:2201.03545",
        test=RuleTest(
            shapes=(
                {"x": "n 3 h s", "scale": "3 1 1", "bias": "3 1 1"},
                {"x": "n 4 s 2 3", "scale": "1 4 1 1 1", "bias": "4 1 1 1"},
            ),
            attributes={"axes": [(1,)]},
            scalars={"epsilon": [2.0**-17, 0.125]},
            constants={"scale": "normal", "bias": "normal"},
            typical=tuple(
                {"x": f"1 {size}", **dict.fromkeys(("scale", "bias"), f"{size.split()[0]} 1 1")}
                for size in ("96 56 56", "384 14 14", "32 64 64")
            ),
            redundant={"check of attribute axes": "normalises_channels asks for axis 1 alone"},
        ),
    ),
    _batch_norm(
        "batchnorm.from_centered_form",
        "(x - mean) / deviation * scale + bias",
        op.Add(scaled, shift) | scaled,
        offset_is_moderate,
    ),
    _batch_norm(
        "batchnorm.from_channel_scale_and_bias", "x * scale + bias, for each channel", op.Add(op.Mul(x, factor), shift)
    ),
]
