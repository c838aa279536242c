"""Lower com.microsoft FusedConv to operators of the standard.

fused_conv(x, W, b, z) = f(conv(x, W, b) + z), f = relu, tanh, sigmoid, leaky_relu, clip or hard_sigmoid

ONNX Runtime writes such nodes into the models that it saves.
"""

from __future__ import annotations

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, ms, op, opt, var

from .._shared_guards import same_shape

PASS = "canonicalize"

_WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_PARAMETERS = {"Relu": 0, "Tanh": 0, "Sigmoid": 0, "LeakyRelu": 1, "Clip": 2, "HardSigmoid": 2}
"""The activations of the kernel, and their numbers of parameters."""

x, weight, bias, z = (var(name) for name in ("x", "weight", "bias", "z"))
window = {name: attr(name) for name in _WINDOW}


def is_known_activation(match: Match) -> Refusal | None:
    """The activation is one of the kernel's, with all its parameters, or none."""
    kind, given = match["activation"], match["parameters"] or ()
    if kind is None or _PARAMETERS.get(kind) in (0, len(given)):
        return None
    return match.refuse("attribute", "activation", f"one of {', '.join(_PARAMETERS)} with its parameters")


def is_added_as_it_is(match: Match) -> Refusal | None:
    """The second term has the shape of the result, as the kernel demands."""
    return None if match["z"] is None else _of_result(match)


_of_result = same_shape("z", "result")


def _activated(match: Match) -> Pattern:
    convolved = op.Conv(x, weight, opt(bias), **window)
    return activated(match, convolved if match["z"] is None else op.Add(convolved, z))


def activated(match: Match, inner: Pattern) -> Pattern:
    """A sum with the activation that the match captured as `activation` and `parameters`."""
    kind, given = match["activation"], tuple(match["parameters"] or ())
    if kind is None:
        return inner
    if kind == "Clip":
        return op.Clip(inner, given[0], given[1])
    named = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(kind, ())
    made: Pattern = getattr(op, kind)(inner, **dict(zip(named, given, strict=False)))
    return made


_ONES = {name: [None] for name in ("auto_pad", "dilations", "pads", "strides")}
KINDS = {
    "Relu": None,
    "Tanh": None,
    "Sigmoid": None,
    "LeakyRelu": (0.25,),
    "Clip": (-0.5, 0.75),
    "HardSigmoid": (0.25, 0.5),
}
"""Activations with parameters, for rule tests."""

RULES = [
    Rule(
        name="conv.lower_fused_conv",
        formula="com.microsoft.FusedConv(x, weight, bias, z)",
        pattern=ms.FusedConv(
            x, weight, opt(bias), opt(z), activation=attr("activation"), activation_params=attr("parameters"), **window
        ).named("result"),
        replace=built(_activated, makes=("Conv", "Add", *_PARAMETERS)),
        is_refinement=True,
        spells_out=True,
        guards=(is_known_activation, is_added_as_it_is),
        exactness=Exactness.ROUNDING,
        source="com.microsoft operators of ONNX Runtime",
        test=RuleTest(
            shapes={"x": "b 3 6 6", "weight": "4 3 3 3", "bias": "4", "z": "b 4 4 4"},
            attributes=tuple(
                {**_ONES, "group": [1], "kernel_shape": [(3, 3)], "activation": [kind], "parameters": [parameters]}
                for kind, parameters in KINDS.items()
            ),
        ),
    )
]
