"""Normalise groups of channels, then scale, shift and activate them, by the kernel that has the channels last.

groupnorm(x) = to_front(GroupNorm(to_back(x), gamma, beta))           x [n, c, h, w]; to_back: [n, h, w, c]
swish(groupnorm(x)) = to_front(GroupNorm<activation = 1>(to_back(x), gamma, beta))
groupnorm(x + skip) = to_front(SkipGroupNorm(to_back(x), gamma, beta, to_back(skip)))

In a session with `prefer_nhwc` the runtime computes convolutions with the channels last, too: it should cancel the Transposes.

Rationale: CUDA has no kernel of GroupNormalization. The kernel of GroupNorm takes the variance as the mean of squares less the
square of the mean, in float32, and adds epsilon: where all numbers of a group are equal and far larger than its root, it may be
negative. So these rules are applied where `--force groupnorm=com.microsoft.GroupNorm` asks for them alone; with
`--force groupnorm=com.microsoft.SkipGroupNorm` the last line is applied, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.dims import is_nonzero
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, const, ms, op, opt, var
from ortfuse.targets.cuda.constraints import MOST_CHANNELS_OF_GROUP

BACK, FRONT = (0, 2, 3, 1), (0, 3, 1, 2)
"""The orders of axes that put the channels last, and second again."""

x, skip = var("x"), var("skip")
parts = op.Reshape(x, var("groups_shape"), allowzero=attr("allowzero")).named("parts")
normal = op.Reshape(
    op.InstanceNormalization(parts, const("inner_scale"), const("inner_shift"), epsilon=attr("epsilon")),
    var("shape"),
    allowzero=attr("back_allowzero"),
)
batch_normal = op.BatchNormalization(
    normal,
    const("gain", "_"),
    const("offset", "_"),
    const("mean", "_"),
    const("variance", "_"),
    epsilon=attr("spread"),
    momentum=attr("momentum"),
    training_mode=attr("training_mode", lambda found, facts: found in (None, 0), "0"),
)
scaled = normal * opt(const("factor")) + opt(const("term"))


def _groups(match: Match) -> int:
    """The number of groups: that of GroupNormalization, or the second size of what is normalised."""
    found = match.get("groups")
    return int(found) if found is not None else int((match.shape("parts") or (0, 0))[1])  # type: ignore[arg-type]


def is_an_image(match: Match) -> Refusal | None:
    """The value has rank 4, pixels, and a known number of channels."""
    shape = match.shape("x")
    if shape is None or len(shape) != 4:
        return match.refuse("rank", "x", 4)
    if not isinstance(shape[1], int):
        return match.refuse_dimension("x", 1, "a known number of channels")
    empty = next((axis for axis in (2, 3) if not is_nonzero(shape[axis])), None)
    return None if empty is None else match.refuse_dimension("x", empty, "greater than 0")


def splits_channels(match: Match) -> Refusal | None:
    """The channels of the image are in groups, one behind the other, and the result has its shape."""
    shapes = match.shapes("x", "parts")
    if isinstance(shapes, Refusal):
        return shapes
    whole, split = shapes
    if len(split) != 3 or split[0] != whole[0] or not isinstance(split[1], int):
        return match.refuse("shape", "parts", "batch, groups and what is left")
    return match.unless_shape(whole, "root")


def has_even_groups(match: Match) -> Refusal | None:
    """Each group has an even number of channels that the kernel takes."""
    channels, groups = (match.shape("x") or (0, 0))[1], _groups(match)
    assert isinstance(channels, int)
    size = 0 if groups <= 0 or channels % groups else channels // groups
    fits = 0 < size <= MOST_CHANNELS_OF_GROUP and size % 2 == 0
    return None if fits else match.refuse_dimension("x", 1, f"an even number of channels for each of {groups} groups")


def has_numbers_of_channels(match: Match) -> Refusal | None:
    """Scales and shifts are finite, one for each channel or group, or one for all."""
    found = _gamma_and_beta(match)
    return None if found is not None else match.refuse("value", "root", "scaled by finite numbers of channels")


def _channels(match: Match, name: str) -> Any:
    """A captured constant with a number for each channel, in float64; `None` if it has others."""
    array, count, groups = match.const(name), int((match.shape("x") or (0, 0))[1]), _groups(match)  # type: ignore[arg-type]
    if array is None:
        return None
    wide = np.asarray(array, np.float64)
    if wide.ndim == 1 and wide.size in (count, groups):  # an operand of an operator that normalises
        return np.repeat(wide, count // wide.size)
    return None


def _beside_pixels(match: Match, name: str, absent: float) -> Any:
    """A captured constant that is broadcast to [n, c, h, w], with a number for each channel; `None` if it has others."""
    if match.get(name) is None:
        return np.full(1, absent)
    array, count = match.const(name), int((match.shape("x") or (0, 0))[1])  # type: ignore[arg-type]
    if array is None or array.ndim > 4:
        return None
    wide = np.asarray(array, np.float64).reshape((1,) * (4 - array.ndim) + array.shape)
    is_of_channels = wide.shape[0] == wide.shape[2] == wide.shape[3] == 1 and wide.shape[1] in (1, count)
    return np.broadcast_to(wide.reshape(-1), (count,)) if is_of_channels else None


def _gamma_and_beta(match: Match) -> tuple[Any, Any] | None:
    """The numbers by which channels are scaled and shifted, in float32; `None` if they are not known, or not finite."""
    gamma, beta = _channels(match, "inner_scale"), _channels(match, "inner_shift")
    further = _further(match)
    if gamma is None or beta is None or further is None:
        return None
    with np.errstate(over="ignore"):
        found = np.asarray(gamma * further[0], np.float32), np.asarray(beta * further[0] + further[1], np.float32)
    return found if all(np.isfinite(one).all() for one in found) else None


def _further(match: Match) -> tuple[Any, Any] | None:
    """The factor and the term for each channel that follow on the normalisation; `None` if they are not known."""
    if match.get("mean") is None:
        factor, term = (_beside_pixels(match, name, least) for name, least in (("factor", 1.0), ("term", 0.0)))
        return None if factor is None or term is None else (factor, term)
    gain, offset, mean, variance = (_channels(match, name) for name in ("gain", "offset", "mean", "variance"))
    spread = 1e-5 if match["spread"] is None else match["spread"]
    if any(one is None for one in (gain, offset, mean, variance)) or not np.all(variance + spread > 0):
        return None
    factor = gain / np.sqrt(variance + spread)
    return factor, offset - mean * factor


def _numbers(index: int, name: str) -> Any:
    def made(match: Match) -> Any:
        found = _gamma_and_beta(match)
        assert found is not None
        return found[index]

    return computed(name, made)


def _made(epsilon: Any) -> Pattern:
    operand = op.Transpose(x, perm=BACK)
    found = ms.GroupNorm(
        operand,
        _numbers(0, "gamma"),
        _numbers(1, "beta"),
        channels_last=1,
        activation=0,
        epsilon=epsilon,
        groups=_groups,
    )
    made: Pattern = op.Transpose(found, perm=FRONT)
    return made


def _epsilon(match: Match) -> float:
    return 1e-5 if match["epsilon"] is None else float(match["epsilon"])


def is_float(match: Match) -> Refusal | None:
    """The kernel takes float32 and float16."""
    return match.unless_dtype("x", ir.DataType.FLOAT, ir.DataType.FLOAT16)


_gamma, _beta = var("gamma"), var("beta")
_KEPT = {"epsilon": attr("epsilon"), "groups": attr("groups")}


def _group_norm(operand: Pattern, **attributes: Any) -> Pattern:
    made: Pattern = ms.GroupNorm(operand, _gamma, _beta, channels_last=1, **_KEPT, **attributes)
    return made


def _swish(y: Pattern) -> Pattern:
    is_one = attr("alpha", lambda found, facts: found in (None, 1), "1")
    found: Pattern = ms.QuickGelu(y, alpha=1.0) | op.Swish(y, alpha=is_one)
    return found


def adds_images(pixels: tuple[int, int]) -> Callable[[Match], Refusal | None]:
    """Guard: both terms have the shape of the sum, or the second has one pixel; `pixels` are the axes of these."""

    def guard(match: Match) -> Refusal | None:
        shapes = match.shapes("x", "skip")
        if isinstance(shapes, Refusal):
            return shapes
        whole, added = shapes
        single = tuple(1 if axis in pixels else dim for axis, dim in enumerate(whole))
        if len(whole) != 4 or added not in (whole, single):
            return match.refuse("shape", "skip", whole)
        return match.unless_shape(whole, "total")

    return guard


def _skip_group_norm(first: Pattern, second: Pattern) -> Pattern:
    """GroupNorm of a sum of images whose channels are last."""
    made: Pattern = ms.SkipGroupNorm(
        first, _gamma, _beta, second, channels_last=1, activation=attr("activation"), **_KEPT
    )
    return made


def _constant(*numbers: int) -> Any:
    return lambda build: build.constant(np.array(numbers, np.int64))


_EPSILONS: list[Any] = [1e-5, 0.125]
_SPLIT = {"groups_shape": _constant(0, 2, -1), "shape": _constant(0, 4, 3, 5)}
_SHAPES = {"x": "n 4 3 5", "inner_scale": "2", "inner_shift": "2"}
_RESHAPES: dict[str, list[Any]] = {"epsilon": _EPSILONS, "allowzero": [0], "back_allowzero": [0]}
_EMPTY = {"*": "the runtime cannot divide an empty image into groups"}
_LAST = {"x": "n 3 5 4", "gamma": "4", "beta": "4"}
_GIVEN: dict[str, list[Any]] = {"epsilon": _EPSILONS, "groups": [2]}


def _rule(
    name: str, formula: str, pattern: Pattern, replace: Pattern, guards: Sequence[Any], test: RuleTest, **more: Any
) -> Rule:
    return Rule(
        name=name,
        formula=formula,
        pattern=pattern,
        replace=replace,
        guards=tuple(guards),
        exactness=Exactness.ROUNDING,
        source="ONNX Runtime contrib operators GroupNorm and SkipGroupNorm; arXiv:1803.08494",
        test=test,
        **more,
    )


RULES = [
    _rule(
        "groupnorm.to_group_norm",
        "GroupNormalization(x, scale, shift)",
        op.GroupNormalization(
            x,
            const("inner_scale", "_"),
            const("inner_shift", "_"),
            num_groups=attr("groups"),
            epsilon=attr("epsilon"),
            stash_type=attr("stash_type", lambda found, facts: found in (None, 1), "1"),
        ),
        _made(_epsilon),
        (is_float, is_an_image, has_even_groups, has_numbers_of_channels),
        RuleTest(
            shapes={"x": "n 4 3 5", "inner_scale": "4", "inner_shift": "4"},
            attributes={"groups": [2, 1], "epsilon": _EPSILONS, "stash_type": [1]},
            opset=21,
            never_empty=_EMPTY,
        ),
    ),
    _rule(
        "groupnorm.instance_and_batch_normalization_to_group_norm",
        "BatchNormalization(merge(InstanceNormalization(split(x))))",
        batch_normal,
        _made(_epsilon),
        (is_float, is_an_image, splits_channels, has_even_groups, has_numbers_of_channels),
        RuleTest(
            shapes={**_SHAPES, "gain": "4", "offset": "4", "mean": "4", "variance": "4"},
            inputs=_SPLIT,
            constants={"variance": "positive"},
            attributes={**_RESHAPES, "spread": [1e-5], "momentum": [0.9], "training_mode": [0]},
            never_empty=_EMPTY,
        ),
    ),
    _rule(
        "groupnorm.instance_normalization_to_group_norm",
        "merge(InstanceNormalization(split(x))) * factor + term",
        scaled,
        _made(_epsilon),
        (is_float, is_an_image, splits_channels, has_even_groups, has_numbers_of_channels),
        RuleTest(
            shapes={**_SHAPES, "factor": "4 1 1", "term": "1 4 1 1"},
            inputs=_SPLIT,
            attributes=_RESHAPES,
            never_empty=_EMPTY,
        ),
    ),
    _rule(
        "groupnorm.absorb_swish",
        "swish(GroupNorm(x, gamma, beta))",
        _swish(_group_norm(x, activation=0)),
        _group_norm(x, activation=1),
        (),
        RuleTest(shapes=_LAST, attributes={**_GIVEN, "alpha": [1.0]}, opset=24, never_empty=_EMPTY),
        is_refinement=True,
    ),
    _rule(
        "groupnorm.absorb_swish_behind_transpose",
        "swish(transpose(GroupNorm(x, gamma, beta)))",
        _swish(op.Transpose(_group_norm(x, activation=0), perm=attr("perm"))),
        op.Transpose(_group_norm(x, activation=1), perm=attr("perm")),
        (),
        RuleTest(
            shapes=_LAST,
            attributes={**_GIVEN, "alpha": [1.0], "perm": [FRONT, (3, 2, 1, 0)]},
            opset=24,
            never_empty=_EMPTY,
        ),
        is_refinement=True,
    ),
    _rule(
        "groupnorm.add_to_skip_group_norm",
        "GroupNorm(x + skip, gamma, beta)",
        _group_norm((x + skip).named("total"), activation=attr("activation")),
        _skip_group_norm(x, skip),
        (is_float, adds_images((1, 2))),
        RuleTest(
            shapes=({**_LAST, "skip": "n 3 5 4"}, {**_LAST, "skip": "n 1 1 4"}),
            attributes={**_GIVEN, "activation": [0, 1]},
            never_empty=_EMPTY,
        ),
        is_refinement=True,
    ),
    _rule(
        "groupnorm.transposed_add_to_skip_group_norm",
        "GroupNorm(transpose(x + skip), gamma, beta)",
        _group_norm(
            op.Transpose((x + skip).named("total"), perm=attr("perm", lambda found, facts: tuple(found or ()) == BACK)),
            activation=attr("activation"),
        ),
        _skip_group_norm(op.Transpose(x, perm=BACK), op.Transpose(skip, perm=BACK)),
        (is_float, adds_images((2, 3))),
        RuleTest(
            shapes=(
                {"x": "n 4 3 5", "skip": "n 4 3 5", "gamma": "4", "beta": "4"},
                {"x": "n 4 3 5", "skip": "n 4 1 1", "gamma": "4", "beta": "4"},
            ),
            attributes={**_GIVEN, "activation": [0, 1], "perm": [BACK]},
            never_empty=_EMPTY,
        ),
        is_refinement=True,
    ),
]
