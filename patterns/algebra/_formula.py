"""Read an identity, written as an expression of Python, into a pattern and its replacement.

`max(x, max(x, y)) -> max(x, y)` has a left side, which is looked for, and a right side, which is written. In both:

- `x y z` are values, `p q r` values of booleans, `a b` constants of any shape, `k m` numbers (constants of one element), and
  `t u` element types; `fill(n)` is a value that is n everywhere;
- `+ - * / **` and `-x` are operators on numbers, `& | ^ ~` on booleans, `< <= == >= >` comparisons; other operators are
  functions in lower case (`where(p, x, y)`, `cast(x, t)`, `clip(x, k, m)`). Each is one node; operands of commutative ones
  come in any order, and `x < y` matches `y > x` too;
- `or`, on the left, stands between alternatives, and `(w := f(x))` names what is matched.

An expression that stands on both sides is the same value: it is read, not computed again. Nodes on the right side whose
operands are all constants are computed once.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import RuleError
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, const, op, scalar, var
from ortfuse.rewrite.pattern.language import Op

from .._shared_guards import is_filled_with

VALUES, BOOLEANS, ARRAYS, NUMBERS, TYPES = "xyz", "pqr", "ab", "km", "tu"

_BINARY = {
    ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "Div", ast.Pow: "Pow",
    ast.BitAnd: "And", ast.BitOr: "Or", ast.BitXor: "Xor",
}  # fmt: skip
_COMPARED = {ast.Lt: "Less", ast.LtE: "LessOrEqual", ast.Gt: "Greater", ast.GtE: "GreaterOrEqual", ast.Eq: "Equal"}
_CHAINED: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_FLIPPED = {"Less": "Greater", "LessOrEqual": "GreaterOrEqual", "Greater": "Less", "GreaterOrEqual": "LessOrEqual"}
_FUNCTIONS = {
    name.lower(): name
    for name in (
        "Abs", "Cast", "Ceil", "Clip", "Cos", "Erf", "Exp", "Floor", "IsNaN", "Log", "Max", "Mean", "Min", "Neg",
        "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Sum", "Tanh", "Where",
    )
}  # fmt: skip
_PARAMETERS = {"Cast": ("to",), "Clip": ("min", "max")}
"""The operands that are attributes of patterns, behind the first."""

_EVALUATED: Mapping[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Max": np.maximum, "Min": np.minimum,
    "Neg": np.negative, "Not": np.logical_not,
}  # fmt: skip


class Formula:
    """One identity.

    Args:
        text: The identity.
        chain: Whether the left side is a sum or product modulo commutativity, associativity and numbers, in any number of nodes.
    """

    def __init__(self, text: str, *, chain: bool = False) -> None:
        left, arrow, right = text.partition("->")
        if not arrow:
            raise RuleError(f"{text!r} is no identity such as 'x + -y -> x - y'")
        self.text = " ".join(text.split())
        self.left, self.right = _parsed(left), _parsed(right)
        self.names = _names(self.left)
        self._inner = {_key(part) for part in _parts(self.left, past_alternatives=False) if part is not self.left}
        self.chain = chain
        self._made: dict[str, Pattern] = {}

    def __str__(self) -> str:
        return self.text

    # What it is made of

    @cached_property
    def tensors(self) -> list[str]:
        """The names of its values, those that are filled with a number included."""
        return [name for name in self.names if name[0] in VALUES + BOOLEANS or name.startswith("fill")]

    @cached_property
    def read(self) -> set[str]:
        """The names that the right side depends on."""
        found = set(_names(self.right))
        for part in _parts(self.left):
            if isinstance(part, ast.NamedExpr) and part.target.id in found:
                found |= set(_names(part.value))
        return found

    @cached_property
    def operators(self) -> set[str]:
        """The operators that are in each match: none of those that only some alternatives have."""
        return {_operator(part) for part in _parts(self.left, past_alternatives=False)} - {""}

    @cached_property
    def like(self) -> str:
        """The name of the value whose element type the constants of the right side have."""
        return next((name for name in self.names if name in VALUES), "root")

    # Its pattern and its replacement

    @cached_property
    def pattern(self) -> Pattern:
        """The pattern of the left side."""
        return self._matched(self.left)

    @cached_property
    def replacement(self) -> Pattern:
        """The replacement, made from the right side."""
        if self._is_constant(self.right):
            return op.Expand(self._constant(self.right, "root"), op.Shape(var(self.tensors[0])))
        return self._written(self.right)

    @cached_property
    def kept(self) -> bool:
        """Whether nodes below the root may also be used elsewhere, and then stay.

        They may if the right side is at most one operator, which takes no longer than the one at the root of the left side.
        """
        written = [part for part in _parts(self.right) if _key(part) not in self._inner and not self._is_constant(part)]
        made = [_operator(part) for part in written if _operator(part)]
        roots = {_operator(part) for part in _options(self.left)}
        return not made or (len(made) == 1 and all(_TIMES.get(made[0], 1) <= _TIMES.get(root, 1) for root in roots))

    def _matched(self, part: ast.expr) -> Pattern:
        key = _key(part)
        if key not in self._made:
            self._made[key] = self._matched_afresh(part)
        return self._made[key]

    def _matched_afresh(self, part: ast.expr) -> Pattern:
        match part:
            case ast.Name(id=name):
                return _variable(name)
            case ast.Constant(value=number) if isinstance(number, int | float):
                return number  # type: ignore[return-value]
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=number)) if isinstance(number, int | float):
                return -number  # type: ignore[return-value]
            case ast.BoolOp(values=options):
                return reduce(operator.or_, [self._matched(option) for option in options])
            case ast.NamedExpr(target=name, value=value):
                return self._matched(value).named(name.id)
            case ast.Call(func=ast.Name(id="fill"), args=[ast.Constant(value=int() | float() as number)]):
                return var(f"fill_{number}".replace("-", "m"), is_filled_with(number), f"{number:g} everywhere")
        if self.chain and isinstance(part, ast.BinOp) and type(part.op) in _CHAINED:
            return _CHAINED[type(part.op)](self._matched(part.left), self._matched(part.right))  # type: ignore[no-any-return]
        node = self._node(part, self._matched)
        made = node.kept() if self.kept and part is not self.left and part not in _options(self.left) else node
        label = self._label(part)
        named = made.named(label) if label in self._reread else made
        flipped = _FLIPPED.get(made.op_type)
        if flipped is None:
            return named
        mirrored = Op(flipped, made.inputs[::-1], may_stay=made.may_stay)
        return named | (mirrored.named(label) if label in self._reread else mirrored)

    def _written(self, part: ast.expr) -> Pattern:
        key = f"written {_key(part)}"
        if key not in self._made:
            self._made[key] = self._written_afresh(part)
        return self._made[key]

    def _written_afresh(self, part: ast.expr) -> Pattern:
        if isinstance(part, ast.Name):
            return _variable(part.id) if part.id[0] not in ARRAYS else var(part.id)
        if _key(part) in self._inner and not isinstance(part, ast.Constant):
            return var(self._label(part))
        if self._is_constant(part):
            return self._constant(part, self.like)
        return self._node(part, self._written)

    @cached_property
    def _reread(self) -> set[str]:
        """The labels of the operators of the left side that the right side reads."""
        return {self._label(part) for part in _parts(self.right) if _operator(part) and _key(part) in self._inner}

    def _label(self, part: ast.expr) -> str:
        dumped = _key(part)
        return f"part_{[_key(one) for one in _parts(self.left)].index(dumped)}" if dumped in self._inner else ""

    def _node(self, part: ast.expr, build: Callable[[ast.expr], Pattern]) -> Op:
        name, operands = _operator(part), _operands(part)
        if not name:
            raise RuleError(f"{self.text}: {ast.unparse(part)} is no operator of the language of identities")
        parameters = _PARAMETERS.get(name, ())
        attributes: dict[str, Any] = {}
        for key, operand in zip(parameters, operands[1:], strict=False):
            assert isinstance(operand, ast.Name)
            attributes[key] = attr(operand.id)
        made: Op = getattr(op, name)(*map(build, operands[:1] if parameters else operands), **attributes)
        return made

    def _is_constant(self, part: ast.expr) -> bool:
        return all(name[0] in ARRAYS + NUMBERS for name in _names(part)) and not isinstance(part, ast.Name)

    def _constant(self, part: ast.expr, like: str) -> Pattern:
        def value(match: Match) -> Any:
            dtype = match.dtype(like)
            assert dtype is not None
            return np.asarray(_value(part, match, dtype), dtype=dtype.numpy())

        return computed(ast.unparse(part).replace(" ", ""), value)


_TIMES = {
    "Div": 2, "Reciprocal": 2, "Sqrt": 2, "Where": 2, "Exp": 4, "Log": 4, "Tanh": 4, "Sigmoid": 4, "Erf": 4, "Pow": 9,
    "Expand": 9, **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"), 2),
}  # fmt: skip
"""How long an operator takes for each element, as far as it decides what may stay: others take 1, such as Not."""


def _parsed(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


def _key(part: ast.expr) -> str:
    """A text that is the same for equal expressions."""
    known: str | None = part.__dict__.get("key")
    if known is None:
        head = _operator(part) or getattr(part, "id", "") or str(getattr(part, "value", type(part).__name__))
        known = part.__dict__["key"] = f"{head}({', '.join(map(_key, _operands(part)))})"
    return known


def _value(part: ast.expr, match: Match, dtype: ir.DataType) -> Any:
    """The numbers of an expression of constants, in float64 where they are of floating-point numbers."""
    if isinstance(part, ast.Constant):
        return part.value
    if isinstance(part, ast.Name):
        if part.id[0] in NUMBERS:
            return match[part.id]
        array = match.const(part.id)
        return array.astype(np.float64) if dtype.is_floating_point() else array
    return _EVALUATED[_operator(part)](*(_value(operand, match, dtype) for operand in _operands(part)))


def _variable(name: str) -> Pattern:
    if name[0] in NUMBERS:
        return scalar(name)
    return const(name) if name[0] in ARRAYS else var(name)


def _operator(part: ast.expr) -> str:
    """The operator of the standard that an expression is; none for a name, a number or alternatives."""
    match part:
        case ast.BinOp(op=kind):
            return _BINARY.get(type(kind), "")
        case ast.UnaryOp(op=kind, operand=operand):
            number = isinstance(operand, ast.Constant)
            return "Not" if isinstance(kind, ast.Invert) else "" if number else "Neg"
        case ast.Compare(ops=[kind]):
            return _COMPARED.get(type(kind), "")
        case ast.Call(func=ast.Name(id=name)):
            return _FUNCTIONS.get(name, "")
    return ""


def _operands(part: ast.expr) -> list[ast.expr]:
    match part:
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.UnaryOp(operand=operand):
            return [operand]
        case ast.Compare(left=left, comparators=[right]):
            return [left, right]
        case ast.Call(args=operands):
            return list(operands)
        case ast.NamedExpr(value=value):
            return [value]
        case ast.BoolOp(values=options):
            return list(options)
    return []


def _options(part: ast.expr) -> list[ast.expr]:
    """The alternatives that an expression consists of."""
    if isinstance(part, ast.NamedExpr):
        return _options(part.value)
    return [one for option in part.values for one in _options(option)] if isinstance(part, ast.BoolOp) else [part]


def _parts(part: ast.expr, past_alternatives: bool = True) -> Iterator[ast.expr]:
    """An expression and those that it is made of."""
    yield part
    if past_alternatives or not isinstance(part, ast.BoolOp):
        for operand in _operands(part):
            yield from _parts(operand, past_alternatives)


def _names(part: ast.expr) -> list[str]:
    """The names of captured values in an expression, each once; those that alternatives are given are none."""
    found = []
    for one in _parts(part):
        if isinstance(one, ast.Name):
            found.append(one.id)
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "fill":
            found.append(f"fill_{ast.unparse(one.args[0])}".replace("-", "m"))
    return list(dict.fromkeys(found))
