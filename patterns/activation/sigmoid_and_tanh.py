"""Fuse Sigmoid and Tanh from exponentials, and each from the other.

sigmoid(x) = 1 / (1 + exp(-x)) = exp(x) / (1 + exp(x)) = (1 + tanh(x/2)) / 2
tanh(x)    = 2 sigmoid(2x) - 1 = (exp(x) - exp(-x)) / (exp(x) + exp(-x))
           = (1 - exp(-2x)) / (1 + exp(-2x)) = (exp(2x) - 1) / (exp(2x) + 1)

If an exponential overflows, 1 / (1 + exp(-x)) is 0, as it should be. Quotients of two exponentials are NaN there.
The rules fuse such quotients if x is known to be small enough. The `unbounded` rules need `--approximate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.ir.traits import JOINS, MOVES, has
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, op, redundant, scalar, var

from .clip import SHAPES, TYPICAL

SOURCE = "ONNX operators Sigmoid and Tanh"

x = var("x")
steep = scalar("steepness") * x
curve = op.Sigmoid(steep)
rising, falling = op.Exp(steep), op.Exp(scalar("negated") * x)

_LARGEST = {ir.DataType.FLOAT: 88.0, ir.DataType.DOUBLE: 709.0, ir.DataType.FLOAT16: 11.0}
"""The largest numbers of which the exponential does not overflow."""

_STEEPEST = 1e4

_MODERATE = dict.fromkeys(
    ("input * of Mul before Exp is *", "input * of Div before Exp is 0"), "exponentials are taken not to overflow"
)

_SENSITIVE = {"Log": 0, "Reciprocal": 0, "Div": 1, "Pow": 0, "Sqrt": 0}
"""Operators that magnify the absolute error of their input near 0, and which input that is."""

_KEEPS_SMALL = {
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceL1",
    "ReduceL2",
    "Abs",
    "Neg",
    "Cast",
    "Add",
    "Sub",
}
"""Operators of which small numbers make small numbers; those of `MOVES` and `JOINS` too."""

_NO_LONGER_SMALL = 1e-3
"""A constant of this size that is added hides how small the number is."""

_FOLLOWED = 200
"""How many nodes the result is followed through."""


@redundant("only what magnifies small numbers shows their error")
def nothing_looks_close(match: Match) -> Refusal | None:
    """No logarithm or quotient is taken of the result, or of its sums: the kernel of Sigmoid is exact to 1e-8, not to 8 digits.

    Below -18 it makes 0. Probabilities of one class against the rest, which are divided by their sum, need the digits.
    """
    pending, seen = [match.root], {match.root}
    while pending and len(seen) < _FOLLOWED:
        value = pending.pop()
        for use in value.uses():
            if _magnifies(use.node, use.idx):
                what = f"{use.node.op_type}, which magnifies small numbers"
                return match.refuse("use", "root", "numbers near 1", what)
            if _keeps_small(use.node, use.idx, match):
                further = [output for output in use.node.outputs if output not in seen]
                pending += further
                seen.update(further)
    return None


def _magnifies(node: ir.Node, index: int) -> bool:
    to_truth = node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.BOOL
    return to_truth or _SENSITIVE.get(node.op_type) == index or _is_scaled_by_exponential(node)


def _keeps_small(node: ir.Node, index: int, match: Match) -> bool:
    if has(node, MOVES) or has(node, JOINS):
        return index == 0 or has(node, JOINS)
    if node.op_type not in _KEEPS_SMALL or node.domain:
        return False
    others = [value for number, value in enumerate(node.inputs) if number != index and value is not None]
    if node.op_type not in ("Add", "Sub") or not others:
        return index == 0
    number = match.facts.scalar(others[0])
    return number is None or abs(number) < _NO_LONGER_SMALL


def _is_scaled_by_exponential(node: ir.Node) -> bool:
    """Whether a node multiplies by an exponential, which may be as large as its other operand is small."""
    producers = [None if value is None else value.producer() for value in node.inputs]
    return node.op_type == "Mul" and any(producer is not None and producer.op_type == "Exp" for producer in producers)


def is_moderate(match: Match) -> Refusal | None:
    """No exponential overflows."""
    values, limit = match.facts.range(match["x"]), _LARGEST.get(match.dtype("x"), 0.0)  # type: ignore[arg-type]
    steepness = abs(match["steepness"])
    moderate = values is not None and max(abs(values.low), abs(values.high)) * steepness <= limit
    return None if moderate else match.refuse("values_unknown", "x", "so small that its exponential does not overflow")


def are_opposite(match: Match) -> Refusal | None:
    """Both exponents are the same but for their sign, where there are two."""
    return (
        None
        if match["negated"] is None
        else match.unless_value("negated", match["negated"] == -match["steepness"], -match["steepness"])
    )


def is_steep(match: Match) -> Refusal | None:
    """The exponent depends on x, and is not infinite for most of it."""
    return match.unless_value("steepness", 0 < abs(match["steepness"]) <= _STEEPEST, f"of 0 to {_STEEPEST:g} in size")


def _times(build: Callable[[Pattern], Pattern], factor: Callable[[Match], float]) -> Callable[[Match], Pattern]:
    """`build` of x times a number."""

    def made(match: Match) -> Pattern:
        number = factor(match)
        return build(x if number == 1 else op.Neg(x) if number == -1 else op.Mul(x, number))

    return made


def is_tanh(match: Match) -> Refusal | None:
    """The result goes from -1 to 1, or from 1 to -1."""
    is_line = (_gain(match), match["offset"]) in ((2.0, -1.0), (-2.0, 1.0))
    return match.unless_value("offset", is_line, "1 and the factor -2, or -1 and the factor 2")


def _exponent(match: Match) -> float:
    return float(match["steepness"])


def _half(match: Match) -> float:
    return float(match["steepness"]) / 2


tanh_forms = (
    (rising - falling) / (rising + falling) | (rising - 1) / (rising + 1) | (1 - rising) / (1 + rising)
).named("quotient")


def _tanh_factor(match: Match) -> float:
    """The factor of x in the tangent, by the form of the quotient."""
    return (_exponent(match), _half(match), -_half(match))[match.choice("quotient")]


def _gain(match: Match) -> float:
    return float(match["gain"]) if match["gain"] is not None else -float(match["lost"])


def _signed_half(match: Match) -> float:
    return math.copysign(1.0, _gain(match)) * _half(match)


def _bounded(build: Any) -> ir.Value:
    """Numbers from -4 to 4."""
    numbers = build.input("numbers", build.dims("x"))
    made: ir.Value = build.node("Clip", [numbers, build.constant(-4.0), build.constant(4.0)]).outputs[0]
    return made


def _quotient(name: str, pattern: Pattern, kind: str, factor: Callable[[Match], float]) -> Iterator[Rule]:
    """A quotient of exponentials, for numbers that are known to be moderate, and for any."""
    opposite = (are_opposite,) if kind == "Tanh" else ()
    bounded = (redundant("the exponents would not be moderate")(is_steep), is_moderate, *opposite)
    variants: list[tuple[str, Exactness, tuple[Guard, ...], dict[str, Any]]] = [
        ("_unbounded", Exactness.APPROXIMATE, (is_steep, *opposite), {})
    ]
    if kind == "Tanh":  # of numbers near 0, Sigmoid is less exact than the quotient
        variants.append(("", Exactness.ROUNDING, bounded, {"x": _bounded}))
    for suffix, exactness, guards, inputs in variants:
        yield Rule(
            name=f"{name}{suffix}",
            formula=f"{pattern}, x moderate" if inputs else str(pattern),
            pattern=pattern,
            replace=_times(getattr(op, kind), factor),
            makes=(kind, "Mul", "Neg"),
            guards=(nothing_looks_close, *guards),
            exactness=exactness,
            source=SOURCE,
            allow_extra_operands=True,
            test=RuleTest(
                shapes=SHAPES[:2],
                scalars={"steepness": [2.0], "negated": [-2.0]} if opposite else {"steepness": [1.0, 2.0]},
                inputs=inputs,
                assumes={} if inputs else _MODERATE,
            ),
        )


RULES = [
    Rule(
        name="sigmoid.reciprocal_of_one_plus_exp",
        pattern=1 / (1 + rising),
        replace=_times(op.Sigmoid, lambda match: -_exponent(match)),
        makes=("Sigmoid", "Mul", "Neg"),
        guards=(nothing_looks_close,),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(shapes=SHAPES, scalars={"steepness": [-1.0, -2.0, 1.0]}, typical=TYPICAL),
    ),
    Rule(
        name="tanh.from_scaled_sigmoid",
        pattern=scalar("gain") * curve + scalar("offset") | scalar("offset") - scalar("lost") * curve,
        replace=_times(op.Tanh, _signed_half),
        makes=("Tanh", "Mul", "Neg"),
        guards=(is_tanh,),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=SHAPES,
            scalars={"steepness": [2.0, 1.0, -2.0], "gain": [-2.0, 2.0], "lost": [2.0], "offset": [1.0, -1.0]},
            typical=TYPICAL,
        ),
    ),
    *_quotient("sigmoid.exp_over_one_plus_exp", rising / (1 + rising), "Sigmoid", _exponent),
    *_quotient("tanh.from_exponentials", tanh_forms, "Tanh", _tanh_factor),
]
