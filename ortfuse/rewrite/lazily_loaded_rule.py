"""Defer loading a rule until it is tried: until then only the properties that the rewriter reads are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import onnx_ir as ir

from ortfuse.errors import RuleError
from ortfuse.rewrite.pattern.compiled_pattern import may_be_root
from ortfuse.rewrite.pattern.pattern_properties import Below
from ortfuse.rewrite.rule import Exactness, Rule
from ortfuse.targets.known_bugs import KnownBug, Quirk


@dataclass(frozen=True, kw_only=True, eq=False)
class DeferredRule:
    """A rule whose file is loaded when the rule is tried for the first time.

    It has the properties of `Rule` by which the rewriter decides whether to try a rule at all. For the others there is `loaded`.

    Attributes:
        name: The name of the rule.
        exactness: How far its result may differ.
        because: The known bug that is the only reason for it.
        is_refinement: Whether it improves on the results of other rules.
        reach: `Rule.reach`.
        stored: The other properties as `stored_properties` gives them; each is read when it is asked for.
        load: Returns the rule.
    """

    name: str
    exactness: Exactness
    because: KnownBug | None
    is_refinement: bool
    reach: int
    stored: Mapping[str, Any] = field(repr=False)
    load: Callable[[], Rule] = field(repr=False)

    @property
    def family(self) -> str:
        """The part of the name before the first dot."""
        return self.name.partition(".")[0]

    @cached_property
    def heads(self) -> frozenset[str]:
        """The operators that the root of the pattern can be."""
        return frozenset(self.stored["heads"])

    @cached_property
    def required(self) -> frozenset[str]:
        """The operators that every match has."""
        return frozenset(self.stored["required"])

    @cached_property
    def marks(self) -> frozenset[str]:
        """`Rule.marks`."""
        return frozenset(self.stored["marks"])

    @property
    def depths(self) -> Mapping[str, int]:
        """The depths at which each operator of the pattern can stand."""
        found: Mapping[str, int] = self.stored["depths"]
        return found

    @cached_property
    def _below(self) -> Mapping[str, tuple[Below, ...]]:
        return {
            head: tuple(tuple((position, frozenset(heads)) for position, heads in one) for one in alternatives)
            for head, alternatives in self.stored["below"].items()
        }

    def may_match(self, node: ir.Node, above: Sequence[str]) -> bool:
        """Whether the pattern allows a node whose inputs are produced by these operators: an early reject."""
        return may_be_root(node, above, self._below)

    @cached_property
    def _rule(self) -> Rule:
        return self.load()

    def loaded(self) -> Rule:
        """The rule itself, whose file is loaded if it was not.

        Raises:
            RuleError: The file cannot be loaded, or has no such rule.
        """
        return self._rule

    def is_rule(self, rule: Rule) -> bool:
        """Whether this is the very rule; nothing is loaded to tell."""
        return self.__dict__.get("_rule") is rule


RuleEntry: TypeAlias = Rule | DeferredRule
"""A rule, or what stands for it until it is loaded."""


def stored_properties(rule: Rule) -> dict[str, Any]:
    """The properties of a rule that a `DeferredRule` has, as JSON data.

    Raises:
        RuleError: The rule is there because of a bug that only a target's folder knows.
    """
    if not (rule.because is None or isinstance(rule.because, Quirk)):
        raise RuleError(
            f"rule {rule.name}: the bug {rule.because} is known to the folder of a target alone; put the rule there"
        )
    return {
        "name": rule.name,
        "exactness": rule.exactness.value,
        "because": None if rule.because is None else rule.because.name,
        "is_refinement": rule.is_refinement,
        "reach": rule.reach,
        "heads": sorted(rule.heads),
        "required": sorted(rule.required),
        "marks": sorted(rule.marks),
        "depths": dict(sorted(rule.depths.items())),
        "below": {
            head: [[[position, sorted(heads)] for position, heads in one] for one in alternatives]
            for head, alternatives in sorted(rule.matcher.below.items())
        },
    }


def deferred(stored: Mapping[str, Any], load: Callable[[str], Rule]) -> DeferredRule:
    """Return the rule of stored properties; `load` is called with its name.

    Raises:
        KeyError: A property is missing.
        ValueError: A property has a value that there is not.
    """
    name, because = stored["name"], stored["because"]
    return DeferredRule(
        name=name,
        exactness=Exactness(stored["exactness"]),
        because=None if because is None else Quirk[because],
        is_refinement=stored["is_refinement"],
        reach=stored["reach"],
        stored=stored,
        load=lambda: load(name),
    )
