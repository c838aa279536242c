"""Sequences that are reversed as a whole, or twice.

reverse_sequence(x, size of the axis) = x[::-1]        reverse_sequence(reverse_sequence(x, n), n) = x
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.dims import DimLike
from ortfuse.facts.facts import Facts
from ortfuse.pattern import Guard, Match, Pattern, attr, computed, op, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

from .._common import ints

SOURCE = "https://onnx.ai/onnx/operators/onnx__ReverseSequence.html"

_BEFORE_FIRST = np.iinfo(np.int64).min
_REPEATS = ("Expand", "Tile", "Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators whose results have no other elements than their first operands."""

x, lengths = var("x"), var("lengths")


def _are_all(value: ir.Value | None, size: DimLike, facts: Facts) -> bool:
    """Whether all elements are provably this size."""
    while value is not None:
        known = facts.ints(value)
        if known is not None and None not in known.elements:
            return all(one == size for one in known.elements)
        if isinstance(size, int) and facts.fill(value) == size:
            return True
        node = value.producer()
        value = node.inputs[0] if node is not None and not node.domain and node.op_type in _REPEATS else None
    return False


def are_whole(match: Match) -> Refusal | None:
    """All sequences are as long as the axis of time."""
    shape, axis = match.shape("x"), match["time"]
    if shape is None or not isinstance(axis, int) or not _are_all(match["lengths"], shape[axis], match.facts):
        return match.refuse("values_unknown", "lengths", "the size of the axis of time")
    return None


def _reversed(what: Pattern) -> Pattern:
    return op.ReverseSequence(what, lengths, time_axis=attr("time"), batch_axis=attr("batch"))


def _lengths(*numbers: int) -> Any:
    return lambda build: build.constant(ints(numbers))


def _rule(name: str, pattern: Pattern, replace: Pattern, numbers: tuple[int, ...], *guards: Guard) -> Rule:
    return Rule(
        name=f"reversal.{name}",
        pattern=pattern,
        replace=replace,
        guards=guards,
        exactness=Exactness.EXACT,
        source=SOURCE,
        proof=Proof(
            shapes={"x": "2 3 b"},
            attributes={"time": [1], "batch": [0]},
            inputs={"lengths": _lengths(*numbers)},
            followed_by="Identity",
            counterexamples={"of other lengths": Variation(inputs={"lengths": _lengths(2, 3)})},
        ),
    )


RULES = [
    _rule(
        "whole",
        _reversed(x),
        op.Slice(
            x,
            computed("start", lambda match: ints([-1])),
            computed("end", lambda match: ints([_BEFORE_FIRST])),
            computed("axis", lambda match: ints([match["time"]])),
            computed("step", lambda match: ints([-1])),
        ),
        (3, 3),
        are_whole,
    ),
    _rule("twice", _reversed(_reversed(x)), x, (1, 3)),
]
