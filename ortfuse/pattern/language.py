"""The pattern language: Python expressions that describe the subgraphs a rule looks for.

    x, mean = var("x"), var("mean")
    gelu = x * 0.5 * (1 + op.Erf(x / 2**0.5))

`+ - * /` build *sums* and *products*, matched modulo commutativity, associativity and scalar coefficients; `op.Name(...)`
matches one operator, `a | b` either of two patterns. The same expressions, read the other way, are the *replacements*
that the rewriter emits. A pattern object that occurs twice in an expression stands for one and the same value.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ortfuse.errors import PatternError
from ortfuse.graph.traits import PRODUCT, SUM

Check = Callable[[Any, Any], bool]
"""A predicate over a value (or attribute) and the facts: `check(thing, facts) -> bool`."""


class Pattern:
    """Base of all patterns. `label` names the matched value in the match (`match["label"]`)."""

    label: str | None = None

    def __add__(self, other: Operand) -> Pattern:
        return Sum.of([(1, self), (1, lift(other))])

    def __radd__(self, other: Operand) -> Pattern:
        return Sum.of([(1, lift(other)), (1, self)])

    def __sub__(self, other: Operand) -> Pattern:
        return Sum.of([(1, self), (-1, lift(other))])

    def __rsub__(self, other: Operand) -> Pattern:
        return Sum.of([(1, lift(other)), (-1, self)])

    def __mul__(self, other: Operand) -> Pattern:
        return Product.of([(1, self), (1, lift(other))])

    def __rmul__(self, other: Operand) -> Pattern:
        return Product.of([(1, lift(other)), (1, self)])

    def __truediv__(self, other: Operand) -> Pattern:
        return Product.of([(1, self), (-1, lift(other))])

    def __rtruediv__(self, other: Operand) -> Pattern:
        return Product.of([(1, lift(other)), (-1, self)])

    def __neg__(self) -> Pattern:
        return Product.of([(1, Const(-1.0)), (1, self)])

    def __or__(self, other: Pattern) -> Alt:
        options = (*self.options, other) if isinstance(self, Alt) and self.label is None else (self, other)
        return Alt(options)

    def named(self, label: str) -> Pattern:
        """This pattern with its matched value captured as `label`."""
        raise PatternError(f"{type(self).__name__} patterns cannot be named")

    @property
    def heads(self) -> frozenset[str] | None:
        """Operator types that may produce a matching value; `None` when any value (or input) may match."""
        return None

    def children(self) -> Sequence[Pattern]:
        """The patterns directly below this one."""
        return ()

    def walk(self) -> Iterator[Pattern]:
        """Every pattern of the expression once, this one first."""
        seen: set[int] = set()
        stack: list[Pattern] = [self]
        while stack:
            pattern = stack.pop()
            if id(pattern) in seen:
                continue
            seen.add(id(pattern))
            yield pattern
            stack.extend(reversed(pattern.children()))


Operand = Pattern | float | int


def lift(operand: Operand | None) -> Pattern:
    """A pattern as it is; a Python number as the constant it denotes."""
    if isinstance(operand, Pattern):
        return operand
    if isinstance(operand, (int, float)) and not isinstance(operand, bool):
        return Const(float(operand))
    raise PatternError(f"{operand!r} is neither a pattern nor a number")


class Var(Pattern):
    """Any value, captured as `name`; the same name elsewhere in the pattern must be the same value."""

    def __init__(self, name: str, check: Check | None = None, text: str = "", constant: bool = False) -> None:
        self.name, self.check, self.text, self.constant = name, check, text, constant

    def __str__(self) -> str:
        return self.name


class Const(Pattern):
    """A one-element constant equal to `value` within the tolerance of its dtype."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __str__(self) -> str:
        return f"{self.value:.7g}"


class Scalar(Pattern):
    """A one-element constant captured as a Python number.

    As a factor of a product it is the product's whole coefficient and may be absent (1); as a term of a sum it is the
    sum's whole constant and may be absent (0); as an operator's input it must be there.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


class Opt(Pattern):
    """An operator input, a term or a factor that may be absent; its captures are then `None`."""

    def __init__(self, inner: Pattern) -> None:
        self.inner = inner

    def children(self) -> Sequence[Pattern]:
        return (self.inner,)

    def __str__(self) -> str:
        return f"[{self.inner}]"


class Rest(Pattern):
    """All remaining inputs of an operator, captured as a tuple."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"*{self.name}"


class Alt(Pattern):
    """One of several patterns, tried in order; `match[label]` is the matched value, `match.choice(label)` which one."""

    def __init__(self, options: Iterable[Pattern], label: str | None = None) -> None:
        self.options = tuple(options)
        self.label = label
        heads = [option.heads for option in self.options]
        self._heads = None if None in heads else frozenset().union(*(h for h in heads if h is not None))

    def named(self, label: str) -> Alt:
        return Alt(self.options, label)

    @property
    def heads(self) -> frozenset[str] | None:
        return self._heads

    def children(self) -> Sequence[Pattern]:
        return self.options

    def __str__(self) -> str:
        return "(" + " | ".join(str(option) for option in self.options) + ")"


class Attr:
    """What an operator's attribute must be: captured under `name` when given, and accepted by `check` when given."""

    def __init__(self, name: str, check: Check | None = None, text: str = "") -> None:
        self.name, self.check, self.text = name, check, text

    def __str__(self) -> str:
        return f"{self.name}: {self.text}" if self.text else self.name


class AllAttributes:
    """All attributes of a node that the pattern does not mention, captured as a dictionary under `name`."""

    def __init__(self, name: str) -> None:
        self.name = name


class Op(Pattern):
    """One node: operator, inputs and attributes. Attributes not mentioned must have their ONNX default."""

    def __init__(
        self,
        op_type: str,
        inputs: Sequence[Pattern | None],
        attributes: Mapping[str, Any] | None = None,
        domain: str = "",
        outputs: int = 1,
        label: str | None = None,
        may_stay: bool = False,
        others: Mapping[str, int] | None = None,
    ) -> None:
        self.op_type, self.domain, self.output_count, self.label = op_type, domain, outputs, label
        self.may_stay, self.others = may_stay, dict(others or {})
        self.inputs = tuple(inputs)
        self.attributes = dict(attributes or {})
        everything = self.attributes.pop("attributes", None)
        if everything is not None and not isinstance(everything, AllAttributes):
            raise PatternError(f"op.{op_type}: attributes= takes all_attributes(name)")
        self.all_attributes: AllAttributes | None = everything
        if any(isinstance(pattern, Rest) for pattern in self.inputs[:-1]):
            raise PatternError(f"rest() must be the last input of op.{op_type}")
        # Specific inputs first: they bind the variables that the general ones then only have to be equal to.
        self.order = sorted(range(len(self.inputs)), key=lambda index: _generality(self.inputs[index]))

    def named(self, label: str) -> Op:
        return self._copy(label, self.may_stay)

    def kept(self) -> Op:
        """This pattern for a node that may be used elsewhere too and then stays: cheap data movement is not worth a miss."""
        return self._copy(self.label, True)

    def naming(self, **others: int) -> Op:
        """This pattern with further outputs of its node captured by their number, `None` where the node lacks them."""
        return self._copy(self.label, self.may_stay, others)

    def _copy(self, label: str | None, may_stay: bool, others: Mapping[str, int] | None = None) -> Op:
        attributes: dict[str, Any] = dict(self.attributes)
        if self.all_attributes is not None:
            attributes["attributes"] = self.all_attributes
        outputs = self.others if others is None else others
        return Op(self.op_type, self.inputs, attributes, self.domain, self.output_count, label, may_stay, outputs)

    def __getitem__(self, index: int) -> Out:
        if not 0 <= index < self.output_count:
            raise PatternError(f"op.{self.op_type} is declared with {self.output_count} output(s), not {index + 1}")
        return Out(self, index)

    def __iter__(self) -> Iterator[Out]:
        return (Out(self, index) for index in range(self.output_count))

    @property
    def heads(self) -> frozenset[str] | None:
        return frozenset({self.op_type})

    def children(self) -> Sequence[Pattern]:
        return tuple(pattern for pattern in self.inputs if pattern is not None)

    def __str__(self) -> str:
        parts = ["-" if pattern is None else bare(pattern) for pattern in self.inputs]
        parts += [f"{name}={value}" for name, value in self.attributes.items() if not callable(value)]
        return f"{self.domain + '.' if self.domain else ''}{self.op_type}({', '.join(parts)})"


def bare(pattern: Pattern) -> str:
    """A pattern as text without the parentheses that keep a sum or alternatives together within something else."""
    text = str(pattern)
    return text[1:-1] if isinstance(pattern, Alt | Sum) else text


class Out(Pattern):
    """One output of a node with several."""

    def __init__(self, node: Op, index: int, label: str | None = None) -> None:
        self.node, self.index, self.label = node, index, label

    def named(self, label: str) -> Out:
        return Out(self.node, self.index, label)

    @property
    def heads(self) -> frozenset[str] | None:
        return self.node.heads

    def children(self) -> Sequence[Pattern]:
        return (self.node,)

    def __str__(self) -> str:
        return f"{self.node}[{self.index}]"


class Chain(Pattern):
    """Common form of sums and products: signed parts, a scalar, and perhaps a captured scalar."""

    ops: frozenset[str] = frozenset()
    neutral: float = 0.0

    def __init__(
        self, parts: Sequence[tuple[int, Pattern]], scalar: float, capture: Scalar | None, label: str | None = None
    ) -> None:
        # The specific parts first: they bind the variables that the general ones then only have to be equal to.
        self.parts = tuple(sorted(parts, key=lambda part: _generality(part[1])))
        self.scalar, self.capture, self.label = scalar, capture, label
        required = [pattern for _, pattern in self.parts if not isinstance(pattern, Opt)]
        # A chain that can shrink to one part with sign + and no scalar matches whatever that part matches.
        self._heads: frozenset[str] | None
        if len(required) == 1 and scalar == self.neutral and (1, required[0]) in self.parts:
            inner = required[0].heads
            self._heads = None if inner is None else inner | self.ops
        else:
            self._heads = self.ops

    def named(self, label: str) -> Chain:
        return type(self)(self.parts, self.scalar, self.capture, label)

    @property
    def heads(self) -> frozenset[str] | None:
        return self._heads

    def children(self) -> Sequence[Pattern]:
        return tuple(pattern for _, pattern in self.parts)

    @classmethod
    def collect(cls, parts: Iterable[tuple[int, Pattern]], combine: Callable[[float, float, int], float]) -> Pattern:
        """The chain of `parts`, nested unnamed chains of the same kind merged and constants combined."""
        flat: list[tuple[int, Pattern]] = []
        scalar, capture = cls.neutral, None
        for sign, pattern in parts:
            if isinstance(pattern, Const):
                scalar = combine(scalar, pattern.value, sign)
            elif isinstance(pattern, Scalar):
                if capture is not None or sign != 1:
                    raise PatternError(f"scalar {pattern} must stand once, and not inverted, in its sum or product")
                capture = pattern
            elif isinstance(pattern, cls) and pattern.label is None and (pattern.capture is None or sign == 1):
                flat += [(sign * inner_sign, inner) for inner_sign, inner in pattern.parts]
                scalar = combine(scalar, pattern.scalar, sign)
                if capture is not None and pattern.capture is not None:
                    raise PatternError(f"two captured scalars in one chain: {capture} and {pattern.capture}")
                capture = pattern.capture or capture
            else:
                flat.append((sign, pattern))
        if not flat:
            raise PatternError("a sum or product needs at least one part that is not a number")
        return cls(flat, scalar, capture)


class Sum(Chain):
    """Terms added or subtracted in any order and nesting, plus a scalar constant."""

    ops = SUM
    neutral = 0.0

    @classmethod
    def of(cls, terms: Iterable[tuple[int, Pattern]]) -> Pattern:
        """The sum of signed terms."""
        return cls.collect(terms, lambda total, value, sign: total + sign * value)

    def __str__(self) -> str:
        text = "".join(f" {'+' if sign > 0 else '-'} {pattern}" for sign, pattern in self.parts)
        text += f" + {self.scalar:.7g}" if self.scalar else ""
        text += f" + {self.capture}" if self.capture else ""
        return "(" + text.removeprefix(" + ").strip() + ")"


class Product(Chain):
    """Factors multiplied or divided in any order and nesting, times a scalar coefficient."""

    ops = PRODUCT
    neutral = 1.0

    @classmethod
    def of(cls, factors: Iterable[tuple[int, Pattern]]) -> Pattern:
        """The product of factors raised to +1 or -1."""
        return cls.collect(factors, lambda total, value, sign: total * value if sign > 0 else total / value)

    def __str__(self) -> str:
        above = [f"{self.scalar:.7g}"] if self.scalar != 1 else []
        above += [str(self.capture)] if self.capture else []
        above += [str(pattern) for sign, pattern in self.parts if sign > 0]
        below = [str(pattern) for sign, pattern in self.parts if sign < 0]
        return " * ".join(above or ["1"]) + "".join(f" / {part}" for part in below)


class Computed(Pattern):
    """Only in replacements: a constant that `function(match)` computes as a numpy array."""

    def __init__(self, name: str, function: Callable[[Any], Any]) -> None:
        self.name, self.function = name, function

    def __str__(self) -> str:
        return self.name


def _generality(pattern: Pattern | None) -> int:
    if pattern is None:
        return 0
    if isinstance(pattern, Opt):
        return 4 + _generality(pattern.inner)
    if isinstance(pattern, Var):
        return 3
    return 2 if pattern.heads is None else 1 if isinstance(pattern, Chain) else 0


class OpBuilder:
    """`op.Name(inputs..., attribute=...)` builds the pattern of one node; an attribute may be a literal or `attr(...)`.

    Parameters that ONNX moved from attributes to inputs between opsets (`axes`, `shape`, `split`, ...) are written as
    keywords and match both spellings.
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


def var(name: str, check: Check | None = None, text: str = "") -> Var:
    """Any value, captured as `name`; `check(value, facts)` may restrict it and `text` says to what."""
    return Var(name, check, text)


def variables(names: str) -> tuple[Var, ...]:
    """Several `var`s at once: `x, y = variables("x y")`."""
    return tuple(Var(name) for name in names.split())


def const(name: str, check: Check | None = None, text: str = "") -> Var:
    """A constant of any shape, captured as `name`."""
    return Var(name, check, text, constant=True)


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
    """An attribute captured as `name`; `check(value, facts)` may restrict it and `text` says to what."""
    return Attr(name, check, text)


def all_attributes(name: str) -> AllAttributes:
    """For `attributes=`: every attribute not mentioned, captured in a pattern and written out in a replacement."""
    return AllAttributes(name)


def computed(name: str, function: Callable[[Any], Any]) -> Computed:
    """In a replacement: the constant that `function(match)` returns as a numpy array."""
    return Computed(name, function)


def maybe(op_type: str, operand: Pattern, **attributes: Any) -> Alt:
    """`operand`, or `operand` behind one unary node of that type."""
    return Alt((Op(op_type, [operand], attributes), operand))


def permutations(patterns: Sequence[Pattern]) -> list[tuple[Pattern, ...]]:
    """All orders of `patterns`, for operators whose inputs may come in any order."""
    return list(itertools.permutations(patterns))
