"""Convolutions of one input that read it alike and are joined by Concat, in one convolution.

concat(conv(x, V, a), conv(x, W, b)) = conv(x, concat(V, W), concat(a, b))      of one group
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.pattern import Match, attr, computed, op, redundant, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule

from .._proofs import COST
from ._instances import PADDED
from ._numbered import Array, bias_of, numbered, rounded, unless_copied, window_of

SOURCE = "ONNX operators Conv and Concat"

x = var("x")
ATTRIBUTES = ("kernel_shape", "strides", "dilations", "pads", "group")


def _numbers(match: Match) -> range:
    """The numbers of the convolutions that matched."""
    return range(1, 1 + sum(match.get(f"weight{number}") is not None for number in (1, 2, 3, 4)))


def _weight(match: Match) -> Array:
    return np.concatenate([match.const(f"weight{number}") for number in _numbers(match)])


def _bias(match: Match) -> Array | None:
    if all(match[f"bias{number}"] is None for number in _numbers(match)):
        return None
    return rounded(match, np.concatenate([bias_of(match, number) for number in _numbers(match)]))


def read_alike(match: Match) -> Refusal | None:
    """The convolutions have one window and one type, and a single group; they are joined along the axis of the channels."""
    first, rank = window_of(match, 1), match.rank("weight1")
    if rank is None or match["axis"] not in (1, 1 - rank):
        return match.refuse("attribute", "axis", 1)
    if first is None or first.groups != 1:
        return match.refuse("condition", "layer1", "a convolution of one group with known padding")
    for number in _numbers(match):
        if window_of(match, number) != first:
            return match.refuse("condition", f"layer{number}", "a convolution that reads what the first one reads")
        if refused := match.unless_dtype(f"weight{number}", *(kind for kind in [match.dtype("weight1")] if kind)):
            return refused
    return None


@redundant(COST)
def copies_little(match: Match) -> Refusal | None:
    """No large weights are copied, and nothing that is computed once is computed twice."""
    if len({match[f"layer{number}"] for number in _numbers(match)}) < len(_numbers(match)):
        return match.refuse("needless", "root", found="one convolution is joined with itself")
    return unless_copied(match, *(f"weight{number}" for number in _numbers(match)))


def _attributes(name: str) -> Any:
    def found(match: Match) -> Any:
        first = window_of(match, 1)
        assert first is not None
        return first.attributes()[name]

    return found


def _joined(count: int) -> Any:
    return op.Concat(*(numbered(number, x) for number in range(1, count + 1)), axis=attr("axis"))


_SIZES = {1: 4, 2: 2, 3: 3, 4: 1}
_SHAPES = {f"weight{number}": f"{size} 3 3 3" for number, size in _SIZES.items()}
_BIASES = {f"bias{number}": f"{size}" for number, size in _SIZES.items()}
_TYPICAL = {f"weight{number}": "64 64 3 3" for number in _SIZES} | {f"bias{number}": "64" for number in _SIZES}

RULES = [
    Rule(
        name="conv.joined",
        formula="Concat(Conv(x, V, a), Conv(x, W, b), ...)",
        pattern=_joined(2) | _joined(3) | _joined(4),
        replace=op.Conv(
            x, computed("weight", _weight), computed("bias", _bias), **{name: _attributes(name) for name in ATTRIBUTES}
        ),
        guards=(read_alike, copies_little),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        proof=Proof(
            shapes={"x": "n 3 6 6", **_SHAPES, **_BIASES},
            attributes={"axis": [1, -3], **{f"conv{number}": [PADDED] for number in _SIZES}},
            typical=({"x": "1 64 28 28", **_TYPICAL},),
        ),
    ),
]
