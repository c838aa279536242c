"""Several convolutions in one pattern, numbered: `weight1`, `bias1`, `conv1`, `layer1`, `weight2`, ..."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.analysis.linear_maps.windows import Window, window
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite.pattern import Match, Op, Pattern, all_attributes, const, op, opt

from ._conv_weights import MOST_COPIED

Array = np.ndarray[Any, Any]


def numbered(number: int, data: Pattern) -> Op:
    """Conv of `data` with constant weights."""
    weight, bias = const(f"weight{number}"), const(f"bias{number}")
    made: Op = op.Conv(data, weight, opt(bias), attributes=all_attributes(f"conv{number}")).named(f"layer{number}")
    return made


def window_of(match: Match, number: int) -> Window | None:
    """The window of a convolution; `None` if it is not known."""
    shape = match.shape(f"weight{number}") or ()
    return window(match[f"conv{number}"], [dim for dim in shape[2:] if isinstance(dim, int)])


def bias_of(match: Match, number: int) -> Array:
    """The bias of a convolution in float64; zeros if there is none."""
    if match.get(f"bias{number}") is None:
        return np.zeros(len(match.const(f"weight{number}")))
    found: Array = match.const(f"bias{number}").astype(np.float64)
    return found


def rounded(match: Match, array: Array) -> Array:
    """An array in the type of the weights."""
    with np.errstate(over="ignore"):
        made: Array = array.astype(match.const("weight1").dtype)
    return made


def unless_copied(match: Match, *names: str) -> Refusal | None:
    """A refusal if large weights are also used elsewhere, and so would be stored twice."""
    for name in names:
        if len(match[name].uses()) > 1 and match.const(name).nbytes > MOST_COPIED:
            return match.refuse("use", name, "one convolution", "several")
    return None
