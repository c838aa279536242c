"""The scores of com.microsoft attention with its masks, which MultiHeadAttention and Attention have alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.rewrite.pattern import Match, Pattern, computed, op, var

from .._shared_guards import array_like, constant

FILLER = -10000.0
"""The number that hides a key, where the attribute is not given."""

padding, added = var("padding"), var("added")


def masked(match: Match, scores: Pattern, keys: Pattern, query: Pattern) -> Pattern:
    """Scores with what the match captured as the mask of keys (`padding`), the bias (`added`) and `unidirectional`.

    Args:
        match: The match.
        scores: [batch, heads, queries, keys].
        keys: All keys, [batch, heads, keys, size].
        query: The new queries, [batch, queries, ...].
    """
    if match.get("padding") is not None:
        filler = FILLER if match["filler"] is None else match["filler"]
        nothing, least = (_number(name, number) for name, number in (("nothing", 0.0), ("filler", filler)))
        shown: Pattern = op.Greater(padding, computed("hides", lambda match: np.int32(0)))
        if match.rank("padding") == 1:  # lengths
            shown = op.Greater(
                op.Unsqueeze(op.Cast(padding, to=ir.DataType.INT64), constant(1)), _counted(_size(keys, 2))
            )
        hidden = op.Where(shown, nothing, least)
        scores = op.Add(scores, op.Unsqueeze(hidden, constant(*((1,) if match.rank("padding") == 3 else (1, 2)))))
    if match.get("added") is not None:
        scores = op.Add(scores, added)
    if match["unidirectional"]:
        positions = own = _counted(_size(query, 1))
        if match.get("past") is not None:
            positions = _counted(_size(keys, 2))
            own = op.Range(op.Sub(_size(keys, 2), _size(query, 1)), _size(keys, 2), _whole("step", 1))
        seen = op.LessOrEqual(positions, op.Unsqueeze(own, constant(1)))
        scores = op.Where(seen, scores, _number("later", -math.inf))  # each query sees its own key
    return scores


def mask_of_keys(build: Any) -> Any:
    """For rule tests: any 32-bit integers, of which those above 0 show a key, and the first key always; or lengths, of 1 to 4."""
    dims = build.dims("padding")
    if len(dims) == 1:
        given = build.input("mask", list(dims), ir.DataType.INT32)
        ends = [build.constant(np.array(number, np.int32)) for number in (1, 4)]
        return build.node("Min", [build.node("Max", [given, ends[0]]).outputs[0], ends[1]]).outputs[0]
    first = np.full(dims[-1], -5, np.int32)
    first[0] = 1
    given = build.input("mask", list(dims), ir.DataType.INT32)
    return build.node("Max", [given, build.constant(first)]).outputs[0]


def _number(name: str, number: float) -> Pattern:
    return computed(name, lambda match: array_like(match, number))


def _whole(name: str, number: int) -> Pattern:
    return computed(name, lambda match: np.int64(number))


def _size(value: Pattern, axis: int) -> Pattern:
    made: Pattern = op.Squeeze(op.Gather(op.Shape(value), constant(axis), axis=0), constant(0))
    return made


def _counted(count: Pattern) -> Pattern:
    """[count], the numbers from 0 on."""
    made: Pattern = op.Range(_whole("first", 0), count, _whole("step", 1))
    return made
