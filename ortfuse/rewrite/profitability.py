"""Decide whether a legal rewrite is worthwhile, and which of several to make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ortfuse.ir.edit import Edit
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite.pattern.language import Pattern
from ortfuse.rewrite.pattern.match_operators import Match
from ortfuse.rewrite.rule import Rule


class Chooser(Protocol):
    """Decide by cost between a rewrite and what it replaces, and between the replacements of a rule."""

    def candidates(self, rule: Rule) -> Sequence[Pattern]:
        """The replacements that may be used, in order of preference."""

    def refusal(self, rule: Rule, match: Match) -> Refusal | None:
        """Why the rule should not be applied where it matches, or `None`. Nothing has been built yet."""

    def insists(self, rule: Rule) -> bool:
        """Whether the rule may make operators that have no kernels, but a definition by which the runtime executes them."""

    def measures(self, rule: Rule) -> bool:
        """Whether `speedup` has an answer for sites of this rule."""

    def speedup(self, edit: Edit) -> float | None:
        """The speedup of the new nodes over the old ones; `None` if that cannot be measured."""

    def objection(self, edit: Edit) -> Refusal | None:
        """Why a rewrite that is ready should not be made; `None` to make it."""


class FirstLegal:
    """Take the first replacement that is legal, regardless of cost."""

    def candidates(self, rule: Rule) -> Sequence[Pattern]:
        """All, in the order of the rule."""
        return rule.replacements

    def refusal(self, rule: Rule, match: Match) -> Refusal | None:
        """No rule is refused."""
        return None

    def insists(self, rule: Rule) -> bool:
        """A definition is legal too."""
        return True

    def measures(self, rule: Rule) -> bool:
        """Nothing is measured."""
        return False

    def speedup(self, edit: Edit) -> float | None:
        """Nothing is measured."""
        return None

    def objection(self, edit: Edit) -> Refusal | None:
        """No rewrite is refused."""
        return None
