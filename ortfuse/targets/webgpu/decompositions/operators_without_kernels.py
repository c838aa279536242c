"""Make operators for which WebGPU has no kernels of others that have some.

a or b = not (not a and not b)          a xor b = not (int32(a) = int32(b))
sign(x) = where(x > 0, 1, where(x < 0, -1, x))          softsign(x) = x / (1 + |x|)
selu(x) = gamma elu(x, alpha)          celu(x) = where(x > 0, x, alpha elu(x / alpha))
shrink(x) = where(x < -l, x + b, where(x > l, x - b, 0))
round(x) = where(|x| < 2^23, (x + C) - C, x)          C = 2^23 where x > 0, else -2^23; halves to even
sum(a, b, c, ...) = a + b + c + ...
constant_of_shape(n) = expand(constant, n)
where(isnan(p), f, p) = where(lowest <= max(x) <= highest, p, f)          p = softmax(x), along its axis

*Requires:* floating-point numbers; for round float32, for celu an alpha that is a positive normal number of their type.

*Does not handle:* IsNaN of anything but Softmax, and IsInf: a device may take it that there are neither. Of NaN in x it
depends on the device whether the largest number is NaN, as WebGPU defines no result.

Rationale: the processor waits for the GPU to compute such an operator, and the GPU for the processor.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, built, computed, op, rest, var

from ._integers_in_float32 import number

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)

INTEGERS_FROM = 2.0**23
"""From here on up, float32 has integers alone, which it holds one by one up to twice this number."""

MERGES_NO_AXES = 13
"""The opset from which on Softmax is over one axis."""

x, a, b, sizes, fill = var("x"), var("a"), var("b"), var("sizes"), var("fill")
_WEIGHTS = op.Softmax(x, axis=attr("axis")).kept().named("weights")


def are_floats(match: Match) -> Refusal | None:
    """The numbers are float32 or float16."""
    return match.unless_dtype("x", *FLOATS)


def are_float32(match: Match) -> Refusal | None:
    """The numbers are float32."""
    return match.unless_dtype("x", ir.DataType.FLOAT)


def _like(name: str, value: float) -> Pattern:
    """A constant of the type of the numbers."""
    made: Pattern = computed(name, lambda match: np.asarray(value, (match.dtype("x") or ir.DataType.FLOAT).numpy()))
    return made


def _parameter(match: Match, name: str, default: float) -> float:
    return default if match[name] is None else float(match[name])


def fits_type(name: str) -> Guard:
    """A parameter is not given, or is a finite number of the type of the numbers."""

    def is_finite(match: Match) -> Refusal | None:
        limit = float(np.finfo((match.dtype("x") or ir.DataType.FLOAT).numpy()).max)
        fits = match[name] is None or abs(float(match[name])) <= limit
        return match.unless_value(name, fits, "a finite number of the type of the numbers")

    return is_finite


def _sign(match: Match) -> Pattern:
    nothing = _like("nothing", 0)
    below = op.Where(op.Less(x, nothing), _like("below", -1), x)
    made: Pattern = op.Where(op.Greater(x, nothing), _like("above", 1), below)
    return made


def _selu(match: Match) -> Pattern:
    factor, slope = _parameter(match, "gamma", 1.0507009873554805), _parameter(match, "alpha", 1.6732632423543772)
    made: Pattern = op.Mul(op.Elu(x, alpha=slope), _like("factor", factor))
    return made


def _celu(match: Match) -> Pattern:
    slope = _parameter(match, "alpha", 1.0)
    if slope == 1:
        return op.Elu(x, alpha=1.0)
    # the quotient of a number above 0 may overflow, and is not used
    below = op.Mul(op.Elu(op.Div(x, _like("slope", slope)), alpha=1.0), _like("slope", slope))
    made: Pattern = op.Where(op.Greater(x, _like("nothing", 0)), x, below)
    return made


def has_positive_slope(match: Match) -> Refusal | None:
    """Alpha is a positive normal number of the type of the numbers."""
    limits = np.finfo((match.dtype("x") or ir.DataType.FLOAT).numpy())
    fits = float(limits.tiny) <= _parameter(match, "alpha", 1.0) <= float(limits.max)
    return match.unless_value("alpha", fits, "a positive normal number")


def _rounded(_: Match) -> Pattern:
    step, back = number("above", INTEGERS_FROM), number("below", -INTEGERS_FROM)
    away = op.Where(op.Greater(x, number("nothing", 0)), step, back)
    whole = op.Sub(op.Add(x, away), away)
    made: Pattern = op.Where(op.Less(op.Abs(x), step), whole, x)
    return made


def _shrunk(match: Match) -> Pattern:
    # a limit between two numbers of the type is exceeded by the same ones as the lower of these is
    limit = _at_most(_parameter(match, "lambd", 0.5), (match.dtype("x") or ir.DataType.FLOAT).numpy())
    bias = _parameter(match, "bias", 0.0)
    above, below = op.Greater(x, _like("limit", limit)), op.Less(x, _like("lower limit", -limit))
    less, more = op.Sub(x, _like("bias", bias)), op.Add(x, _like("bias", bias))
    made: Pattern = op.Where(below, more, op.Where(above, less, _like("nothing", 0)))
    return made


def _at_most(limit: float, dtype: Any) -> float:
    """The largest number of a type that is not above a limit."""
    found = np.asarray(limit, dtype)
    return float(np.nextafter(found, np.asarray(-np.inf, dtype)) if float(found) > limit else found)


def _added(match: Match) -> Pattern:
    parts: list[Pattern] = [match.capture(f"part{index}", part) for index, part in enumerate(match["parts"])]
    return functools.reduce(op.Add, parts)


def are_several_floats(match: Match) -> Refusal | None:
    """There are two operands or more, of float32 or float16."""
    if len(match["parts"]) < 2:
        return match.refuse("missing_input", "root", "two operands or more")
    fits = all(match.facts.dtype(part) in FLOATS for part in match["parts"])
    return None if fits else match.refuse("dtype", "root", "float32 or float16")


def _guarded(match: Match) -> Pattern:
    """The weights where the largest score is finite: Softmax is NaN of rows of -inf alone, and of rows with inf."""
    limits = np.finfo((match.dtype("x") or ir.DataType.FLOAT).numpy())
    lowest, highest = _like("lowest", float(limits.min)), _like("highest", float(limits.max))
    largest = op.ReduceMax(x, axes=(match["axis"],), keepdims=1)
    is_finite = op.And(op.GreaterOrEqual(largest, lowest), op.LessOrEqual(largest, highest))
    made: Pattern = op.Where(is_finite, _WEIGHTS, fill)
    return made


def is_over_one_axis(match: Match) -> Refusal | None:
    """Softmax is over one axis: the last, or another of an opset in which later axes are not merged with it."""
    node, rank, axis = match["weights"].producer(), match.rank("x"), match["axis"]
    last = axis == -1 or (rank is not None and axis == rank - 1)
    merges = node is None or match.facts.version(node) < MERGES_NO_AXES
    return match.unless_value("axis", axis is not None and (last or not merges), "the last axis, or any of opset 13 on")


def _filling(match: Match) -> Any:
    found = match["value"]
    return np.zeros((), np.float32) if found is None else np.asarray(found.numpy()).reshape(())


def _rule(operator: str, pattern: Pattern, replace: Any, makes: tuple[str, ...], *guards: Guard, **test: Any) -> Rule:
    exactness = test.pop("exactness", Exactness.ROUNDING)
    return Rule(
        name=f"no_kernel.decompose_{operator}",
        is_refinement=True,
        pattern=pattern,
        replace=built(replace, makes=makes) if makes else replace,
        guards=guards,
        exactness=exactness,
        source="ONNX operators",
        test=RuleTest(**test),
    )


def _number(truth: Pattern) -> Pattern:
    made: Pattern = op.Cast(truth, to=ir.DataType.INT32)
    return made


def _size(build: Any) -> ir.Value:
    """The sizes of an input."""
    made: ir.Value = build.node("Shape", [build.input("like", ["b", 3], ir.DataType.FLOAT)]).outputs[0]
    return made


def _parts(build: Any) -> list[ir.Value]:
    return [
        build.input(f"part{index}", dims, ir.DataType.FLOAT) for index, dims in enumerate((["b", 3], [3], ["b", 1]))
    ]


_TRUTHS: dict[str, Any] = {
    "exactness": Exactness.EXACT,
    "shapes": {"a": "b 4", "b": "4"},
    "inputs": {"a": "bool", "b": "bool"},
}
_X = {"x": "b 5"}

RULES = [
    _rule("or", op.Or(a, b), op.Not(op.And(op.Not(a), op.Not(b))), (), **_TRUTHS),
    _rule("xor", op.Xor(a, b), op.Not(op.Equal(_number(a), _number(b))), (), **_TRUTHS),
    _rule("sign", op.Sign(x), _sign, ("Where", "Greater", "Less"), are_floats, shapes=_X),
    _rule(
        "softsign", op.Softsign(x), lambda _: op.Div(x, op.Add(op.Abs(x), _like("unit", 1))), ("Div", "Add", "Abs"),
        are_floats, shapes=_X,
    ),
    _rule(
        "selu", op.Selu(x, alpha=attr("alpha"), gamma=attr("gamma")), _selu, ("Elu", "Mul"), are_floats, fits_type("gamma"),
        shapes=_X, attributes={"alpha": [None, 0.5], "gamma": [None, 2.0]},
    ),
    _rule(
        "celu", op.Celu(x, alpha=attr("alpha")), _celu, ("Where", "Greater", "Elu", "Mul", "Div"), are_floats, has_positive_slope,
        shapes=_X, attributes={"alpha": [None, 0.5, 1e-36]},
    ),
    _rule(
        "shrink", op.Shrink(x, bias=attr("bias"), lambd=attr("lambd")), _shrunk,
        ("Where", "Greater", "Less", "Sub", "Add"), are_floats, fits_type("bias"),
        shapes=_X, attributes={"bias": [None, 0.25], "lambd": [None, 0.75]},
    ),
    _rule(
        "round", op.Round(x), _rounded, ("Where", "Greater", "Less", "Abs", "Add", "Sub"), are_float32, shapes=_X,
    ),
    _rule(
        "is_nan_of_softmax", op.Where(op.IsNaN(_WEIGHTS), fill, _WEIGHTS), _guarded,
        ("Where", "And", "GreaterOrEqual", "LessOrEqual", "ReduceMax"), are_floats, is_over_one_axis,
        exactness=Exactness.EXACT, shapes={"x": "b 4 5", "fill": ""}, attributes={"axis": [-1, 1]},
        counterexamples={"before opset 13": Variation(attributes={"axis": 1}, opset=11)},
    ),
    _rule("sum", op.Sum(rest("parts")), _added, ("Add",), are_several_floats, shapes={}, inputs={"parts": _parts}),
    _rule(
        "constant_of_shape", op.ConstantOfShape(sizes, value=attr("value")),
        lambda _: op.Expand(computed("filling", _filling), sizes), ("Expand",),
        exactness=Exactness.EXACT, shapes={"sizes": "2"}, inputs={"sizes": _size},
        attributes={"value": [None, ir.tensor(np.array([True])), ir.tensor(np.array([7], np.int32))]},
    ),
]  # fmt: skip
