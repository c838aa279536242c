"""Rules as data: a pattern, guards, a replacement, and the rule's own declarations (exactness, rule test, source)."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property

import onnx_ir as ir

from ortfuse.errors import RuleError
from ortfuse.ir.dims import DimLike
from ortfuse.ir.traits import PLAIN
from ortfuse.naming.former_arguments import former_fields
from ortfuse.rewrite.pattern.language import Attr, Built, Chain, Op, Opt, Part, Pattern, Scalar, Var, bare
from ortfuse.rewrite.pattern.match_operators import Guard, Match, Matcher
from ortfuse.rewrite.pattern.min_nodes import least_nodes
from ortfuse.rewrite.pattern.pattern_properties import names_in_bodies
from ortfuse.rewrite.pattern.rearrangement import Rearrange
from ortfuse.rewrite.pattern.siblings import Siblings
from ortfuse.rewrite.rule_test import RuleTest
from ortfuse.targets.known_bugs import KnownBug

SOME = 3
"""The fewest nodes of a partial match that is near."""

HALF = 0.5
"""The least part of a pattern that matches where it is near."""

_NAME = re.compile(r"^[a-z0-9_]+(\.[a-z0-9_]+)+$")


class Exactness(enum.Enum):
    """The allowed difference between the results of a replacement and of the replaced nodes."""

    EXACT = "exact"
    """Bit for bit the same."""
    ROUNDING = "rounding"
    """Mathematically the same, with different rounding."""
    APPROXIMATE = "approximate"
    """Mathematically different (tanh for erf); applied only on request."""
    LOSSY = "lossy"
    """In lower precision; applied only where it is chosen under a bound on the error that is then measured to hold."""


Replacement = Pattern | Callable[[Match], Pattern]

_checked_before: ContextVar[bool] = ContextVar("_checked_before", default=False)


@contextmanager
def checked_before() -> Iterator[None]:
    """Make rules without checking what they declare, which was done when an index of them was written.

    Checking a rule compiles its pattern, also of the many in a file that are not tried.
    """
    token = _checked_before.set(True)
    try:
        yield
    finally:
        _checked_before.reset(token)


Proof = RuleTest
"""The former name of `RuleTest`."""


@former_fields(proof="test")
@dataclass(frozen=True, kw_only=True)
class Rule:
    """`pattern` becomes `replace` wherever it matches, the guards hold and the target has kernels for the result.

    `replace` is an expression over the captured names, or several in order of preference: the first legal one is used. It
    may also be a function of the match that returns such an expression; `makes` then names the operators that may occur in
    it. A pattern of `siblings` has several roots, and then each replacement is of `siblings` too, as many. A replacement that
    needs a higher opset than the model has is used only if no other is legal, unless `may_raise_opset` says that it is worth
    raising the opset. `intermediates` maps intermediate values of the pattern that may be used elsewhere to what computes them
    after the rewrite: one expression, or one for each of `replace`.
    `is_refinement` says that the rule improves on the result of another rule, so it does not count as a further site of its
    family. A lossy rule has a `definition`, which spells what it does to the values in standard operators (QuantizeLinear,
    Round, Cast, ... around the floating-point operator): what it makes differs from that by rounding alone. One that `is_fitted`
    chooses numbers by what was observed, so that its error is smaller on inputs that were seen than on others.

    `formula` is for readers; by default it is the printed pattern. `allow_extra_operands` lets a root sum or product
    have operands that the pattern lacks. `because` names the quirk of the runtime that is the only reason for the rule: the
    rule is applied only for targets known to have it. A rule that `spells_out` the operator at the root of its pattern is
    applied only where the target has no kernel for that. The runtime may execute what a rule makes `by_definition`, as its
    operators are defined by others; without kernels of their own they are made only where `--force` asks for them. So is
    whatever a rule makes `on_request`, which is no better than what it replaces here, but what other tools and targets look for.

    Costs are compared by the shapes of captured values; where these do not tell what is to be done (which axes are reduced),
    `compared_by` gives for a match the shapes to compare instead, by the names of the rule test's typical sizes.
    """

    name: str
    pattern: Pattern
    replace: Replacement | Sequence[Replacement]
    exactness: Exactness
    source: str
    test: RuleTest
    guards: tuple[Guard, ...] = ()
    intermediates: Mapping[str, Pattern | Sequence[Pattern]] = field(default_factory=dict)
    allow_extra_operands: bool = False
    may_raise_opset: bool = False
    is_refinement: bool = False
    definition: Replacement | None = None
    because: KnownBug | None = None
    spells_out: bool = False
    by_definition: bool = False
    on_request: bool = False
    is_fitted: bool = False
    compared_by: Callable[[Match], Mapping[str, Sequence[DimLike]]] | None = None
    formula: str = ""
    makes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.formula:
            object.__setattr__(self, "formula", bare(self.pattern))
        if not _checked_before.get():
            self.check()

    def check(self) -> None:
        """Check what the rule declares.

        Raises:
            RuleError: It is wrong.
            PatternError: The pattern cannot be the root of a rule.
        """
        if not _NAME.match(self.name):
            raise RuleError(
                f"rule name {self.name!r} must be `family.variant` in lower case, such as 'gelu.from_erf_form'"
            )
        demand_rule_test(self)
        if not isinstance(self.exactness, Exactness):
            raise RuleError(f"rule {self.name} must declare its exactness: exact, rounding, approximate or lossy")
        if (self.definition is None) != (self.exactness is not Exactness.LOSSY):
            raise RuleError(
                f"rule {self.name}: a lossy rule has a definition of what it does to values, and no other has one"
            )
        if not self.source:
            raise RuleError(f"rule {self.name} must name the source of its formula")
        if not self.replacements:
            raise RuleError(f"rule {self.name} replaces its pattern by nothing")
        self._demand_results()
        for label, emitted in self.intermediates.items():
            if not isinstance(emitted, Pattern) and len(emitted) != len(self.replacements):
                raise RuleError(f"rule {self.name} must say for each replacement what computes {label}")
        self._demand_names(self.matcher)  # making the matcher fails if the pattern cannot be the root of a rule

    def _demand_results(self) -> None:
        """Refuse replacements that have not as many results as the pattern; of built ones that is seen where they are built."""
        count = results_of(self.pattern)
        for made in self.replacements:
            if not isinstance(made, Built) and results_of(made) != count:
                raise RuleError(
                    f"rule {self.name}: the replacement {made} has {results_of(made)} results, and the pattern {count};"
                    " several are written siblings(...), on both sides"
                )
        if count > 1 and self.allow_extra_operands:
            raise RuleError(f"rule {self.name} allows extra operands of its root, which siblings cannot have")
        if count > 1 and self.definition is not None:
            raise RuleError(
                f"rule {self.name} is lossy, and the errors of siblings are not weighed: give it one result"
            )

    def _demand_names(self, matcher: Matcher) -> None:
        """Refuse names in replacements that nothing in the pattern captures: they would be noticed only where the rule fires."""
        known = {*matcher.names, "root"} - names_in_bodies(self.pattern)
        emitted = [
            one for made in self.intermediates.values() for one in ([made] if isinstance(made, Pattern) else made)
        ]
        defined = () if self.definition is None else self.as_defined.replacements
        used = {name for made in (*self.replacements, *defined, *emitted) for name in names_used(made)}
        if any(isinstance(part, Op) and part.bodies for made in (*self.replacements, *emitted) for part in made.walk()):
            raise RuleError(f"rule {self.name} has a body in its replacement; only patterns have bodies")
        unknown = sorted((used | {*self.intermediates}) - known)
        if unknown:
            raise RuleError(
                f"rule {self.name} uses {', '.join(unknown)} in its replacement, which its pattern does not capture;"
                f" it captures {', '.join(sorted(known - {'root'}))}"
            )

    def __str__(self) -> str:
        return self.name

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

    @cached_property
    def as_defined(self) -> Rule:
        """The rule that makes of the pattern what the definition of this lossy rule says."""
        assert self.definition is not None
        return dataclasses.replace(self, replace=self.definition, definition=None, exactness=Exactness.ROUNDING)

    def intermediates_with(self, replacement: Pattern) -> Mapping[str, Pattern]:
        """The expression that computes each intermediate value that is used elsewhere, for one of the replacements."""
        number = next(index for index, made in enumerate(self.replacements) if made is replacement)
        return {label: one if isinstance(one, Pattern) else one[number] for label, one in self.intermediates.items()}

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """The operators that the replacements are made of, each once."""
        return tuple(dict.fromkeys(name for made in self.replacements for name in operators_of(made)))

    def targets_at(self, match: Match) -> tuple[str, ...]:
        """The operators that the replacements of a match are made of, each once."""
        return tuple(dict.fromkeys(name for made in self.replacements for name in operators_of(made, match.choices)))

    @cached_property
    def matcher(self) -> Matcher:
        """The compiled pattern."""
        return Matcher(self.pattern, self.guards, tuple(self.intermediates))

    @property
    def heads(self) -> frozenset[str]:
        """The operators that the root of the pattern can be."""
        return self.matcher.heads

    @property
    def required(self) -> frozenset[str]:
        """The operators that every match has."""
        return self.matcher.required

    @property
    def depths(self) -> Mapping[str, int]:
        """The depths at which each operator of the pattern can stand."""
        return self.matcher.depths

    @cached_property
    def reach(self) -> int:
        """The most nodes from a value that several roots share to one of them; 0 if there is one root."""
        return 0 if results_of(self.pattern) == 1 else 1 + max(self.depths.values(), default=0)

    def may_match(self, node: ir.Node, above: Sequence[str]) -> bool:
        """Whether the pattern allows a node whose inputs are produced by these operators: an early reject."""
        return self.matcher.may_match(node, above)

    def loaded(self) -> Rule:
        """This rule: what is known of a rule that is not loaded yet has the same properties (`DeferredRule`)."""
        return self

    def is_rule(self, rule: Rule) -> bool:
        """Whether this is the very rule."""
        return self is rule

    @cached_property
    def least(self) -> int:
        """The number of nodes in the smallest graph that the pattern can match."""
        return least_nodes(self.pattern)

    @cached_property
    def telling(self) -> frozenset[str]:
        """The operators of the pattern that say what the author of a model meant; sums, products and moves are everywhere."""
        return frozenset(self.matcher.depths) - PLAIN

    @cached_property
    def notable(self) -> int:
        """The number of matched nodes from which on a partial match is worth a remark.

        There is none for rules that refine what others made, that make what nobody misses, or that no operator tells.
        """
        made = {name.rpartition(".")[2] for name in self.targets}
        if self.is_refinement or self.on_request or self.spells_out or not (self.telling - made and made - PLAIN):
            return sys.maxsize
        return max(SOME, math.ceil(HALF * self.least))

    @cached_property
    def marks(self) -> frozenset[str]:
        """The operators that every match has and that tell what was meant: where one is left, the rule may have missed a site."""
        if self.notable == sys.maxsize:
            return frozenset()
        return self.required & self.telling - {name.rpartition(".")[2] for name in self.targets}


def results_of(pattern: Pattern) -> int:
    """The number of values that a pattern matches at its roots, or that a replacement makes instead of these."""
    return len(pattern.roots) if isinstance(pattern, Siblings) else 1


def operators_of(pattern: Pattern, choices: Mapping[str, int] | None = None) -> tuple[str, ...]:
    """The operators of a pattern, each once, with their domains where those are not ai.onnx.

    Of alternatives that are named in `choices` only the operators of that option count.
    """
    found: list[str] = []
    for part in pattern.walk(choices):
        if isinstance(part, Op):
            found.append(f"{part.domain}.{part.op_type}" if part.domain else part.op_type)
        elif isinstance(part, (Built, Rearrange, Part)):
            found += part.makes
    return tuple(dict.fromkeys(found))


def names_used(pattern: Pattern) -> frozenset[str]:
    """The captured names that a replacement refers to; what the functions in it ask for is not known."""
    parts = list(pattern.walk())
    attributes = [wanted for part in parts if isinstance(part, Op) for wanted in part.attributes.values()]
    factors = [part.capture for part in parts if isinstance(part, Chain)]
    return frozenset(thing.name for thing in (*parts, *attributes, *factors) if isinstance(thing, Var | Scalar | Attr))


def demand_rule_test(rule: Rule) -> None:
    """Refuse a rule without a rule test. A subclass may skip the checks of `Rule`, so code that accepts rules calls this again.

    Raises:
        RuleError: There is no rule test, or it is empty.
    """
    test = getattr(rule, "test", None)
    if isinstance(test, RuleTest) and test.shapes:
        return  # the usual case first: this is asked of every rule at each run of a pass
    name = getattr(rule, "name", None)
    if not isinstance(test, RuleTest):
        raise RuleError(f"rule {name} has no rule test: give test=RuleTest(shapes=...) so that it can be tested")
    if not test.shape_sets():
        raise RuleError(f"rule {name} has an empty rule test: give shapes for the values of its pattern")


def missing_shapes(rule: Rule) -> list[str]:
    """The required values of the pattern for which a shape set of the rule test gives no shape, so that nothing can be built."""
    parts = list(rule.pattern.walk())
    optional = {part.inner.name for part in parts if isinstance(part, Opt) and isinstance(part.inner, Var)}
    plain = {part.name for part in parts if isinstance(part, Var) and part.axes is None}
    wanted = plain - optional - {*rule.test.inputs}
    return sorted({name for shapes in rule.test.shape_sets() for name in wanted - {*shapes}})
