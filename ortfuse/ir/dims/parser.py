"""Parse the formulas that exporters write into dimension names (`parse` of `ortfuse.ir.dims`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import lru_cache

from ortfuse.ir.dims.algebra import broadcast, ceil_div, floor_div, maximum, minimum, mod
from ortfuse.ir.dims.polynomial import DimLike, exact_div, symbol

_NAME = re.compile(r"[^\W\d]\w*(-[^\W\d]\w*)*")  # "seq-len" is a name; exporters put spaces around a minus
_LONGEST = 300
_HIGHEST_POWER = 4


@lru_cache(maxsize=4096)
def parse(text: str) -> DimLike:
    """The dimension that a text such as ``2*s1``, ``past_sequence_length + 1`` or ``Min(64, seq//2)`` stands for.

    A text that is not such a formula is taken as the name of a symbol.
    """
    text = text.strip()
    if _NAME.fullmatch(text):
        return symbol(text)
    if text.startswith("?") and text[1:].isdigit():
        return symbol(text)
    try:
        if len(text) > _LONGEST:
            return symbol(text)
        return _formula(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return symbol(text)


def _formula(node: ast.expr) -> DimLike:
    match node:
        case ast.Name(id=name):
            return symbol(name)
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_formula(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))) if 1 <= power <= _HIGHEST_POWER:
            base = _formula(left)
            result = base
            for _ in range(power - 1):
                result = result * base
            return result
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            return _OPERATORS[type(operator)](_formula(left), _formula(right))
        case ast.Call(func=ast.Name(id="floor"), args=[ast.BinOp(left=left, op=ast.Div(), right=right)]):
            return floor_div(_formula(left), _formula(right))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if args and name.lower() in _FUNCTIONS:
            arity, apply = _FUNCTIONS[name.lower()]
            if arity is None or arity == len(args):
                return apply(*[_formula(argument) for argument in args])
    raise ValueError(ast.dump(node))


def _exact(a: DimLike, b: DimLike) -> DimLike:
    quotient = exact_div(a, b)
    if quotient is None:
        raise ValueError(f"{a} / {b}")
    return quotient


def _broadcast_all(*dims: DimLike) -> DimLike:
    result: DimLike = 1
    for dim in dims:
        result = broadcast(result, dim)
    return result


_OPERATORS: dict[type[ast.operator], Callable[[DimLike, DimLike], DimLike]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: floor_div,
    ast.Mod: mod,
    ast.Div: _exact,
}
_FUNCTIONS: dict[str, tuple[int | None, Callable[..., DimLike]]] = {
    "min": (None, minimum),
    "max": (None, maximum),
    "broadcast": (None, _broadcast_all),
    "floordiv": (2, floor_div),
    "ceildiv": (2, ceil_div),
    "mod": (2, mod),
    "pythonmod": (2, mod),
}
