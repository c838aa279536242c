"""Identities that simplify a graph after all fusions: fewer or faster nodes for the same numbers."""

from __future__ import annotations

from ._table import THEMES

PASS = "target_decompositions"

RULES = [rule for theme in THEMES for rule in theme.SIMPLIFYING]
