"""The result of an attempt to match: a match, or the furthest point it reached and what stopped it there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.errors import PatternError
from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Code, Refusal, Subject, refuse, words
from ortfuse.rewrite.pattern.compiled_pattern import CompiledPattern
from ortfuse.rewrite.pattern.language import Var
from ortfuse.targets.known_bugs import KnownBug
from ortfuse.targets.registry import default_spec
from ortfuse.targets.target_spec import TargetSpec

Ranges = Callable[[str, str], Any]
"""The range that the elements of a value were seen to have: by the value's name, and by the method that tells it.

The method `columns` gives the largest size at each index of the last axis; one number stands for all. `means` gives the
mean there, and `moments` an object for their second moments. `None` if it is not known.
"""

_LOOK: Any = object()
"""Default for `found`: look up what the match has captured under the name."""


class Captures:
    """The captures of an attempt to match: a matching machine extends them, and a match copies them.

    Attributes:
        matcher: The pattern that is matched.
        facts: What is known of the values of the model.
        target: The declaration of the target.
        quirks: The known bugs of the target.
        ranges: The ranges that values were seen to have, if they were observed.
        bindings: The captures by name.
        dims: The dimension bound to each name, with the value and axis that it was bound by.
        choices: The option of each named alternative.
        nodes: The nodes that matched, and whether each may stay when the match is replaced.
        roots: The values at the roots by number, where the pattern has several.
        extra_operands: The operands of a root sum or product that the pattern lacks, by their positions.
        extra_are_factors: Whether those are factors.
    """

    def __init__(
        self,
        matcher: CompiledPattern,
        facts: Facts,
        quirks: frozenset[KnownBug],
        ranges: Ranges | None = None,
        target: TargetSpec | None = None,
    ) -> None:
        self.target = target or default_spec()
        self.matcher, self.facts, self.quirks, self.ranges = matcher, facts, quirks, ranges
        self.bindings: dict[Any, Any] = {}
        self.dims: dict[Any, Any] = {}
        self.choices: dict[Any, Any] = {}
        self.nodes: dict[Any, Any] = {}
        self.roots: dict[Any, Any] = {}
        self.extra_operands: list[tuple[int, ir.Value]] = []
        self.extra_are_factors = False


class Match:
    """One place where a pattern matched: `match["name"]` is what `name` captured (value, number, attribute or None).

    `root` is the value at the root, and `roots` those at all roots, where the pattern has several; `root` is the first.
    """

    def __init__(self, root: ir.Value, captures: Captures) -> None:
        self.root = root
        self.roots: tuple[ir.Value, ...] = tuple(captures.roots.values()) or (root,)
        self.facts, self.quirks, self.ranges = captures.facts, captures.quirks, captures.ranges
        self.target = captures.target
        self.matcher = captures.matcher
        self.bindings: dict[str, Any] = {**dict.fromkeys(captures.matcher.names), "root": root, **captures.bindings}
        self.dims: dict[str, Any] = {name: one.dim for name, one in captures.dims.items()}
        self.choices: dict[str, int] = dict(captures.choices)
        self.nodes: list[ir.Node] = list(captures.nodes)
        self.extra_operands: list[tuple[int, ir.Value]] = captures.extra_operands
        self.extra_are_factors = captures.extra_are_factors

    def __getitem__(self, name: str) -> Any:
        try:
            return self.bindings[name]
        except KeyError:
            raise PatternError(f"the pattern captures no {name!r}; it captures {sorted(self.bindings)}") from None

    def get(self, name: str, default: Any = None) -> Any:
        """The capture of `name`, or `default`."""
        return self.bindings.get(name, default)

    def choice(self, label: str) -> int:
        """The number of the option that matched among the alternatives named `label`, from 0."""
        return self.choices[label]

    def dim(self, name: str) -> DimLike:
        """The dimension that the pattern calls `name`."""
        try:
            found: DimLike = self.dims[name]
        except KeyError:
            raise PatternError(f"the pattern names no dimension {name!r} here; it names {sorted(self.dims)}") from None
        return found

    def size(self, name: str) -> int | None:
        """The dimension that the pattern calls `name` if it is a number."""
        dim = self.dim(name)
        return dim if isinstance(dim, int) else None

    def name_axes(self, name: str, names: Iterable[str]) -> None:
        """Give names to the axes of a captured value of which the pattern does not say the shape."""
        self.dims |= dict(zip(names, self.shape(name) or (), strict=False))

    def capture(self, name: str, value: ir.Value) -> Var:
        """Give a name to a further value of the graph: for replacements that are functions of the match."""
        self.bindings[name] = value
        return Var(name)

    def shape(self, name: str) -> tuple[DimLike, ...] | None:
        """The symbolic shape of a captured value; `None` if its rank is unknown."""
        return self.facts.shape(self[name])

    def rank(self, name: str) -> int | None:
        """The rank of a captured value, or `None`."""
        return self.facts.rank(self[name])

    def dtype(self, name: str) -> ir.DataType | None:
        """The element type of a captured value, or `None`."""
        return self.facts.dtype(self[name])

    def const(self, name: str) -> Any:
        """The captured constant as a numpy array, or `None` if the value is not constant."""
        return self.facts.const(self[name])

    def observed(self, name: str, method: str) -> tuple[float, float] | None:
        """The range that a captured value was seen to have when the model was run, or `None` if it was not observed.

        It is no fact: other inputs may give other ranges. Only lossy rules ask for it. `"y/product"` is the convolution within
        the fused node that computes `y`, without what is added to it and without activation.
        """
        captured, slash, part = name.partition("/")
        found = None if self.ranges is None else self.ranges(f"{self[captured].name}{slash}{part}", method)
        return None if found is None else (found[0], found[-1])

    def observed_sizes(self, name: str, count: int) -> Any:
        """The largest size that each of `count` columns of a captured value was seen to have, or `None`, as an array.

        If there is not one for each column, the largest of all stands for each.
        """
        found = None if self.ranges is None else self.ranges(self[name].name, "columns")
        if found is None:
            return None
        sizes = np.abs(np.array(found))
        return sizes if len(sizes) == count else np.full(count, sizes.max())

    def observed_means(self, name: str, count: int) -> Any:
        """The mean that each of `count` columns of a captured value was seen to have, or `None`, as an array."""
        found = None if self.ranges is None else self.ranges(self[name].name, "means")
        return None if found is None or len(found) != count else np.array(found)

    def observed_moments(self, name: str, count: int) -> Any:
        """The second moments that `count` columns of a captured value were seen to have about their means, or `None`.

        They are an object with a method `factor` (`ortfuse.quantization.activation_hessian`), which takes the time to find them.
        """
        found = None if self.ranges is None else self.ranges(self[name].name, "moments")
        return None if isinstance(found, tuple) or self.observed_means(name, count) is None else found

    def is_used_elsewhere(self, name: str) -> bool:
        """Whether a captured value is a graph output or used by a node that did not match."""
        value, inside = self[name], set(self.nodes)
        return value.is_graph_output() or any(use.node not in inside for use in value.uses())

    def refuse(self, code: Code, name: str, needed: Any = "", found: Any = _LOOK, *, remedy: str = "") -> Refusal:
        """A refusal about what `name` captured: `match.refuse("dtype", "x", "float32")`.

        If `found` is not given, it is looked up: the type, rank or shape for these codes, otherwise the number or attribute
        itself.
        """
        return refuse(code, self._subject(name), found=self._found(code, name) if found is _LOOK else found,
                      needed=needed, remedy=remedy)  # fmt: skip

    def refuse_dimension(self, name: str, axis: int, needed: Any, *, remedy: str = "") -> Refusal:
        """A refusal about one size of the captured value; about its rank if it lacks that axis."""
        shape = self.shape(name)
        if shape is None or not -len(shape) <= axis < len(shape):
            return self.refuse("rank", name, f"at least {axis + 1 if axis >= 0 else -axis}", remedy=remedy)
        subject = Subject.dimension(self[name], axis, name)
        return refuse("dimension", subject, found=shape[axis], needed=needed, remedy=remedy)

    def unless_value(self, name: str, holds: bool, needed: Any) -> Refusal | None:
        """A refusal about a captured number, constant or attribute, unless the condition on it holds."""
        return None if holds else self.refuse("value", name, needed)

    def unless_dtype(self, name: str, *dtypes: ir.DataType) -> Refusal | None:
        """A refusal unless the captured value is known to have one of these element types."""
        return None if self.dtype(name) in dtypes else self.refuse("dtype", name, frozenset(dtypes))

    def unless_rank(self, name: str, *ranks: int) -> Refusal | None:
        """A refusal unless the captured value is known to have one of these ranks."""
        return None if self.rank(name) in ranks else self.refuse("rank", name, frozenset(ranks))

    def unless_shape(self, needed: Sequence[DimLike], *names: str) -> Refusal | None:
        """A refusal unless all captured values, leaving out absent ones, provably have this shape."""
        wanted = tuple(needed)
        for name in names:
            if self.get(name) is not None and self.shape(name) != wanted:
                return self.refuse("shape", name, wanted)
        return None

    def unless_same_shape(self, name: str, other: str) -> Refusal | None:
        """A refusal unless two captured values provably have the same shape."""
        found = self.shapes(other, name)
        return found if isinstance(found, Refusal) else self.unless_shape(found[0], name)

    def shapes(self, *names: str) -> list[tuple[DimLike, ...]] | Refusal:
        """The shapes of captured values, or a refusal about the first unknown one."""
        found = [self.shape(name) for name in names]
        known = [shape for shape in found if shape is not None]
        return known if len(known) == len(found) else self.refuse("shape", names[found.index(None)])

    def _found(self, code: Code, name: str) -> Any:
        thing = self[name]
        if not isinstance(thing, ir.Value):
            return "absent" if thing is None else thing
        if code in _LOOKUPS:
            return _LOOKUPS[code](self.facts, thing)
        number = self.facts.scalar(thing)
        return describe(thing, self.facts) if number is None else number

    def _subject(self, name: str) -> Subject:
        thing = self[name]
        if isinstance(thing, ir.Value):
            return Subject.of(thing, "" if name == "root" else name)
        for operator, attribute in self.matcher.attributes.get(name, ()):
            for node in self.nodes:
                if node.op_type == operator and parameter(node, attribute, self.facts) == thing:
                    return Subject.attribute(attribute, node, name)
        if thing is None:
            return Subject("operand", self.root.name or "", capture=name)
        constant = self._constant_of(thing) if isinstance(thing, float) else None
        return Subject("number", self.root.name or "", capture=name) if constant is None else Subject.of(constant, name)

    def _constant_of(self, number: float) -> ir.Value | None:
        """The constant of the model that a captured number comes from, if it is a single one."""
        forms = {number, -number, 1 / number if number else number}
        operands = (value for node in self.nodes for value in node.inputs)
        return next((value for value in operands if value is not None and self.facts.scalar(value) in forms), None)

    def __repr__(self) -> str:
        names = ", ".join(f"{k}={v.name if isinstance(v, ir.Value) else v}" for k, v in self.bindings.items())
        return f"Match({self.root.name}: {names})"


class Miss:
    """The furthest point a failed attempt reached: the nodes that matched, and what stopped it, described on demand.

    With `whole` the entire pattern matched, and a guard or another use of an intermediate value stopped it.
    """

    __slots__ = ("_why", "matched", "nodes", "whole")

    def __init__(
        self,
        matched: int,
        why: Callable[[], Refusal],
        nodes: tuple[ir.Node, ...] = (),
        whole: bool = False,
    ) -> None:
        self.matched, self._why, self.nodes, self.whole = matched, why, nodes, whole

    @property
    def refusal(self) -> Refusal:
        """The refusal that stopped the match."""
        return self._why()


def describe(value: ir.Value, facts: Facts) -> str:
    """A value of a graph in words: its type, its shape and what computes it."""
    shape, dtype = facts.shape(value), facts.dtype(value)
    kind = f"{words(dtype) if dtype is not None else 'a tensor'}{'' if shape is None else words(shape)}"
    producer = value.producer()
    if facts.is_const(value):
        return f"a constant {kind}"
    return f"an input {kind}" if producer is None else f"{kind} of {words(producer)}"


_LOOKUPS: Mapping[str, Callable[[Facts, ir.Value], Any]] = {
    "dtype": Facts.dtype, "rank": Facts.rank, "shape": Facts.shape, "result_dtype": Facts.dtype, "result_shape": Facts.shape,
}  # fmt: skip

Guard = Callable[[Match], "Refusal | None"]
"""A condition beyond the pattern: returns `None` if it holds, otherwise a refusal (`match.refuse(...)`)."""
