"""Replace ReverseSequence over full lengths by Slice, and cancel a ReverseSequence of a ReverseSequence.

reverse_sequence(x, size of the axis) = x[::-1]        reverse_sequence(reverse_sequence(x, n), n) = x
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.analysis.tensor_filled_with_dim import holds_size
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, computed, op, var

from .._shared_guards import ints

SOURCE = "https://onnx.ai/onnx/operators/onnx__ReverseSequence.html"

_BEFORE_FIRST = np.iinfo(np.int64).min
x, lengths = var("x"), var("lengths")


def are_whole(match: Match) -> Refusal | None:
    """All sequences are as long as the axis of time."""
    shape, axis = match.shape("x"), match["time"]
    if shape is None or not isinstance(axis, int) or not holds_size(match["lengths"], shape[axis], match.facts):
        return match.refuse("values_unknown", "lengths", "the size of the axis of time")
    return None


def _reversed(what: Pattern) -> Pattern:
    return op.ReverseSequence(what, lengths, time_axis=attr("time"), batch_axis=attr("batch"))


def _lengths(*numbers: int) -> Any:
    return lambda build: build.constant(ints(numbers))


def _reverse_rule(name: str, pattern: Pattern, replace: Pattern, numbers: tuple[int, ...], *guards: Guard) -> Rule:
    return Rule(
        name=f"reverse_sequence.{name}",
        pattern=pattern,
        replace=replace,
        guards=guards,
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "2 3 b"},
            attributes={"time": [1], "batch": [0]},
            inputs={"lengths": _lengths(*numbers)},
            followed_by="Identity",
            counterexamples={"of other lengths": Variation(inputs={"lengths": _lengths(2, 3)})},
        ),
    )


RULES = [
    _reverse_rule(
        "full_length_to_slice",
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
    _reverse_rule("reverse_of_reverse", _reversed(_reversed(x)), x, (1, 3)),
]
