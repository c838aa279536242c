"""Conditions of identities, and the numbers that fulfil them in rule tests.

A condition is an expression of Python: comparisons of values and numbers (`x >= 0`, `k <= x <= m`, `0 <= k < 1`) and named
predicates (`finite(x)`), joined by `and`. A comparison of a value holds if every element is provably so; an element that is NaN
counts as one that is, since each operator of these identities makes NaN of it on both sides.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping

import onnx_ir as ir

from ortfuse.errors import RuleError
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite.pattern import Guard, Match, redundant

from .._rule_test_inputs import COST
from ._formula import NUMBERS, VALUES
from ._lossless_casts import converts_alike, holds_all

Interval = tuple[float, float]

_COMPARED: Mapping[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
}  # fmt: skip

_TRIED: tuple[Interval, ...] = (
    (-4.0, 4.0),
    (0.0, 4.0),
    (2.0**-20, 4.0),
    (-1.0, 1.0),
    (0.0, 1.0),
    (1.0, 4.0),
    (-4.0, 0.0),
)
"""The intervals from which the numbers of rule tests come: the first that fulfils a condition."""

_BETWEEN: Interval = (0.125, 0.75)
"""The interval for values that are compared with captured numbers."""

_CANDIDATES = (0.5, 2.0, 0.0, 0.125, 0.75, 1.0, 0.25, -1.0, -3.0, 3.0)

Predicate = Callable[..., Refusal | None]

_PREDICATES: dict[str, tuple[Predicate, str]] = {}
"""The predicates by name, each with the reason why identities would be right without it, if they would."""


def predicate(needless: str = "") -> Callable[[Predicate], Predicate]:
    """Register a predicate on the names of captured values under its own name.

    Args:
        needless: The reason why identities would be right without it, if they would.
    """

    def register(function: Predicate) -> Predicate:
        _PREDICATES[function.__name__] = function, needless
        return function

    return register


class Conditions:
    """The conditions of one identity, as a text; empty if it always holds."""

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        body = ast.parse(text.strip(), mode="eval").body if text.strip() else None
        terms = body.values if isinstance(body, ast.BoolOp) else [] if body is None else [body]
        self._compared = [term for term in terms if isinstance(term, ast.Compare)]
        self._called = [term for term in terms if isinstance(term, ast.Call)]
        if len(self._compared) + len(self._called) < len(terms):
            raise RuleError(f"{text!r} is no condition of comparisons and predicates")

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The guards that make sure of them."""
        return (*map(_comparison, self._compared), *map(_call, self._called))

    def interval(self, name: str) -> Interval | None:
        """The bounds of the numbers that a value has in a rule test; `None` if nothing is demanded of it."""
        terms = [term for term in self._compared if name in _names(term)]
        if any(one[0] in NUMBERS for term in terms for one in _names(term)):
            return _BETWEEN
        if not terms:
            called = [_function(term) for term in self._called if name in _names(term)]
            return next((_INTERVALS[function] for function in called if function in _INTERVALS), None)
        return next(tried for tried in _TRIED if all(_holds(term, {name: tried}) for term in terms))

    def calls(self, function: str) -> bool:
        """Whether a predicate is among them."""
        return any(_function(term) == function for term in self._called)

    def numbers(self, name: str) -> tuple[list[float], list[float]]:
        """Numbers that fulfil the conditions on a captured number, and some that do not."""
        terms = [term for term in self._compared if name in _names(term)]
        known = {other: _BETWEEN for term in terms for other in _names(term) if other[0] in VALUES}
        open_names = {other for term in terms for other in _names(term)} - {name, *known}
        given = known | dict.fromkeys(open_names, (0.75, 0.75))
        right = [one for one in _CANDIDATES if all(_pairwise(term, given | {name: (one, one)}, name) for term in terms)]
        return right[:3], [one for one in _CANDIDATES if one not in right][:4]


def _function(term: ast.Call) -> str:
    assert isinstance(term.func, ast.Name)
    return term.func.id


@functools.cache
def _names(term: ast.expr) -> list[str]:
    called = {term.func} if isinstance(term, ast.Call) else set()
    return [one.id for one in ast.walk(term) if isinstance(one, ast.Name) and one not in called]


def _pairs(term: ast.Compare) -> list[tuple[ast.expr, type[ast.cmpop], ast.expr]]:
    operands = [term.left, *term.comparators]
    return [(one, type(kind), other) for one, kind, other in zip(operands, term.ops, operands[1:], strict=False)]


def _pairwise(term: ast.Compare, given: Mapping[str, Interval], name: str) -> bool:
    """Whether the comparisons of a name hold."""
    return all(_pair_holds(*pair, given) for pair in _pairs(term) if name in _names(pair[0]) + _names(pair[2]))


def _holds(term: ast.Compare, given: Mapping[str, Interval]) -> bool:
    return all(_pair_holds(*pair, given) for pair in _pairs(term))


def _pair_holds(one: ast.expr, kind: type[ast.cmpop], other: ast.expr, given: Mapping[str, Interval]) -> bool:
    left, right = _interval(one, given), _interval(other, given)
    compare = _COMPARED[kind]
    if kind is ast.Eq:
        return left == right and left[0] == left[1]
    return compare(left[1], right[0]) if kind in (ast.Lt, ast.LtE) else compare(left[0], right[1])


def _interval(part: ast.expr, given: Mapping[str, Interval]) -> Interval:
    """The lowest and the highest number that an operand of a comparison can be."""
    if isinstance(part, ast.Name):
        return given[part.id]
    if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub):
        low, high = _interval(part.operand, given)
        return -high, -low
    if isinstance(part, ast.Call) and _function(part) == "abs":
        low, high = _interval(part.args[0], given)
        return (0.0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
    number = float(ast.literal_eval(part))
    return number, number


def _comparison(term: ast.Compare) -> Guard:
    names = _names(term)
    about = next((name for name in names if name[0] in VALUES), names[0])
    text = ast.unparse(term)

    def holds(match: Match) -> Refusal | None:
        given: dict[str, Interval] = {}
        for position, name in enumerate(names):
            found = match[name]
            if isinstance(found, ir.Value):
                values = match.facts.range(found)
                if values is None:
                    return match.refuse("values_unknown", name, f"such that {text}")
                given[name] = float(values.low), float(values.high)
            else:
                absent = -math.inf if position == 0 else math.inf
                given[name] = (absent, absent) if found is None else (float(found), float(found))
        if _holds(term, given):
            return None
        return match.refuse("values_unknown" if about[0] in VALUES else "value", about, f"such that {text}")

    holds.__name__, holds.__doc__ = f"holds: {text}", f"It is known that {text}."
    return holds


def _call(term: ast.Call) -> Guard:
    if _function(term) not in _PREDICATES:
        raise RuleError(f"there is no predicate {_function(term)!r}; there are {', '.join(_PREDICATES)}")
    (function, needless), names = _PREDICATES[_function(term)], _names(term)

    def holds(match: Match) -> Refusal | None:
        return function(match, *names)

    holds.__name__, holds.__doc__ = function.__name__, function.__doc__
    return redundant(needless)(holds) if needless else holds


# The predicates, each with the case that showed that it is needed

_LARGEST_EXPONENT = {ir.DataType.FLOAT: 80.0, ir.DataType.DOUBLE: 700.0, ir.DataType.FLOAT16: 9.0}
"""The exponential of these numbers is finite, and that of their opposites keeps all its digits."""

_INTERVALS: Mapping[str, Interval] = {"finite": (-4.0, 4.0), "moderate_exponent": (-40.0, 40.0)}
"""Numbers that fulfil a predicate, where numbers decide."""


@predicate()
def finite(match: Match, name: str) -> Refusal | None:
    """Each element is finite: infinity minus itself is NaN. Additive masks of -infinity are subtracted from themselves."""
    dtype = match.dtype(name)
    if dtype is None:
        return match.refuse("dtype", name)
    found = None if dtype.is_integer() else match.facts.range(match[name])
    known = dtype.is_integer() or (found is not None and found.is_finite)
    return None if known else match.refuse("values_unknown", name, "neither infinite nor NaN")


@predicate()
def unclipped(match: Match, name: str) -> Refusal | None:
    """No element is infinite if Clip has no bound: the runtime's Clip takes the largest finite number for an absent one."""
    values = match.facts.range(match[name])
    held = values is not None and -math.inf < values.low <= values.high < math.inf
    return None if held else match.refuse("values_unknown", name, "finite")


@predicate()
def moderate_exponent(match: Match, name: str) -> Refusal | None:
    """The exponential is neither infinite nor so small that it loses digits: log(exp(100)) is infinite in float32."""
    values, limit = match.facts.range(match[name]), _LARGEST_EXPONENT.get(match.dtype(name), 0.0)  # type: ignore[arg-type]
    held = values is not None and -limit <= values.low <= values.high <= limit
    return None if held else match.refuse("values_unknown", name, f"between {-limit:g} and {limit:g}")


@predicate()
def number(match: Match, name: str) -> Refusal | None:
    """The constant is not NaN: Max and Min give NaN where a comparison with NaN is false."""
    return match.unless_value(name, not math.isnan(match[name]), "a number")


@predicate("numbers so large are not tried")
def moderate_constants(match: Match, name: str) -> Refusal | None:
    """No intermediate result overflows where the combined one does not: all constants, and their product, are moderate."""
    found = (match.facts.scalar(value) for node in match.nodes for value in node.inputs if value is not None)
    limit = 2.0**10 if match.dtype("root") == ir.DataType.FLOAT16 else 2.0**40
    held = all(1 / limit <= abs(number) <= limit for number in (match[name], *found) if number is not None)
    return match.unless_value(name, held, f"of {1 / limit:.3g} to {limit:.3g} in size")


@predicate("one operation on few numbers is cheaper than one on many")
def shaped_like_result(match: Match, name: str) -> Refusal | None:
    """The value has the shape of the result: a reciprocal of a column costs less than a quotient of a whole matrix."""
    return match.unless_same_shape(name, "root")


@predicate()
def boolean(match: Match, name: str) -> Refusal | None:
    """The elements are booleans: of other numbers a comparison tells more than true and false."""
    return match.unless_dtype(name, ir.DataType.BOOL)


@predicate()
def integer_type(match: Match, kind: str) -> Refusal | None:
    """The type is of integers: to others a Cast keeps what follows the point."""
    return match.unless_value(kind, ir.DataType(match[kind]).is_integer(), "a type of integers")


@predicate()
def one_type(match: Match, name: str, other: str) -> Refusal | None:
    """Both values have one element type: half and single precision are compared after a Cast of each."""
    known = match.dtype(name) is not None and match.dtype(name) == match.dtype(other)
    return None if known else match.refuse("dtype", name, "that of the other operand")


@predicate()
def holds(match: Match, kind: str, name: str) -> Refusal | None:
    """The type holds every number of the value: float16 holds no 65537, float32 not every int32."""
    before = match.dtype(name)
    if before is None:
        return match.refuse("dtype", name)
    held = holds_all(ir.DataType(match[kind]), before)
    return None if held else match.refuse("attribute", kind, f"a type that holds every number of {before.name.lower()}")


@predicate()
def is_type_of(match: Match, kind: str, name: str) -> Refusal | None:
    """The type is that of the value."""
    return match.unless_value(kind, match.dtype(name) == match[kind], "the type of the value")


@predicate()
def converts_alike_by(match: Match, between: str, after: str, name: str) -> Refusal | None:
    """The value is converted to the last type as it is by way of the type between, which holds every number of it.

    The runtime rounds doubles and integers to float16 by way of float32, and cuts bits off integers from whatever type.
    """
    before = match.dtype(name)
    if before is None:
        return match.refuse("dtype", name)
    held = converts_alike(before, ir.DataType(match[between]), ir.DataType(match[after]))
    return None if held else match.refuse("attribute", after, f"a type to which {before.name.lower()} converts alike")


@predicate("a single quotient would be written again")
def several_nodes(match: Match) -> Refusal | None:
    """The match is of several nodes, so that something is left out."""
    return None if len(match.nodes) > 1 else match.refuse("needless", "root", found="it is a single node")


LOWEST_POWER, HIGHEST_POWER = -4, 8
"""The powers that are multiplied out: four products at most."""


@predicate()
def few_products(match: Match, name: str) -> Refusal | None:
    """The number is an exponent of few products, other than 0 and 1."""
    exponent = float(match[name])
    few = exponent.is_integer() and (LOWEST_POWER <= exponent < 0 or 2 <= exponent <= HIGHEST_POWER)
    return match.unless_value(name, few, f"a whole number from {LOWEST_POWER} to -1 or from 2 to {HIGHEST_POWER}")


@predicate(COST)
def not_averaged(match: Match) -> Refusal | None:
    """The result is no square in a variance, by which the runtime recognises normalizations."""
    averaged = match.get("k") == 2 and any(user.op_type == "ReduceMean" for user in match.root.consumers())
    return match.refuse("use", "root", "more than an average", "ReduceMean") if averaged else None
