"""Fold chains of Mul, Div, Add and Sub with constants into one Mul and one Add.

(x a) b = x (a b)          (x + a) + b = x + (a + b)
(x a + b) c = x (a c) + b c          (x + a) b + c = x b + (a b + c)

The constants are computed in float64 and rounded once. These stay as they are:

- a sum with a large number and its negative, which rounds to integers on purpose;
- constants near the limits of their type, where the original or the result would overflow;
- sums with numbers so large that `x + a` would be exact where `x b + a b` is not;
- results that are soon rounded to an integer or compared, such as positions at the border of a bucket.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.traits import BROADCASTS, COMPARES, ELEMENTWISE, MOVES
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, computed, const, op, redundant, var
from ortfuse.rewrite.pattern.compare_constants_up_to_rounding import EPSILON

from .._rule_test_inputs import COST
from .._shared_guards import array_like

PASS = "fuse.scale_shift"

SOURCE = "distributive law"

x = var("x")

_LARGEST = {
    ir.DataType.FLOAT16: 2.0**10,
    ir.DataType.FLOAT: 2.0**40,
    ir.DataType.BFLOAT16: 2.0**40,
    ir.DataType.DOUBLE: 2.0**300,
}
"""The largest constants that are combined; the smallest factors are the inverse."""

FEW = 1 << 12
"""The most elements of a constant that is copied although it is used elsewhere."""

BORDERS = "only numbers on the border between two integers show it"
EXTREMES = "only the largest numbers of float16 overflow, and rule tests try no such inputs"

NEAR = 16
"""How many values behind a chain are looked at."""

LARGEST_SHIFT = 256.0
"""The largest term that is moved behind a factor: the largest of an image of bytes, and then some."""

Array = np.ndarray[Any, Any]


def _times(operand: Pattern, name: str) -> Pattern:
    return op.Mul(operand, const(name)) | op.Div(operand, const(name)) | op.Neg(operand)


def _plus(operand: Pattern, name: str) -> Pattern:
    return op.Add(operand, const(name)) | op.Sub(operand, const(name)) | op.Sub(const(name), operand)


def _float64_constant(match: Match, name: str) -> Array | None:
    return None if match[name] is None else match.const(name).astype(np.float64)


def _factor(match: Match, name: str, label: str) -> Array:
    """The factor of a step: the constant, its inverse, or -1."""
    found = _float64_constant(match, name)
    if found is None:
        return np.asarray(-1.0)
    with np.errstate(divide="ignore"):
        return 1 / found if match.choice(label) == 1 else found


def _term(match: Match, name: str, label: str) -> tuple[float, Array]:
    """The sign of x and the term of a step."""
    found = _float64_constant(match, name)
    assert found is not None
    choice = match.choice(label)
    return (-1.0 if choice == 2 else 1.0), (-found if choice == 1 else found)


def _decides(node: ir.Node, facts: Facts) -> bool:
    """Whether a node makes integers or truth values of numbers."""
    if node.op_type in ("Floor", "Ceil", "Round", "Sign", "Mod") or node.op_type in COMPARES:
        return True
    dtype = facts.dtype(node.outputs[0]) if node.op_type in ("Cast", "CastLike") else None
    return dtype is not None and not dtype.is_floating_point()


Line = tuple[float, Array, Array]
"""The sign, the factor and the term of `sign (factor x) + term`."""


def _factors(match: Match) -> Line:
    return 1.0, _factor(match, "a", "first") * _factor(match, "b", "second"), np.asarray(0.0)


def _terms(match: Match) -> Line:
    (first, a), (second, b) = _term(match, "a", "first"), _term(match, "b", "second")
    return first * second, np.asarray(1.0), second * a + b


def _scaled_last(match: Match) -> Line:
    (sign, b), c = _term(match, "b", "second"), _factor(match, "c", "third")
    return 1.0, sign * _factor(match, "a", "first") * c, b * c


def _shifted_last(match: Match) -> Line:
    (first, a), (second, c) = _term(match, "a", "first"), _term(match, "c", "third")
    factor = second * _factor(match, "b", "second")
    return 1.0, first * factor, factor * a + c


class _Chain:
    """A chain of steps with constants, of which `line` says what they come to; some of them are `factors`."""

    def __init__(self, line: Callable[[Match], Line], names: str, factors: str) -> None:
        self.line, self.names, self.factors = line, names, factors

    def constants(self, match: Match) -> dict[str, Array]:
        found = {name: _float64_constant(match, name) for name in self.names}
        return {name: array for name, array in found.items() if array is not None}

    def are_moderate(self, match: Match) -> Refusal | None:
        """Each constant is moderate: its product with x neither overflows nor underflows."""
        largest = _LARGEST.get(match.dtype("root"))  # type: ignore[arg-type]
        if largest is None:
            return match.unless_dtype("root", *_LARGEST)
        for name, array in self.constants(match).items():
            least = 1 / largest if name in self.factors else 0.0
            if not np.all((np.abs(array) <= largest) & (np.abs(array) >= least)):
                return match.refuse("value", name, f"between {least:.3g} and {largest:.3g} in size")
        with np.errstate(over="ignore"):
            _, factor, term = self.line(match)
        fits = np.all((np.abs(factor) <= largest) & (np.abs(factor) >= 1 / largest)) and np.all(np.abs(term) <= largest)
        return None if fits else match.refuse("value", "root", f"of constants up to {largest:.3g} when combined")

    def stay_small(self, match: Match) -> Refusal | None:
        """The folded constants are no larger than before, and no large constant is copied."""
        for name in self.constants(match):
            if match[name].is_graph_output() or (match.const(name).size > FEW and len(match[name].uses()) > 1):
                return match.refuse("needless", name, found="it is large, and used elsewhere too")
        sizes = [array.size for array in self.constants(match).values()]
        grown = any(array.size > max(sizes, default=0) for array in self.line(match)[1:])
        return match.refuse("needless", "root", found="the constants would grow") if grown else None

    def product_fits(self, match: Match) -> Refusal | None:
        """In float16 the product with x does not overflow where the sum with the term would not."""
        small = match.dtype("root") != ir.DataType.FLOAT16 or bool(np.all(np.abs(self.line(match)[2]) <= 16))
        return None if small else match.refuse("value", "root", "of terms up to 16 in float16")


def decides_nothing(match: Match) -> Refusal | None:
    """No node close behind rounds the result to an integer or compares it."""
    pending, seen = [match.root], 0
    while pending and seen < NEAR:
        seen += 1
        for node in pending.pop(0).consumers():
            if _decides(node, match.facts):
                return match.refuse("use", "root", needed="numbers", found=f"{node.op_type}, which decides by it")
            if node.op_type in BROADCASTS | ELEMENTWISE | MOVES:
                pending += node.outputs
    return None


def is_no_trick(match: Match) -> Refusal | None:
    """No large number is added and subtracted again: that rounds x on purpose."""
    _, _, total = _terms(match)
    large = np.maximum(*(np.abs(_float64_constant(match, name)) for name in "ab"))  # type: ignore[arg-type]
    rounds = large >= 1 / math.sqrt(EPSILON[match.dtype("root")])  # type: ignore[index]
    return match.unless_value("a", not np.any(rounds & (4 * np.abs(total) < large)), "not taken away again")


def shift_is_small(match: Match) -> Refusal | None:
    """x + a is not much smaller than a, as far as one can tell: digits lost in a b would be missed."""
    single = match.dtype("root") in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    shift, factor = np.abs(_term(match, "a", "first")[1]), np.abs(_factor(match, "b", "second"))
    limit = LARGEST_SHIFT if single else 1.0
    is_small = bool(np.all(shift <= limit) and np.all(shift * factor <= limit))
    return match.unless_value("a", is_small, f"at most {limit:g}, also times the factor")


def _scale_shift_rule(
    name: str, formula: str, pattern: Pattern, chain: _Chain, replace: Any, makes: tuple[str, ...], *guards: Guard
) -> Rule:
    return Rule(
        name=f"scale_shift.{name}",
        formula=formula,
        pattern=pattern,
        replace=replace,
        makes=makes,
        guards=(chain.are_moderate, redundant(COST)(chain.stay_small), redundant(BORDERS)(decides_nothing), *guards),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=(
                {"x": "b 3 4", "a": "3 1", "b": "1", "c": ""},
                {"x": "b 4", "a": "1", "b": "1 4", "c": "4"},
            ),
            constants=dict.fromkeys("abc", "positive"),
        ),
    )


def _computed(chain: _Chain, number: int) -> Pattern:
    return computed(("factor", "term")[number - 1], lambda match: array_like(match, chain.line(match)[number]))


def _shifted(match: Match) -> Pattern:
    sign, _, _ = _terms(match)
    total = _computed(_TERMS, 2)
    return op.Add(x, total) if sign > 0 else op.Sub(total, x)


def _line(chain: _Chain) -> Pattern:
    return op.Add(op.Mul(x, _computed(chain, 1)), _computed(chain, 2))


_FACTORS, _TERMS = _Chain(_factors, "ab", "ab"), _Chain(_terms, "ab", "")
_SCALED_LAST, _SHIFTED_LAST = _Chain(_scaled_last, "abc", "ac"), _Chain(_shifted_last, "abc", "b")

RULES = [
    _scale_shift_rule(
        "mul_of_mul",
        "x * a * b",
        _times(_times(x, "a").named("first"), "b").named("second"),
        _FACTORS,
        op.Mul(x, _computed(_FACTORS, 1)),
        (),
    ),
    _scale_shift_rule(
        "add_of_add",
        "x + a + b",
        _plus(_plus(x, "a").named("first"), "b").named("second"),
        _TERMS,
        _shifted,
        ("Add", "Sub"),
        redundant("without it the result would be more exact than it was meant to be")(is_no_trick),
    ),
    _scale_shift_rule(
        "mul_of_add_of_mul",
        "(x * a + b) * c",
        _times(_plus(_times(x, "a").named("first"), "b").named("second"), "c").named("third"),
        _SCALED_LAST,
        _line(_SCALED_LAST),
        (),
        redundant(EXTREMES)(_SCALED_LAST.product_fits),
    ),
    _scale_shift_rule(
        "add_of_mul_of_add",
        "(x + a) * b + c",
        _plus(_times(_plus(x, "a").named("first"), "b").named("second"), "c").named("third"),
        _SHIFTED_LAST,
        _line(_SHIFTED_LAST),
        (),
        redundant(EXTREMES)(_SHIFTED_LAST.product_fits),
        redundant("only an x close to -a shows the digits that are lost")(shift_is_small),
    ),
]
