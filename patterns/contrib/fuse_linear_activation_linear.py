"""Fuse two linear layers with an activation between them if `--force` asks for it.

ffn(x) = f(x W + a) V + b          f relu, gelu (by the error function or by tanh) or swish: Vaswani et al., arXiv:1706.03762

They are no faster on the CPU, but other targets and tools look for them (`--force ffn=FeedForwardGelu`). They are model-local
functions in the domain `ortfuse`: the runtime executes their bodies, and the file runs anywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, const, ms, op, opt, var
from ortfuse.targets import register_operators

from .._shared_guards import array_like
from .fuse_glu import BODIES, activated, function, is_not_double, made_of

PASS = "contrib.ffn"

KINDS = {"Relu": "relu", "Gelu": "gelu", "GeluTanh": "gelu_tanh", "Swish": "swish"}

_FIRST, _SECOND = "p = MatMul (x, w) h = Add (p, c)", "q = MatMul (a, v) y = Add (q, d)"

register_operators(
    bodies=[function(f"FeedForward{kind}", "x, w, c, v, d", f"{_FIRST} {BODIES[kind]} {_SECOND}") for kind in KINDS]
)

x = var("x", "... k")
first, second = const("first", "k m"), const("second", "m n")
bias, shift = const("bias", "m"), const("shift", "n")


def _with_bias(kind: str, hidden: Pattern) -> Pattern:
    """The activation of the hidden layer, whose bias some operators take in."""
    plain = activated(kind, hidden + opt(bias))
    fused = {"Gelu": ms.BiasGelu(hidden, bias), "GeluTanh": ms.FastGelu(hidden, bias)}
    return plain | fused[kind] if kind in fused else plain


def _zeros(weight: str) -> Pattern:
    """A bias for a layer that has none."""

    def made(match: Match) -> Any:
        return array_like(match, np.zeros(match.const(weight).shape[0 if match.get(f"{weight}_turned") else 1]))

    return computed(f"no_bias_of_{weight}", made)


def _rule(kind: str) -> Rule:
    hidden = op.MatMul(x, first)
    return Rule(
        name=f"ffn.matmul_{KINDS[kind]}_matmul_to_function",
        formula=f"{kind}(x first + bias) second + shift",
        pattern=op.MatMul(_with_bias(kind, hidden), second) + opt(shift),
        replace=getattr(made_of, f"FeedForward{kind}")(
            x, first, bias | _zeros("first"), second, shift | _zeros("second")
        ),
        guards=(is_not_double,) if kind == "GeluTanh" else (),
        on_request=True,
        allow_extra_operands=True,
        exactness=Exactness.ROUNDING,
        source="arXiv:1706.03762",
        test=RuleTest(
            shapes={"x": "b s 4", "first": "4 6", "bias": "6", "second": "6 3", "shift": "3"},
            redundant={"dimension *": "the products ask for the same"},
            opset=20,
        ),
    )


def _of_gemm(kind: str) -> Rule:
    """The same of layers on two axes, as exporters write them."""
    flat, weights = var("x", "_ _"), (const("first", "_ _"), const("second", "_ _"))
    turned = ("first_turned", "second_turned")
    hidden = activated(kind, op.Gemm(flat, weights[0], opt(bias), transB=attr(turned[0])))

    def made(match: Match) -> Pattern:
        straight = [
            op.Transpose(weight, perm=(1, 0)) if match[name] else weight
            for name, weight in zip(turned, weights, strict=True)
        ]
        layer: Pattern = getattr(made_of, f"FeedForward{kind}")(
            flat, straight[0], bias | _zeros("first"), straight[1], shift | _zeros("second")
        )
        return layer

    return Rule(
        name=f"ffn.gemm_{KINDS[kind]}_gemm_to_function",
        formula=f"{kind}(gemm(x, first, bias)) second + shift",
        pattern=op.Gemm(hidden, weights[1], opt(shift), transB=attr(turned[1])),
        replace=built(made, makes=(f"FeedForward{kind}", "Transpose")),
        guards=(is_not_double,) if kind == "GeluTanh" else (),
        on_request=True,
        exactness=Exactness.ROUNDING,
        source="arXiv:1706.03762",
        test=RuleTest(
            shapes=(
                {"x": "b 4", "first": "6 4", "bias": "6", "second": "3 6", "shift": "3"},
                {"x": "b 4", "first": "4 6", "bias": "6", "second": "6 3", "shift": "3"},
            ),
            attributes=tuple({name: [value] for name in turned} for value in (1, 0)),
            redundant={"dimension *": "the products ask for the same"},
            opset=20,
        ),
    )


RULES = [made(kind) for kind in KINDS for made in (_rule, _of_gemm)]
