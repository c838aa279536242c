"""The pattern language: Python expressions that describe the subgraphs a rule looks for.

    x, mean = var("x"), var("mean")
    gelu = x * 0.5 * (1 + op.Erf(x / 2**0.5))

`+ - * /` build *sums* and *products*, matched modulo commutativity, associativity and scalar coefficients; `op.Name(...)`
matches one operator, `a | b` either of two patterns. `a @ b` is MatMul, `x ** 2` a power however it is spelled, and
`x[..., :p]` a slice of the last axis. The same expressions also serve as the *replacements* that the rewriter emits. A
pattern object that occurs twice in an expression stands for one and the same value.

Values may be given shapes (`var("q", "b h s d")`, see `axis_names`): the name of a dimension means the same
throughout the pattern. `rearrange("b s (h d) -> b h s d", x)` stands for any nodes that move the elements of x that way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any, Self

from ortfuse.errors import PatternError
from ortfuse.ir.traits import PRODUCT, SUM
from ortfuse.rewrite.pattern.axis_names import Axes, axes_of

Check = Callable[[Any, Any], bool]
"""A predicate over a value (or attribute) and the facts: `check(thing, facts) -> bool`."""


class Pattern:
    """Base of all patterns. `label` names the matched value in the match (`match["label"]`), `axes` is its shape."""

    label: str | None = None
    axes: Axes | None = None

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

    def __matmul__(self, other: Pattern) -> Op:
        return Op("MatMul", [self, other])

    def __pow__(self, exponent: float) -> Pattern:
        """A power: as Pow, or as the equivalent product, square root or reciprocal."""
        power = Op("Pow", [self, Const(float(exponent))])
        if exponent == 2:
            return power | self * self
        if exponent == 0.5:
            return Op("Sqrt", [self]) | power
        return power | 1.0 / self**0.5 if exponent == -0.5 else power

    def __getitem__(self, index: Any) -> Pattern:
        """`x[..., start:stop:step]`: a slice of the last axis; bounds are numbers or names of dimensions."""
        if not (isinstance(index, tuple) and len(index) == 2 and isinstance(index[0], EllipsisType)):
            raise PatternError(f"{self} has no item {index}; a part of the last axis is written x[..., start:stop]")
        part = index[1]
        return Part(self, part.start or 0, part.stop, part.step or 1)

    def __or__(self, other: Pattern) -> Alt:
        plain = isinstance(self, Alt) and self.label is None and self.axes is None
        options = (*self.options, other) if isinstance(self, Alt) and plain else (self, other)
        return Alt(options)

    def named(self, label: str, shape: str | None = None) -> Self:
        """This pattern with its matched value captured as `label`, and with that shape if one is given."""
        if not self._has_label:
            raise PatternError(f"{type(self).__name__} patterns cannot be named")
        made = copy.copy(self)
        made.label, made.axes = label, None if shape is None else axes_of(shape)
        return made

    _has_label = False

    @property
    def heads(self) -> frozenset[str] | None:
        """Operator types that may produce a matching value; `None` if any value (or input) may match."""
        return None

    def children(self) -> Sequence[Pattern]:
        """The patterns directly below this one."""
        return ()

    def walk(self, choices: Mapping[str, int] | None = None) -> Iterator[Pattern]:
        """Every pattern of the expression, each once, starting with this one; of alternatives named in `choices`, that option."""
        seen: set[int] = set()
        stack: list[Pattern] = [self]
        while stack:
            pattern = stack.pop()
            if id(pattern) in seen:
                continue
            seen.add(id(pattern))
            yield pattern
            chosen = choices.get(pattern.label or "") if choices and isinstance(pattern, Alt) else None
            stack.extend(reversed(pattern.children() if chosen is None else pattern.children()[chosen : chosen + 1]))


Operand = Pattern | float | int


def lift(operand: Operand | None) -> Pattern:
    """Convert an operand to a pattern: patterns stay as they are, Python numbers become constants."""
    if isinstance(operand, Pattern):
        return operand
    if isinstance(operand, (int, float)) and not isinstance(operand, bool):
        return Const(float(operand))
    raise PatternError(f"{operand!r} is neither a pattern nor a number")


class Var(Pattern):
    """Any value, captured as `name`; the same name elsewhere in the pattern must be the same value."""

    def __init__(
        self,
        name: str,
        check: Check | None = None,
        text: str = "",
        constant: bool = False,
        axes: Axes | None = None,
        *,
        computed: bool = False,
    ) -> None:
        self.name, self.check, self.text, self.constant, self.axes = name, check, text, constant, axes
        self.computed = computed

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
    """One of several patterns, tried in order; `match[label]` is the matched value, `match.choice(label)` which one.

    In a replacement it means the option of the same number as in the pattern's alternatives of the same label, if there are any,
    and else the first that is present: `scale | computed("ones", ones)`.
    """

    def __init__(self, options: Iterable[Pattern], label: str | None = None) -> None:
        self.options = tuple(options)
        self.label = label
        heads = [option.heads for option in self.options]
        self._heads = None if None in heads else frozenset().union(*(h for h in heads if h is not None))

    _has_label = True

    @property
    def heads(self) -> frozenset[str] | None:
        return self._heads

    def children(self) -> Sequence[Pattern]:
        return self.options

    def __str__(self) -> str:
        return "(" + " | ".join(str(option) for option in self.options) + ")"


class Attr:
    """The pattern of an attribute: captured under `name` if given, and required to pass `check` if given."""

    def __init__(self, name: str, check: Check | None = None, text: str = "") -> None:
        self.name, self.check, self.text = name, check, text

    def __str__(self) -> str:
        return f"{self.name}: {self.text}" if self.text else self.name


class AllAttributes:
    """All attributes of a node that the pattern does not mention, captured as a dictionary under `name`."""

    def __init__(self, name: str) -> None:
        self.name = name


class Body:
    """The pattern of a graph in an attribute: the names of its formal inputs, and a pattern for each of its results.

    The names stand for the formal inputs inside the body alone. Everything else in the results is computed in the body or before
    the node, and variables are values from before it.
    """

    def __init__(self, inputs: Sequence[str], results: Sequence[Pattern]) -> None:
        self.inputs, self.results = tuple(inputs), tuple(results)
        if len(set(self.inputs)) < len(self.inputs) or not self.results:
            raise PatternError(f"{self}: a body has inputs with different names, and at least one result")

    def names(self) -> Iterator[str]:
        """The names that mean something inside the body alone: formal inputs, and what its operators compute."""
        yield from self.inputs
        for result in self.results:
            yield from (part.label for part in result.walk() if part.label is not None)

    def __str__(self) -> str:
        return f"{', '.join(self.inputs)} -> {', '.join(map(bare, self.results))}"


class Op(Pattern):
    """One node: operator, inputs, attributes and bodies. Attributes not mentioned must have their ONNX defaults."""

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
        given = dict(attributes or {})
        self.bodies = {name: wanted for name, wanted in given.items() if isinstance(wanted, Body)}
        self.attributes = {name: wanted for name, wanted in given.items() if name not in self.bodies}
        everything = self.attributes.pop("attributes", None)
        if everything is not None and not isinstance(everything, AllAttributes):
            raise PatternError(f"op.{op_type}: attributes= takes all_attributes(name)")
        self.all_attributes: AllAttributes | None = everything
        if any(isinstance(pattern, Rest) for pattern in self.inputs[:-1]):
            raise PatternError(f"rest() must be the last input of op.{op_type}")
        # Specific inputs first: they bind variables, so that general inputs only have to be compared with these.
        self.order = sorted(range(len(self.inputs)), key=lambda index: _generality(self.inputs[index]))

    _has_label = True

    def kept(self) -> Op:
        """This pattern for a node that may also be used elsewhere, and then stays: cheap data movement is not worth a miss."""
        made = copy.copy(self)
        made.may_stay = True
        return made

    def naming(self, **others: int) -> Op:
        """This pattern with further outputs of its node captured, given by number; `None` if the node lacks them."""
        made = copy.copy(self)
        made.others = others
        return made

    def __getitem__(self, index: Any) -> Pattern:
        if not isinstance(index, int):
            return super().__getitem__(index)
        if not 0 <= index < self.output_count:
            raise PatternError(f"op.{self.op_type} is declared with {self.output_count} output(s), not {index + 1}")
        return Out(self, index)

    def __iter__(self) -> Iterator[Out]:
        return (Out(self, index) for index in range(self.output_count))

    @property
    def heads(self) -> frozenset[str] | None:
        return frozenset({self.op_type})

    def operands(self) -> Sequence[Pattern]:
        """The patterns of the inputs."""
        return tuple(pattern for pattern in self.inputs if pattern is not None)

    def children(self) -> Sequence[Pattern]:
        return (*self.operands(), *(result for body in self.bodies.values() for result in body.results))

    def __str__(self) -> str:
        parts = ["-" if pattern is None else bare(pattern) for pattern in self.inputs]
        parts += [f"{name}={value}" for name, value in self.attributes.items() if not callable(value)]
        parts += [f"{name}=({body})" for name, body in self.bodies.items()]
        return f"{self.domain + '.' if self.domain else ''}{self.op_type}({', '.join(parts)})"


def bare(pattern: Pattern) -> str:
    """A pattern as text, without the outer parentheses that a sum or alternatives have inside another pattern."""
    text = str(pattern)
    return text[1:-1] if isinstance(pattern, Alt | Sum) else text


class Out(Pattern):
    """One output of a node with several outputs."""

    def __init__(self, node: Op | Built, index: int, label: str | None = None) -> None:
        self.node, self.index, self.label = node, index, label

    _has_label = True

    @property
    def heads(self) -> frozenset[str] | None:
        return self.node.heads

    def children(self) -> Sequence[Pattern]:
        return (self.node,)

    def __str__(self) -> str:
        return f"{self.node}[{self.index}]"


class Chain(Pattern):
    """Base of sums and products: signed parts, a scalar, and optionally a captured scalar."""

    ops: frozenset[str] = frozenset()
    neutral: float = 0.0

    def __init__(
        self, parts: Sequence[tuple[int, Pattern]], scalar: float, capture: Scalar | None, label: str | None = None
    ) -> None:
        # Specific parts first: they bind variables, so that general parts only have to be compared with these.
        self.parts = tuple(sorted(parts, key=lambda part: _generality(part[1])))
        self.scalar, self.capture, self.label = scalar, capture, label
        required = [pattern for _, pattern in self.parts if not isinstance(pattern, Opt)]
        # A chain that can shrink to a single positive part without a scalar matches whatever that part matches.
        self._heads: frozenset[str] | None
        if len(required) == 1 and scalar == self.neutral and (1, required[0]) in self.parts:
            inner = required[0].heads
            self._heads = None if inner is None else inner | self.ops
        else:
            self._heads = self.ops

    _has_label = True

    @property
    def heads(self) -> frozenset[str] | None:
        return self._heads

    def children(self) -> Sequence[Pattern]:
        return tuple(pattern for _, pattern in self.parts)

    @classmethod
    def collect(cls, parts: Iterable[tuple[int, Pattern]], combine: Callable[[float, float, int], float]) -> Pattern:
        """The chain of `parts`, with nested unnamed chains of the same kind merged and constants combined."""
        flat: list[tuple[int, Pattern]] = []
        scalar, capture = cls.neutral, None
        for sign, pattern in parts:
            if isinstance(pattern, Const):
                scalar = combine(scalar, pattern.value, sign)
            elif isinstance(pattern, Scalar):
                if capture is not None or sign != 1:
                    raise PatternError(f"scalar {pattern} must stand once, and not inverted, in its sum or product")
                capture = pattern
            elif (
                isinstance(pattern, cls)
                and pattern.label is None
                and pattern.axes is None
                and (pattern.capture is None or sign == 1)
            ):
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

    ops = frozenset(SUM)
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

    ops = frozenset(PRODUCT)
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


class Part(Pattern):
    """The elements from `start` to `stop` (exclusive; `None`: the end) of the last axis of `inner`, by Slice, Split or Gather."""

    _has_label = True

    def __init__(self, inner: Pattern, start: int | str, stop: int | str | None, step: int) -> None:
        self.inner, self.start, self.stop, self.step = inner, start, stop, step

    @property
    def heads(self) -> frozenset[str] | None:
        return frozenset({"Slice", "Split", "Gather"})

    def children(self) -> Sequence[Pattern]:
        return (self.inner,)

    @property
    def makes(self) -> tuple[str, ...]:
        """The operator that a replacement uses for it."""
        return ("Slice",)

    def __str__(self) -> str:
        start, stop = "" if self.start == 0 else self.start, "" if self.stop is None else self.stop
        return f"{self.inner}[..., {start}:{stop}{'' if self.step == 1 else f':{self.step}'}]"


class Built(Pattern):
    """Only in replacements: the pattern that `function(match)` returns, made of the operators `makes`."""

    def __init__(self, function: Callable[[Any], Pattern], makes: Sequence[str]) -> None:
        self.function, self.makes = function, tuple(makes)

    def __getitem__(self, index: Any) -> Pattern:
        return Out(self, index) if isinstance(index, int) else super().__getitem__(index)

    def __str__(self) -> str:
        return " + ".join(self.makes)


class Computed(Pattern):
    """Only in replacements: a constant that `function(match)` computes as a numpy array, or as a tensor that is read later."""

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
