"""Decompose GroupNormalization, which has no kernel on the CPU.

groupnorm(x) = merge(instancenorm(split(x))) * scale + bias, split from [n, c, ...] to [n, groups, ...]
                                                                            Wu & He, arXiv:1803.08494

The runtime makes some 30 nodes of GroupNormalization, 2.3 times slower on four sizes than these five. Scale and bias as a
BatchNormalization are 1.2 to 1.4 times faster than as Mul and Add. The kernel of InstanceNormalization ends the process on an
image without pixels. Such an image is normalised by the elementwise operators of the 30 nodes, in 13.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, computed, const, op, redundant, var

from .._shared_guards import array_like, ints
from ._instance_norm_guards import convolved, has_pixels, keeps_digits
from ._unit_batch_normalization import unit_batch_normalization

x = var("x")
vectors = {name: const(name, "_") for name in ("weight", "shift")}


def _channels(match: Match) -> int:
    shape = match.shape("x")
    assert shape is not None
    assert isinstance(shape[1], int)
    return shape[1]


def divides_the_channels(match: Match) -> Refusal | None:
    """The channels of x are known and in groups; scale and bias have a finite number for each channel or each group."""
    shape, groups = match.shape("x"), match["groups"]
    if shape is None or len(shape) < 3:
        return match.refuse("rank", "x", "at least 3")
    if not isinstance(shape[1], int) or not groups or shape[1] % groups:
        return match.refuse_dimension("x", 1, f"a number of channels that {groups} divides")
    for name in vectors:
        array = match.const(name)
        if len(array) not in (shape[1], groups) or not np.all(np.isfinite(array)):
            return match.refuse("value", name, "of finite numbers for all channels or groups")
    return None


def of_channels(name: str) -> Any:
    """The captured vector with a number for each channel: before opset 21 it has one for each group."""

    def value(match: Match) -> Any:
        array = match.const(name)
        return np.repeat(array, _channels(match) // len(array))

    return computed(f"{name}_of_channels", value)


def _filled(number: float, what: str, count: Callable[[Match], int]) -> Pattern:
    return computed(f"{what}_{number:g}", lambda match: array_like(match, np.full(count(match), number)))


def merged_groups(
    image: Pattern,
    groups: Callable[[Match], int],
    epsilon: Any,
    scale: Pattern | None = None,
    shift: Pattern | None = None,
) -> Pattern:
    """An image whose channels, the second axis, are normalised in groups, then scaled and shifted if that is given.

    The Reshape refuses an empty batch. Rules look for pixels first (`_pixels`).
    """
    split = op.Reshape(image, computed("split", lambda match: ints([0, groups(match), -1])))
    factor, term = scale or _filled(1, "groups", groups), shift or _filled(0, "groups", groups)
    normal = op.InstanceNormalization(split, factor, term, epsilon=epsilon)
    return op.Reshape(normal, op.Shape(image))


def scaled_channels(image: Pattern, scale: Pattern, shift: Pattern, channels: Callable[[Match], int]) -> Pattern:
    """An image times a factor for each channel, plus a term."""
    return unit_batch_normalization(image, scale, shift, _filled(0, "channels", channels), channels)


def _normalised_groups() -> Pattern:
    """An image whose groups of channels are normalised by their means, of whatever size it is."""
    axes = computed("pixels", lambda match: ints([2]))
    epsilon = computed("least", lambda match: array_like(match, match["epsilon"]))
    split = op.Reshape(x, computed("split", lambda match: ints([0, match["groups"], -1])))
    deviations = op.Sub(split, op.ReduceMean(split, axes, keepdims=1))
    variance = op.ReduceMean(op.Mul(deviations, deviations), axes, keepdims=1)
    merged = op.Reshape(op.Div(deviations, op.Sqrt(op.Add(variance, epsilon))), op.Shape(x))
    factor, term = (_beside_pixels(name) for name in vectors)
    made: Pattern = op.Add(op.Mul(merged, factor), term)
    return made


def _beside_pixels(name: str) -> Any:
    """The captured vector with a number for each channel, and an axis of 1 for each axis behind them."""

    def value(match: Match) -> Any:
        array, rank = match.const(name), match.rank("x") or 2
        return np.repeat(array, _channels(match) // len(array)).reshape(-1, *(1,) * (rank - 2))

    return computed(f"{name}_beside_pixels", value)


@redundant("the CPU has no kernels for these nodes in float16")
def is_not_half(match: Match) -> Refusal | None:
    """Means are taken in float32 at least, as the operator does."""
    return match.unless_dtype("x", ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _groups(match: Match) -> int:
    return int(match["groups"])


def _of_group(match: Match) -> Sequence[DimLike] | None:
    """The sizes of what is normalised together: channels of one group, and pixels."""
    shape = match.shape("x")
    return None if shape is None else (_channels(match) // _groups(match), *shape[2:])


def _in_float32(kind: Any, facts: Facts) -> bool:
    return kind in (None, 1)


_EPSILON: dict[str, list[Any]] = {"epsilon": [1e-5, 0.125], "stash_type": [1]}

_SIZES = ({"x": "n 6 4 s", "weight": "6", "shift": "6"}, {"x": "n 4 s", "weight": "4", "shift": "4"})


def _rule(name: str, replace: Pattern, guards: tuple[Guard, ...], **test: Any) -> Rule:
    return Rule(
        name=f"groupnorm.{name}",
        formula="GroupNormalization(x, scale, bias)",
        spells_out=True,
        pattern=op.GroupNormalization(
            x,
            *vectors.values(),
            num_groups=attr("groups"),
            epsilon=attr("epsilon"),
            stash_type=attr("stash_type", _in_float32, "1"),
        ),
        replace=replace,
        guards=(divides_the_channels, *guards),
        exactness=Exactness.ROUNDING,
        source="arXiv:1803.08494",
        test=RuleTest(
            shapes=_SIZES,
            attributes=({"groups": [2, 3], **_EPSILON}, {"groups": [4, 1], **_EPSILON}),
            opset=21,
            never_empty={"*": "the runtime cannot divide an empty image into groups"},
            redundant={
                "demand that *": "another condition asks for the numbers, which only a constant has",
                "check of attribute stash_type": "in fewer digits, the operator would be less exact",
            },
            typical=tuple(
                {"x": f"1 {size}", "weight": size.split()[0], "shift": size.split()[0]}
                for size in ("64 56 56", "320 32 32", "1280 8 8")
            ),
            **test,
        ),
    )


RULES = [
    _rule(
        "to_instance_normalization",
        scaled_channels(
            merged_groups(x, _groups, attr("epsilon")), of_channels("weight"), of_channels("shift"), _channels
        ),
        (has_pixels("x"), keeps_digits(_of_group)),
        inputs={"x": convolved(1)},
    ),
    _rule(
        "to_elementwise_ops",
        _normalised_groups(),
        (is_not_half,),
        counterexamples={"in float16": Variation(dtype="float16")},
    ),
]
