"""Identities that canonicalize every graph: they leave fewer nodes, and hide nothing from a fusion."""

from __future__ import annotations

from ._table import THEMES

PASS = "canonicalize"

RULES = [rule for theme in THEMES for rule in theme.CANONICAL]
