"""Group normalisation, for which the CPU has no kernel.

groupnorm(x) = merge(instancenorm(split(x))) * scale + bias, split from [n, c, ...] to [n, groups, ...]
                                                                            Wu & He, arXiv:1803.08494

The runtime makes some 30 nodes of GroupNormalization, 2.3 times slower on four sizes than these five; scale and bias as a
BatchNormalization are 1.2 to 1.4 times faster than as Mul and Add.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.facts.facts import Facts
from ortfuse.pattern import Match, attr, computed, const, op, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule

from .._common import array_like, ints

x = var("x")
vectors = {name: const(name, "_") for name in ("weight", "shift")}


def _channels(match: Match) -> int:
    shape = match.shape("x")
    assert shape is not None
    assert isinstance(shape[1], int)
    return shape[1]


def divides_the_channels(match: Match) -> Refusal | None:
    """The channels of x are known and in groups; scale and bias have a finite number for each channel or each group."""
    shape, groups = match.shape("x"), match["groups"]
    if shape is None or len(shape) < 3:
        return match.refuse("rank", "x", "at least 3")
    if not isinstance(shape[1], int) or not groups or shape[1] % groups:
        return match.refuse_dimension("x", 1, f"a number of channels that {groups} divides")
    for name in vectors:
        array = match.const(name)
        if len(array) not in (shape[1], groups) or not np.all(np.isfinite(array)):
            return match.refuse("value", name, "of finite numbers for all channels or groups")
    return None


def of_channels(name: str) -> Any:
    """The captured vector with a number for each channel: before opset 21 it has one for each group."""

    def value(match: Match) -> Any:
        array = match.const(name)
        return np.repeat(array, _channels(match) // len(array))

    return computed(f"{name}_of_channels", value)


def _filled(number: float, count: str) -> Any:
    def value(match: Match) -> Any:
        size = match["groups"] if count == "groups" else _channels(match)
        return array_like(match, np.full(size, number))

    return computed(f"{count}_{number:g}", value)


split = op.Reshape(x, computed("split", lambda match: ints([0, match["groups"], -1])))
normal = op.InstanceNormalization(split, _filled(1, "groups"), _filled(0, "groups"), epsilon=attr("epsilon"))
merged = op.Reshape(normal, op.Shape(x))


def _in_float32(kind: Any, facts: Facts) -> bool:
    return kind in (None, 1)


_EPSILON: dict[str, list[Any]] = {"epsilon": [1e-5, 0.125], "stash_type": [1]}

RULES = [
    Rule(
        name="groupnorm.instance",
        formula="GroupNormalization(x, scale, bias)",
        spells_out=True,
        pattern=op.GroupNormalization(
            x,
            *vectors.values(),
            num_groups=attr("groups"),
            epsilon=attr("epsilon"),
            stash_type=attr("stash_type", _in_float32, "1"),
        ),
        replace=op.BatchNormalization(
            merged,
            of_channels("weight"),
            of_channels("shift"),
            _filled(0, "channels"),
            _filled(1, "channels"),
            epsilon=0.0,
        ),
        guards=(divides_the_channels,),
        exactness=Exactness.ROUNDING,
        source="arXiv:1803.08494",
        proof=Proof(
            shapes=(
                {"x": "n 6 4 s", "weight": "6", "shift": "6"},
                {"x": "n 4 s", "weight": "4", "shift": "4"},
            ),
            attributes=({"groups": [2, 3], **_EPSILON}, {"groups": [4, 1], **_EPSILON}),
            opset=21,
            never_empty={"*": "the runtime cannot divide an empty image into groups"},
            redundant={"demand that *": "another condition asks for the numbers, which only a constant has"},
            typical=tuple(
                {"x": f"1 {size}", "weight": size.split()[0], "shift": size.split()[0]}
                for size in ("64 56 56", "320 32 32", "1280 8 8")
            ),
        ),
    ),
]
