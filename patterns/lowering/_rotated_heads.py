"""The rotary embedding of heads that stand apart, which RotaryEmbedding and GroupQueryAttention of com.microsoft have alike."""

from __future__ import annotations

import itertools

from ortfuse.rewrite.pattern import Pattern, op

from .._shared_guards import constant


def rotated(part: Pattern, half: int, size: int, cosines: Pattern, sines: Pattern, *, neighbours: bool) -> Pattern:
    """Heads [a, b, c, size], of which the first `2 half` numbers are rotated, by halves or as pairs of neighbours.

    Args:
        part: The heads, [a, b, c, size].
        half: The number of angles.
        size: The size of a head.
        cosines: The cosines, as they broadcast to [a, b, c, half].
        sines: The sines, in the same way.
        neighbours: Whether the pairs are numbers beside each other.
    """
    if neighbours:
        return _neighbours_rotated(part, half, size, cosines, sines)
    cuts = [0, half, 2 * half, size]
    first, second, *rest = (
        op.Slice(part, constant(start), constant(end), constant(-1))
        for start, end in itertools.pairwise(cuts)
        if start < end
    )
    made: Pattern = op.Concat(*_turned(first, second, cosines, sines), *rest, axis=-1)
    return made


def _neighbours_rotated(part: Pattern, half: int, size: int, cosines: Pattern, sines: Pattern) -> Pattern:
    turning = part if 2 * half == size else op.Slice(part, constant(0), constant(2 * half), constant(-1))
    pairs = op.Reshape(turning, constant(0, 0, 0, half, 2))
    first, second = (op.Slice(pairs, constant(place), constant(place + 1), constant(-1)) for place in (0, 1))
    angles = (op.Unsqueeze(cosines, constant(-1)), op.Unsqueeze(sines, constant(-1)))
    made: Pattern = op.Reshape(op.Concat(*_turned(first, second, *angles), axis=-1), constant(0, 0, 0, 2 * half))
    if 2 * half == size:
        return made
    return op.Concat(made, op.Slice(part, constant(2 * half), constant(size), constant(-1)), axis=-1)


def _turned(first: Pattern, second: Pattern, cosines: Pattern, sines: Pattern) -> tuple[Pattern, Pattern]:
    return (
        op.Sub(op.Mul(first, cosines), op.Mul(second, sines)),
        op.Add(op.Mul(second, cosines), op.Mul(first, sines)),
    )
