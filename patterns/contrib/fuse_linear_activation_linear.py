"""Fuse two linear layers with an activation between them if `--force` asks for it.

ffn(x) = f(x W + a) V + b          f relu, gelu (by the error function or by tanh) or swish: Vaswani et al., arXiv:1706.03762

They are no faster on the CPU, but other targets and tools look for them (`--force ffn=FeedForwardGelu`). They are model-local
functions in the domain `ortfuse`: the runtime executes their bodies, and the file runs anywhere.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, const, ms, op, opt, var
from ortfuse.targets import register_operators

from .._shared_guards import array_like
from .fuse_glu import BODIES, DOMAIN, activated, function, is_not_double, made_of

PASS = "contrib.ffn"

KINDS = ("Relu", "Gelu", "GeluTanh", "Swish")

_FIRST, _SECOND = "p = MatMul (x, w) h = Add (p, c)", "q = MatMul (a, v) y = Add (q, d)"

register_operators(
    bodies=[function(f"FeedForward{kind}", "x, w, c, v, d", f"{_FIRST} {BODIES[kind]} {_SECOND}") for kind in KINDS]
)

x = var("x", "... k")
first, second = const("first", "k m"), const("second", "m n")
bias, shift = const("bias", "m"), const("shift", "n")


def _either(made: Callable[[str], Pattern]) -> Pattern:
    """The same for each kind of activation."""
    return functools.reduce(operator.or_, map(made, KINDS)).named("kind")


def _biased(kind: str) -> Pattern:
    """The activation of the hidden layer, whose bias some operators take in."""
    hidden = x @ first
    plain = activated(kind, hidden + opt(bias))
    fused = {"Gelu": ms.BiasGelu(hidden, bias), "GeluTanh": ms.FastGelu(hidden, bias)}
    return plain | fused[kind] if kind in fused else plain


def tanh_is_not_double(match: Match) -> Refusal | None:
    """The numbers are not of float64 where the activation is a Gelu in its tanh form."""
    return is_not_double(match) if KINDS[match.choice("kind")] == "GeluTanh" else None


def _zeros(weight: str) -> Pattern:
    """A bias for a layer that has none."""

    def made(match: Match) -> Any:
        return array_like(match, np.zeros(match.const(weight).shape[0 if match.get(f"{weight}_turned") else 1]))

    return computed(f"no_bias_of_{weight}", made)


def _function(x: Pattern, *layers: Pattern) -> Pattern:
    return _either(lambda kind: getattr(made_of, f"FeedForward{kind}")(x, *layers))


# The same of layers on two axes, as exporters write them
flat, weights = var("x", "_ _"), (const("first", "_ _"), const("second", "_ _"))
TURNED = ("first_turned", "second_turned")
hidden = op.Gemm(flat, weights[0], opt(bias), transB=attr(TURNED[0]))


def _of_gemm(match: Match) -> Pattern:
    straight = [
        op.Transpose(weight, perm=(1, 0)) if match[name] else weight
        for name, weight in zip(TURNED, weights, strict=True)
    ]
    return _function(flat, straight[0], bias | _zeros("first"), straight[1], shift | _zeros("second"))


def _rule(name: str, formula: str, pattern: Pattern, replace: Pattern, test: RuleTest, **more: Any) -> Rule:
    return Rule(
        name=f"ffn.{name}",
        formula=formula,
        pattern=pattern,
        replace=replace,
        guards=(tanh_is_not_double,),
        on_request=True,
        exactness=Exactness.ROUNDING,
        source="arXiv:1706.03762",
        test=dataclasses.replace(test, redundant={"dimension *": "the products ask for the same"}, opset=20),
        **more,
    )


RULES = [
    _rule(
        "matmul_activation_matmul_to_function",
        "f(x first + bias) second + shift, f relu, gelu or swish",
        _either(_biased) @ second + opt(shift),
        _function(x, first, bias | _zeros("first"), second, shift | _zeros("second")),
        RuleTest(shapes={"x": "b s 4", "first": "4 6", "bias": "6", "second": "6 3", "shift": "3"}),
        allow_extra_operands=True,
    ),
    _rule(
        "gemm_activation_gemm_to_function",
        "gemm(f(gemm(x, first, bias)), second, shift), f relu, gelu or swish",
        op.Gemm(_either(lambda kind: activated(kind, hidden)), weights[1], opt(shift), transB=attr(TURNED[1])),
        built(_of_gemm, makes=(*(f"{DOMAIN}.FeedForward{kind}" for kind in KINDS), "Transpose")),
        RuleTest(
            shapes=(
                {"x": "b 4", "first": "6 4", "bias": "6", "second": "3 6", "shift": "3"},
                {"x": "b 4", "first": "4 6", "bias": "6", "second": "6 3", "shift": "3"},
            ),
            attributes=tuple({name: [value] for name in TURNED} for value in (1, 0)),
        ),
    ),
]
