"""Lower com.microsoft operators on images whose channels are the last axis to operators of the standard.

nhwc_conv(x, W, b) = back(conv(front(x), W', b))          front: [n, h, w, c] to [n, c, h, w]; back: the other way
nhwc_fused_conv(x, W, b, z) = f(nhwc_conv(x, W, b) + z)          qlinear_conv, max_pool: in the same way
group_norm(x) = back(groups normalised(front(x)) gamma + beta), times its sigmoid on request
skip_group_norm(x, skip, bias) = group_norm(x + skip + bias)

NhwcConv has the channels of its weights last, too. `onnxruntime.transformers` writes these operators for diffusion models on
CUDA, and ONNX Runtime QLinearConv and NhwcMaxPool into quantised models that it saves.

*Requires:* images of two axes. Normalisations of float16 are computed in float32, as in kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, all_attributes, attr, built, computed, ms, op, opt, var

from .._shared_guards import constant
from ._functions_of_channels_last import channels_last_conv, group_norm
from ._integer_operands import BYTES, as_floats
from .lower_fused_convolution import KINDS, activated, is_added_as_it_is, is_known_activation

PASS = "canonicalize"

SOURCE = "com.microsoft operators of ONNX Runtime"

_BACK, _FRONT = (0, 2, 3, 1), (0, 3, 1, 2)
_IMAGE = 4
"""The rank of images."""

_HALF = ir.DataType.FLOAT16

x, weight, bias, z = (var(name) for name in ("x", "weight", "bias", "z"))
gamma, beta, skip = var("gamma"), var("beta"), var("skip")


def _front(value: Pattern) -> Pattern:
    made: Pattern = op.Transpose(value, perm=_FRONT)
    return made


def _back(value: Pattern) -> Pattern:
    made: Pattern = op.Transpose(value, perm=_BACK)
    return made


def is_an_image(match: Match) -> Refusal | None:
    """The operand has two axes besides those of the batch and the channels."""
    return match.unless_rank("x", _IMAGE)


# Convolutions

_WINDOW = {name: attr(name) for name in ("auto_pad", "dilations", "group", "pads", "strides")}


def _convolved(match: Match) -> Pattern:
    return _back(op.Conv(_front(x), _front(weight), opt(bias), **_WINDOW))


def _fused(match: Match) -> Pattern:
    convolved = _back(op.Conv(_front(x), weight, opt(bias), **_WINDOW))
    return activated(match, convolved if match["z"] is None else op.Add(convolved, z))


def kernel_is_that_of_the_weights(*axes: int) -> Guard:
    """The sizes of the kernel are not given, or those of the weights' axes."""

    def guard(match: Match) -> Refusal | None:
        shape, given = match.shape("weight"), match["kernel"]
        if shape is None or len(shape) != _IMAGE:
            return match.refuse("rank", "weight", _IMAGE)
        found = tuple(shape[axis] for axis in axes)
        return match.unless_value("kernel", given is None or tuple(given) == found, "the size of the weights")

    return guard


_PARTS = ("a", "a_scale", "a_zero", "weight", "weight_scale", "weight_zero", "scale", "zero")


def _quantised(match: Match) -> Pattern:
    operands: list[Pattern] = [var(name) for name in _PARTS]
    if match["channels_last"]:
        operands[0] = _front(operands[0])
    made: Pattern = op.QLinearConv(*operands, opt(bias), attributes=all_attributes("conv"))
    return _back(made) if match["channels_last"] else made


def is_an_image_if_last(match: Match) -> Refusal | None:
    """The operand has two axes besides those of the batch and the channels, if its channels are last."""
    return match.unless_rank("a", _IMAGE) if match["channels_last"] else None


def _pooled(match: Match) -> Pattern:
    return _back(op.MaxPool(_front(x), attributes=all_attributes("pool")))


# Normalisation


def takes_floats(match: Match) -> Refusal | None:
    """The numbers are float32 or float16, and scales and shifts are, too."""
    found = match.unless_dtype("x", ir.DataType.FLOAT, _HALF)
    for name in ("gamma", "beta"):
        found = found or match.unless_dtype(name, ir.DataType.FLOAT, _HALF)
    return found


def activation_is_known(match: Match) -> Refusal | None:
    """The activation is none or SiLU, and there are groups."""
    found = match.unless_value("activation", match["activation"] in (0, 1), "0 or 1")
    return found or match.unless_value("groups", bool(match["groups"]) and match["groups"] > 0, "more than 0")


def channels_are_split(match: Match) -> Refusal | None:
    """The number of channels is a known multiple of that of groups."""
    shape = match.shape("x")
    size = None if shape is None else shape[_channel_axis(match)]
    if not isinstance(size, int) or size % int(match["groups"]):
        return match.refuse_dimension("x", _channel_axis(match), f"a known multiple of {match['groups']}")
    return match.unless_shape((size,), "gamma") or match.unless_shape((size,), "beta")


def _channel_axis(match: Match) -> int:
    return 1 if match["last"] == 0 else 3


def _wide(match: Match, name: str, value: Pattern) -> Pattern:
    """A value in float32."""
    made: Pattern = op.Cast(value, to=ir.DataType.FLOAT) if match.dtype(name) is _HALF else value
    return made


def _normalised(match: Match, image: Pattern) -> Pattern:
    """An image whose groups are normalised, then scaled, shifted and activated, in the type of x."""
    groups = match["groups"]
    found = _wide(match, "x", image)
    if match["last"] != 0:
        found = _front(found)
    apart = op.Reshape(found, constant(0, groups, -1))
    ones, zeros = (
        computed(name, lambda match, fill=fill: np.full(match["groups"], fill, np.float32))  # type: ignore[misc]
        for name, fill in (("ones", 1.0), ("zeros", 0.0))
    )
    epsilon = 1e-5 if match["epsilon"] is None else match["epsilon"]
    normal = op.Reshape(op.InstanceNormalization(apart, ones, zeros, epsilon=epsilon), op.Shape(found))
    factor, term = (op.Reshape(_wide(match, name, var(name)), constant(-1, 1, 1)) for name in ("gamma", "beta"))
    made: Pattern = op.Add(op.Mul(normal, factor), term)
    if match["activation"]:
        made = op.Mul(made, op.Sigmoid(made))
    if match["last"] != 0:
        made = _back(made)
    return op.Cast(made, to=_HALF) if match.dtype("x") is _HALF else made


def _plain(match: Match) -> Pattern:
    return _normalised(match, x)


def skip_has_channels_last(match: Match) -> Refusal | None:
    """The channels are last, and the second term is an image or a row of channels for each batch."""
    if match["last"] == 0:
        return match.refuse("attribute", "channels_last", 1)
    # the kernel runs only if the second term has the sizes of the image, or those of one pixel
    found = match.unless_rank("skip", 2, _IMAGE)
    return found or (None if match.get("bias") is None else match.unless_same_shape("gamma", "bias"))


def _sum(match: Match) -> Pattern:
    added = op.Unsqueeze(skip, constant(1, 2)) if match.rank("skip") == 2 else skip
    total = op.Add(x, added)
    return total if match.get("bias") is None else op.Add(total, bias)


def _after_sum(match: Match) -> Pattern:
    return _normalised(match, _sum(match))


# Rule tests

_IMAGES = {"x": "b 5 4 8", "gamma": "8", "beta": "8"}
_NORMAL: Mapping[str, Sequence[Any]] = {"activation": [0, 1], "groups": [2], "epsilon": [1e-5, None, 1e-2]}
_CONV: Mapping[str, Sequence[Any]] = {
    "auto_pad": [None], "dilations": [None, (2, 1)], "group": [None, 1], "pads": [None, (1, 0, 1, 2)], "strides": [None, (1, 2)],
}  # fmt: skip


def _rule(
    name: str,
    formula: str,
    pattern: Pattern,
    replace: Callable[[Match], Pattern],
    makes: Sequence[str],
    guards: Sequence[Guard],
    test: RuleTest,
    intermediates: Mapping[str, Pattern] | None = None,
    exactness: Exactness = Exactness.ROUNDING,
) -> Rule:
    return Rule(
        name=name,
        formula=formula,
        pattern=pattern,
        replace=built(replace, makes=("Transpose", *makes)),
        intermediates=intermediates or {},
        is_refinement=True,
        spells_out=True,
        guards=tuple(guards),
        exactness=exactness,
        source=SOURCE,
        test=test,
    )


_WEIGHTS = np.random.default_rng(0).integers(-127, 128, (5, 3, 3, 3)).astype(np.int8)

_NORMALISING = ("Cast", "Reshape", "InstanceNormalization", "Shape", "Mul", "Add", "Sigmoid", "Unsqueeze")
_WHOLE = {name: attr(name) for name in ("activation", "groups", "epsilon")} | {"channels_last": attr("last")}
_DEFINED = {"com.microsoft.GroupNorm": group_norm, "com.microsoft.SkipGroupNorm": group_norm}
_CONVOLVING = {"com.microsoft.NhwcConv": channels_last_conv, "com.microsoft.NhwcFusedConv": channels_last_conv}
_EMPTY = {"*": "a group without numbers has no mean"}

RULES = [
    _rule(
        "groupnorm.lower_group_norm",
        "com.microsoft.GroupNorm(x, gamma, beta)",
        ms.GroupNorm(x, gamma, beta, **_WHOLE),
        _plain,
        _NORMALISING,
        (is_an_image, takes_floats, activation_is_known, channels_are_split),
        RuleTest(
            shapes=(_IMAGES, {"x": "b 8 5 4", "gamma": "8", "beta": "8"}),
            attributes=({**_NORMAL, "last": [1, None]}, {**_NORMAL, "last": [0]}),
            dtypes=("float32", "float16"),
            never_empty=_EMPTY,
            definitions=_DEFINED,
        ),
    ),
    _rule(
        "groupnorm.lower_skip_group_norm",
        "com.microsoft.SkipGroupNorm(x, gamma, beta, skip, bias)",
        ms.SkipGroupNorm(x, gamma, beta, skip, opt(bias), **_WHOLE).naming(summed=1),
        _after_sum,
        _NORMALISING,
        (is_an_image, takes_floats, activation_is_known, channels_are_split, skip_has_channels_last),
        RuleTest(
            shapes=(
                _IMAGES | {"skip": "b 5 4 8", "bias": "8"}, _IMAGES | {"skip": "b 1 1 8"}, _IMAGES | {"skip": "b 8", "bias": "8"},
            ),
            attributes={**_NORMAL, "last": [1, None]},
            never_empty=_EMPTY,
            definitions=_DEFINED,
        ),
        intermediates={"summed": built(_sum, makes=("Add", "Unsqueeze"))},
    ),
    _rule(
        "conv.lower_nhwc_conv",
        "com.microsoft.NhwcConv(x, weight, bias)",
        ms.NhwcConv(x, weight, opt(bias), kernel_shape=attr("kernel"), **_WINDOW),
        _convolved,
        ("Conv",),
        (is_an_image, kernel_is_that_of_the_weights(1, 2)),
        RuleTest(
            shapes={"x": "b 7 8 3", "weight": "4 3 3 3", "bias": "4"},
            attributes={**_CONV, "kernel": [(3, 3), None]},
            definitions=_CONVOLVING,
        ),
    ),
    _rule(
        "conv.lower_nhwc_fused_conv",
        "com.microsoft.NhwcFusedConv(x, weight, bias, z)",
        ms.NhwcFusedConv(
            x, weight, opt(bias), opt(z), activation=attr("activation"), activation_params=attr("parameters"),
            kernel_shape=attr("kernel"), **_WINDOW,
        ).named("result"),
        _fused,
        ("Conv", "Add", *KINDS),
        (is_an_image, kernel_is_that_of_the_weights(2, 3), is_known_activation, is_added_as_it_is),
        RuleTest(
            shapes={"x": "b 6 6 3", "weight": "4 3 3 3", "bias": "4", "z": "b 4 4 4"},
            attributes=tuple(
                {
                    **{name: [None] for name in ("auto_pad", "dilations", "group", "pads", "strides")},
                    "kernel": [(3, 3)], "activation": [kind], "parameters": [numbers],
                }
                for kind, numbers in KINDS.items()
            ),
            definitions=_CONVOLVING,
        ),
    ),
    _rule(
        "qdq.lower_contrib_qlinear_conv",
        "com.microsoft.QLinearConv(x, weight, bias)",
        ms.QLinearConv(
            *(var(name) for name in _PARTS), opt(bias), channels_last=attr("channels_last"), attributes=all_attributes("conv")
        ),
        _quantised,
        ("QLinearConv",),
        (is_an_image_if_last,),
        RuleTest(
            shapes=tuple(
                {
                    "a": dims, "weight": "5 3 3 3", "bias": "5",
                    **dict.fromkeys(("a_scale", "a_zero", "weight_scale", "weight_zero", "scale", "zero"), ""),
                }
                for dims in ("b 6 7 3", "b 3 6 7")
            ),
            attributes=tuple(
                {"channels_last": last, "conv": [{}, {"pads": [1, 0, 1, 0], "strides": [2, 1]}]} for last in ([1], [0, None])
            ),
            inputs={"a": "uint8"},
            constants={
                **BYTES, "weight": _WEIGHTS, "weight_scale": np.float32(0.0117), "weight_zero": np.int8(0),
                "bias": np.array([0, 9, -70, 300, 5], np.int32),
            },
            step=1.0,
            followed_by=as_floats,
        ),
        exactness=Exactness.EXACT,
    ),
    _rule(
        "pool.lower_nhwc_max_pool",
        "com.microsoft.NhwcMaxPool(x)",
        ms.NhwcMaxPool(x, attributes=all_attributes("pool")),
        _pooled,
        ("MaxPool",),
        (is_an_image,),
        RuleTest(
            shapes={"x": "b 6 7 3"},
            attributes={"pool": [
                {"kernel_shape": [2, 3]}, {"kernel_shape": [3, 3], "pads": [1, 0, 1, 0], "strides": [2, 1]},
                {"kernel_shape": [2, 2], "ceil_mode": 1, "strides": [2, 2]},
            ]},
            inputs={"x": "uint8"},
            followed_by=as_floats,
        ),
        exactness=Exactness.EXACT,
    ),
]  # fmt: skip
