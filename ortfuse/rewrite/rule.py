"""Rules as data: a pattern, guards, a replacement, and what the rule declares about itself."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import onnx_ir as ir

from ortfuse.errors import RuleError
from ortfuse.pattern.language import Built, Op, Opt, Part, Pattern, Rearrange, Var, bare
from ortfuse.pattern.match import Guard, Match, Matcher
from ortfuse.targets.quirks import Quirk

_NAME = re.compile(r"^[a-z0-9_]+(\.[a-z0-9_]+)+$")


class Exactness(enum.Enum):
    """How far a replacement may be from what it replaces."""

    EXACT = "exact"
    """The same bits."""
    ROUNDING = "rounding"
    """The same mathematics, rounded elsewhere."""
    APPROXIMATE = "approximate"
    """Other mathematics (tanh for erf); applied only when asked for."""


Shapes = Mapping[str, str | int]
"""Shapes of values, and sizes of dimensions."""


@dataclass(frozen=True, kw_only=True)
class Variation:
    """A model much like an instance of a rule's pattern, on which the rule must stay silent or right.

    `shapes` (`None`: absent), `attributes`, `scalars`, `constants` and `inputs` replace what the proof declares; of
    attributes and scalars one value each is given. `options` names options of the pattern as proofs print them
    (`{"mask": "absent"}`: `*` may stand in the name, and the first words of the option will do). `sizes` binds symbols,
    `fixed` gives inputs as numbers, and of the inputs in `unknown` the model tells neither rank nor type. `change` edits
    the finished model.
    """

    shapes: Mapping[str, str | int | None] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    unknown: Sequence[str] = ()
    dtype: str | None = None
    opset: int | None = None
    shape_set: int = 0
    change: Callable[[ir.Model], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What a rule declares so that tests can build instances of it without further code.

    What the pattern says of the shapes of its values is not repeated. `shapes` maps every other captured value to its shape
    as space-separated dimensions (`"b s 64"`; symbols are bound to several sizes, `""` is a scalar), and dimensions of the
    pattern to sizes where they are to be numbers; several shape sets may be given as a sequence of mappings, and an optional
    value without a shape is absent. `attributes` lists the values to try for each captured attribute, for all shape sets or
    one mapping for each. `scalars` does so for captured numbers. `constants` says how a captured constant is made:
    `"normal"` (default), `"positive"`, or the numbers themselves; `inputs` how other values are: an element type, or a
    function of the builder. `dtypes` are the element types of all other values, `typical` gives realistic sizes at which
    the rule's worth is measured. `opset` pins the one ai.onnx version to try.

    `counterexamples` names variations on which the rule must stay silent or right, beyond the near misses that every proof
    tries. What a proof leaves out is declared with the reason: `uncovered` options of the pattern that no instance can have
    (as the failure prints them), `never_empty` symbols that the rule takes to be greater than 0, and `assumes` the near
    misses (by their words, `*` for any) that break an assumption of the rule. `redundant` names conditions of the pattern
    without which the rule would still be right, as mutation tests print them; guards say so themselves
    (`ortfuse.pattern.redundant`). `followed_by` is a unary operator that takes the
    root, or a function of the builder and the root, for rules that ask what becomes of it.
    """

    shapes: Shapes | Sequence[Shapes] = field(default_factory=dict)
    attributes: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    scalars: Mapping[str, Sequence[float]] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    dtypes: Sequence[str] = ("float32",)
    opset: int | None = None
    typical: Sequence[Shapes] = ()
    counterexamples: Mapping[str, Variation] = field(default_factory=dict)
    uncovered: Mapping[str, str] = field(default_factory=dict)
    never_empty: Mapping[str, str] = field(default_factory=dict)
    assumes: Mapping[str, str] = field(default_factory=dict)
    redundant: Mapping[str, str] = field(default_factory=dict)
    followed_by: str | Callable[[Any, ir.Value], ir.Value] | None = None

    def __post_init__(self) -> None:
        named = [condition for condition in self.redundant if condition.startswith("guard ")]
        if named:
            raise RuleError(
                f"a proof calls a guard redundant ({named[0]!r}), which that says itself: redundant(why)(guard)"
            )

    def shape_sets(self) -> Sequence[Shapes]:
        """The shape sets, also when only one was given."""
        return [self.shapes] if isinstance(self.shapes, Mapping) else list(self.shapes)

    def attribute_set(self, number: int) -> Mapping[str, Sequence[Any]]:
        """The attribute values to try with shape set `number`."""
        return self.attributes if isinstance(self.attributes, Mapping) else self.attributes[number]


Replacement = Pattern | Callable[[Match], Pattern]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """`pattern` becomes `replace` wherever it matches, the guards hold and the target has kernels for the result.

    `replace` is an expression over the captured names, or several in order of preference: the first legal one is used. A
    function of the match may stand for an expression, which it returns; `makes` names the operators it may be made of.
    A replacement that needs a higher opset than the model has is used only if none other is legal, unless `may_raise_opset` says
    that it is worth it. `intermediates` gives, for intermediates of the pattern that may be used elsewhere, what computes them
    afterwards: one expression, or one for each of `replace`. `is_refinement` says that the rule improves on what another rule
    made, so that it adds no site to its family. `formula` is for readers; by default it is the printed pattern.
    `allow_extra_operands` allows a root sum or product to have parts that the pattern lacks. `because` is what the runtime does
    that alone makes the rule worth it: it is applied only for targets of which that is known.
    """

    name: str
    pattern: Pattern
    replace: Replacement | Sequence[Replacement]
    exactness: Exactness
    source: str
    proof: Proof
    guards: tuple[Guard, ...] = ()
    intermediates: Mapping[str, Pattern | Sequence[Pattern]] = field(default_factory=dict)
    allow_extra_operands: bool = False
    may_raise_opset: bool = False
    is_refinement: bool = False
    because: Quirk | None = None
    formula: str = ""
    makes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise RuleError(f"rule name {self.name!r} must be `family.variant` in lower case, such as 'gelu.erf'")
        demand_proof(self)
        if not isinstance(self.exactness, Exactness):
            raise RuleError(f"rule {self.name} must declare its exactness: exact, rounding or approximate")
        if not self.source:
            raise RuleError(f"rule {self.name} must name the source of its formula")
        if not self.replacements:
            raise RuleError(f"rule {self.name} replaces its pattern by nothing")
        for label, emitted in self.intermediates.items():
            if not isinstance(emitted, Pattern) and len(emitted) != len(self.replacements):
                raise RuleError(f"rule {self.name} must say for each replacement what computes {label}")
        if not self.formula:
            object.__setattr__(self, "formula", bare(self.pattern))
        _ = self.matcher  # a pattern that cannot be a rule's root is an error of the declaration

    @property
    def family(self) -> str:
        """The part of the name before the first dot."""
        return self.name.partition(".")[0]

    @cached_property
    def replacements(self) -> tuple[Pattern, ...]:
        """The candidate replacements in order of preference."""
        made = tuple(self.replace) if isinstance(self.replace, Sequence) else (self.replace,)
        if any(not isinstance(one, Pattern) for one in made) and not self.makes:
            raise RuleError(f"rule {self.name} builds its replacement: say with makes= what operators that can have")
        return tuple(one if isinstance(one, Pattern) else Built(one, self.makes) for one in made)

    def intermediates_with(self, replacement: Pattern) -> Mapping[str, Pattern]:
        """What computes each intermediate that is used elsewhere, beside one of the replacements."""
        number = next(index for index, made in enumerate(self.replacements) if made is replacement)
        return {label: one if isinstance(one, Pattern) else one[number] for label, one in self.intermediates.items()}

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """The operators that the replacements are made of, each once."""
        return tuple(dict.fromkeys(name for made in self.replacements for name in operators_of(made)))

    @cached_property
    def matcher(self) -> Matcher:
        """The pattern made ready for matching."""
        return Matcher(self.pattern, self.guards, tuple(self.intermediates))


def operators_of(pattern: Pattern) -> tuple[str, ...]:
    """The operators of a pattern, each once, with their domains where those are not ai.onnx."""
    found: list[str] = []
    for part in pattern.walk():
        if isinstance(part, Op):
            found.append(f"{part.domain}.{part.op_type}" if part.domain else part.op_type)
        elif isinstance(part, (Built, Rearrange, Part)):
            found += part.makes
    return tuple(dict.fromkeys(found))


def demand_proof(rule: Rule) -> None:
    """Refuse what has no proof. A subclass may leave out the checks of `Rule`, so that whoever takes rules asks again.

    Raises:
        RuleError: There is no proof, or it is empty.
    """
    name, proof = getattr(rule, "name", None), getattr(rule, "proof", None)
    if not isinstance(proof, Proof):
        raise RuleError(f"rule {name} has no proof: give proof=Proof(shapes=...) so that it can be tested")
    if not proof.shape_sets():
        raise RuleError(f"rule {name} has an empty proof: give shapes for the values of its pattern")


def unproved(rule: Rule) -> list[str]:
    """The values that the pattern always has and to which a shape set of the proof gives no shape: nothing can be built."""
    parts = list(rule.pattern.walk())
    optional = {part.inner.name for part in parts if isinstance(part, Opt) and isinstance(part.inner, Var)}
    plain = {part.name for part in parts if isinstance(part, Var) and part.axes is None}
    wanted = plain - optional - {*rule.proof.inputs}
    return sorted({name for shapes in rule.proof.shape_sets() for name in wanted - {*shapes}})
