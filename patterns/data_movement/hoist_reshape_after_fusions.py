"""Hoist a Reshape above operators to where it cancels, once nothing is left to be fused.

reshape(relu(reshape(x) + y)) = relu(x + reshape(y))

Rationale: before, fusions find linear layers on flattened rows by the Reshapes around them.
"""

from __future__ import annotations

from ..canonicalize.hoist_reshape import hoisting_rule

PASS = "fold_unit_dims"

RULES = [hoisting_rule("reshape.hoist_above_operators", "reshape(f(x)) = f(reshape(x))")]
