"""Functions to write patterns with: `op.Name(...)`, `var("x")`, `rearrange(...)` and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ortfuse.errors import PatternError
from ortfuse.rewrite.pattern.axis_names import axes_of
from ortfuse.rewrite.pattern.language import (
    AllAttributes,
    Alt,
    Attr,
    Body,
    Built,
    Check,
    Computed,
    Op,
    Operand,
    Opt,
    Pattern,
    Rest,
    Scalar,
    Var,
    lift,
)
from ortfuse.rewrite.pattern.rearrangement import Rearrange
from ortfuse.rewrite.pattern.siblings import Siblings


class OpBuilder:
    """`op.Name(inputs..., attribute=...)` builds the pattern of one node; an attribute may be a literal or `attr(...)`.

    Parameters that ONNX moved from attributes to inputs between opsets (`axes`, `shape`, `split`, ...) are written as
    keywords and match both forms.
    """

    def __init__(self, domain: str = "") -> None:
        self._domain = domain

    def __getattr__(self, op_type: str) -> Callable[..., Op]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)

        def build(*inputs: Operand | None, outputs: int = 1, **attributes: Any) -> Op:
            lifted = [None if operand is None else lift(operand) for operand in inputs]
            return Op(op_type, lifted, attributes, self._domain, outputs)

        return build


op = OpBuilder()
ms = OpBuilder("com.microsoft")


def var(name: str, what: str | Check | None = None, text: str = "", *, check: Check | None = None) -> Var:
    """Any value, captured as `name`.

    `what` is its shape (`"b h s d"`, see `axis_names`), or a `check(value, facts)` with a `text` that describes
    the condition; both may be given.
    """
    return _variable(name, what, text, check, constant=False)


def variables(names: str) -> tuple[Var, ...]:
    """Several `var`s at once: `x, y = variables("x y")`."""
    return tuple(Var(name) for name in names.split())


def const(name: str, what: str | Check | None = None, text: str = "", *, check: Check | None = None) -> Var:
    """A constant, captured as `name`; for `what`, `text` and `check` see `var`."""
    return _variable(name, what, text, check, constant=True)


def fixed(name: str, what: str | Check | None = None, text: str = "", *, check: Check | None = None) -> Var:
    """A constant, or a value computed of constants alone, such as Cast and Mul of an int8 weight; captured as `name`.

    Its numbers may be unknown: `match.const` is `None` then. For `what`, `text` and `check` see `var`.
    """
    return _variable(name, what, text, check, constant=True, computed=True)


def _variable(
    name: str, what: str | Check | None, text: str, check: Check | None, *, constant: bool, computed: bool = False
) -> Var:
    if isinstance(what, str):
        return Var(name, check, text, constant, axes_of(what), computed=computed)
    return Var(name, what or check, text, constant, computed=computed)


def scalar(name: str) -> Scalar:
    """A one-element constant captured as a Python number; see `Scalar` for what it means in sums and products."""
    return Scalar(name)


def opt(operand: Operand) -> Opt:
    """An input, term or factor that may be absent."""
    return Opt(lift(operand))


def rest(name: str) -> Rest:
    """All remaining inputs."""
    return Rest(name)


def attr(name: str, check: Check | None = None, text: str = "") -> Attr:
    """An attribute captured as `name`; `check(value, facts)` may restrict it, and `text` describes the restriction."""
    return Attr(name, check, text)


def all_attributes(name: str) -> AllAttributes:
    """For `attributes=`: every attribute not mentioned, captured by a pattern and copied by a replacement."""
    return AllAttributes(name)


def body(inputs: str, *results: Operand) -> Body:
    """For an attribute that is a graph: the names of its formal inputs, and what each of its results is.

    `op.Scan(h, x, body=body("h x", h * w + x, ...), num_scan_inputs=1, outputs=2)`: inside, `var("h")` is the formal input.
    """
    return Body(inputs.split(), [lift(result) for result in results])


def siblings(*roots: Pattern) -> Siblings:
    """Several results, computed side by side: `siblings(x @ wq, x @ wk)`; the replacement has as many.

    Each root shares a variable with the first one, and none is computed from another. Only a whole pattern or replacement has
    siblings. Roots that are the same but for their names match in the order in which nodes use what is shared.

    Raises:
        PatternError: There are fewer than two, or one consists of siblings itself.
    """
    return Siblings(roots)


def computed(name: str, function: Callable[[Any], Any]) -> Computed:
    """In a replacement: the constant that `function(match)` returns as an array, or as a tensor that is read later."""
    return Computed(name, function)


def maybe(op_type: str, operand: Pattern, **attributes: Any) -> Alt:
    """`operand`, or `operand` behind one unary node of that type."""
    return Alt((Op(op_type, [operand], attributes), operand))


def rearrange(spelling: str, operand: Pattern) -> Rearrange:
    """`operand` with its axes split, moved and merged: `rearrange("b s (h d) -> b h s d", x)`.

    A pattern matches any nodes that provably do this; they may also be used elsewhere, and then stay. A replacement gets as
    few nodes as possible. A name that occurs only on the right is an axis along which the elements are repeated.

    Raises:
        PatternError: The text is not a valid rearrangement.
    """
    before, arrow, after = spelling.partition("->")
    if not arrow:
        raise PatternError(f"{spelling!r} is no rearrangement such as 'b s (h d) -> b h s d'")
    return Rearrange(before, after, operand)


def built(function: Callable[[Any], Pattern], *, makes: Sequence[str]) -> Built:
    """In a replacement: the pattern that `function(match)` returns, made of the operators named in `makes`."""
    return Built(function, makes)
