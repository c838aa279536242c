"""What the rules for rotary position embedding share: x and its parts, what its angles must be, and the operator on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ortfuse.dims import broadcast
from ortfuse.pattern import Match, Op, Pattern, attr, computed, op, var
from ortfuse.refusal import Refusal

from .._common import ints, is_rank, text

PAPER = "arXiv:2104.09864"

HEADS_FIRST, LENGTH_FIRST = 1, 2
"""The axis of the heads in [batch, heads, length, size] and in [batch, length, heads, size]."""

NEVER_EMPTY = {"*": "a Reshape to [0, 0, -1] of an empty tensor is refused"}

x = var("x", is_rank(4), "of rank 4")
cos, sin = var("cos"), var("sin")
low = op.Slice(x, starts=(0,), ends=attr("low_end"), axes=(-1,), steps=attr("low_steps")).named("low")
high = op.Slice(x, starts=attr("high_start"), ends=attr("high_end"), axes=(-1,), steps=attr("high_steps")).named("high")
even = op.Slice(x, starts=(0,), ends=attr("even_end"), axes=(-1,), steps=(2,))
odd = op.Slice(x, starts=(1,), ends=attr("odd_end"), axes=(-1,), steps=(2,))


def size_of(match: Match, name: str = "x") -> int | None:
    """The size of a head of the captured value, if it is known."""
    shape = match.shape(name)
    return shape[-1] if shape is not None and isinstance(shape[-1], int) else None


def even_size(match: Match) -> int | None:
    """The size of a head of x, if it is known, even and not 0."""
    size = size_of(match)
    return None if not size or size % 2 else size


def not_halves(match: Match, size: int) -> Refusal | None:
    """Why `low` and `high` are not the halves of x, `None` if they are."""
    for name in ("low", "high"):
        shape = match.shape(name)
        if shape is None or shape[-1] != size // 2:
            return match.refuse_dimension(name, -1, size // 2)
    if match["high_start"] not in (None, (size // 2,)):
        return match.refuse("attribute", "high_start", (size // 2,))
    return unless_steps_are_one(match, "low_steps", "high_steps")


def unless_steps_are_one(match: Match, *names: str) -> Refusal | None:
    """A refusal where a slice leaves elements out."""
    return next((match.refuse("attribute", name, (1,)) for name in names if match[name] not in (None, (1,))), None)


def odd_size(match: Match, name: str = "x") -> Refusal:
    """A refusal because the size of a head is not known, odd or 0."""
    return match.refuse_dimension(name, -1, "a number, even and above 0")


def one_angle_for_each_position(match: Match, heads: int, last: Sequence[int]) -> Refusal | None:
    """Cosines and sines broadcast to x but for their last dimensions, which are `last`, and are the same for all its heads."""
    shape = match.shape("x")
    if shape is None or len(shape) != 4:
        return match.refuse("rank", "x", 4)
    wanted = [*shape[:3]]
    wanted[heads] = 1
    for name in ("cos", "sin"):
        found = match.shape(name) or ()
        leading = found[: -len(last)]
        fits = leading and len(leading) <= 3 and found[-len(last) :] == tuple(last)
        if not fits or any(
            broadcast(dim, common) != common for dim, common in zip(reversed(leading), reversed(wanted), strict=False)
        ):
            return match.refuse("shape", name, f"{text([*wanted, *last])}, one angle for each position of x")
    if heads == LENGTH_FIRST and not isinstance(shape[heads], int):
        return match.refuse_dimension("x", heads, "a known number of heads")
    return None


def constant(*numbers: int) -> Pattern:
    """An int64 vector of these numbers."""
    return computed("_".join(map(str, numbers)), lambda match: ints(numbers))


def cache(once: Pattern, heads: int) -> Pattern:
    """Angles that broadcast to half of x, as [batch, length, size / 2]."""
    batch, length = op.Shape(x, start=0, end=1), op.Shape(x, start=3 - heads, end=4 - heads)
    lengths = (constant(1), length) if heads == HEADS_FIRST else (length, constant(1))
    return op.Squeeze(op.Expand(once, op.Concat(batch, *lengths, constant(1), axis=0)), constant(heads))


def rotary(heads: int, interleaved: bool, once_cos: Pattern, once_sin: Pattern) -> Op:
    """The operator on x, with cosines and sines of half its size."""
    caches = cache(once_cos, heads), cache(once_sin, heads)
    if heads == HEADS_FIRST:
        first: Op = op.RotaryEmbedding(x, *caches, interleaved=int(interleaved))
        return first
    merged = op.Reshape(x, computed("merged", lambda match: ints([0, 0, -1])))
    rotated = op.RotaryEmbedding(merged, *caches, interleaved=int(interleaved), num_heads=heads_of("x"))
    return heads_apart(rotated, "x")


def heads_of(name: str) -> Callable[[Match], Any]:
    """The number of heads of the captured value, [batch, length, heads, size]."""
    return lambda match: (match.shape(name) or ())[LENGTH_FIRST]


def heads_apart(rotated: Op, name: str) -> Op:
    """[batch, length, heads * size] with the heads and sizes of the captured value."""
    made: Op = op.Reshape(rotated, computed("apart", lambda match: ints([0, 0, *(match.shape(name) or ())[2:]])))
    return made
