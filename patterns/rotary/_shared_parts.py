"""Shared parts of the rules for RotaryEmbedding: x and its parts, conditions on the angles, and the operator.

The dimensions of x are b (batch), n (heads), s (length) and d (size of a head); h is half of d, two the 2 of pairs.
"""

from __future__ import annotations

from typing import Any

from ortfuse.ir.dims import broadcast
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite.pattern import Guard, Match, Op, Pattern, op, rearrange, var

from .._shared_guards import constant, text

PAPER = "arXiv:2104.09864"

HEADS_FIRST, LENGTH_FIRST = 1, 2
"""The axis of the heads in [batch, heads, length, size] and in [batch, length, heads, size]."""

LEADING = {HEADS_FIRST: "b n s", LENGTH_FIRST: "b s n"}
"""The axes of x except for the last."""

SIZES = {"n": 2, "d": 8, "h": 4, "two": 2}
"""Sizes for rule tests."""

NEVER_EMPTY = {"*": "the kernel refuses empty tensors"}

cos, sin = var("cos"), var("sin")


def x_of(heads: int) -> Pattern:
    """x, with the heads at the given axis."""
    return var("x", f"{LEADING[heads]} d")


def merged_pairs(heads: int, columns: Pattern) -> Pattern:
    """[..., h, 2] merged to [..., d], pair by pair."""
    return rearrange(f"{LEADING[heads]} h two -> {LEADING[heads]} (h two)", columns)


def has_angles(heads: int, *last: str | int) -> Guard:
    """h is half a head. Cosines and sines broadcast to x except on the last axes, and are the same for all heads."""

    def guard(match: Match) -> Refusal | None:
        if "d" in match.dims and (not match.size("d") or match.dim("h") * 2 != match.size("d")):
            return match.refuse_dimension("x", -1, "a number above 0, twice the size of the parts")
        if not match.size("h") or match.dims.get("two", 2) != 2:
            return match.refuse_dimension("x", -1, "a known number of pairs")
        if heads == LENGTH_FIRST and match.size("n") is None:
            return match.refuse_dimension("x", heads, "a known number of heads")
        ends = tuple(match.dim(end) if isinstance(end, str) else end for end in last)
        wanted = [1 if name == "n" else match.dim(name) for name in LEADING[heads].split()]
        if heads == HEADS_FIRST and match.dim("n") == 1 != match.dim("s") and _have_one_position(match, len(ends)):
            # One position of several heads, in the other layout: no angle has to be repeated for these
            return match.refuse("shape", "cos", f"{text([*wanted, *ends])}, other angles for other positions of x")
        for name in ("cos", "sin"):
            found = match.shape(name) or ()
            leading = found[: -len(ends)]
            fits = 1 <= len(leading) <= 3 and found[-len(ends) :] == ends
            pairs = zip(reversed(leading), reversed(wanted), strict=False)
            if not fits or any(broadcast(dim, common) != common for dim, common in pairs):
                return match.refuse("shape", name, f"{text([*wanted, *ends])}, one angle for each position of x")
        return None

    return guard


def _have_one_position(match: Match, ends: int) -> bool:
    """Whether cosines and sines are the same along the last axis but `ends`."""
    shapes = [match.shape(name) or () for name in ("cos", "sin")]
    return all(len(shape) > ends and shape[-ends - 1] == 1 for shape in shapes)


def cache(once: Pattern, heads: int, x: Pattern | None = None) -> Pattern:
    """Angles that broadcast to half of x, or another value with its batch and length there, as [batch, length, h]."""
    x = x_of(heads) if x is None else x
    batch, length = op.Shape(x, start=0, end=1), op.Shape(x, start=3 - heads, end=4 - heads)
    lengths = (constant(1), length) if heads == HEADS_FIRST else (length, constant(1))
    return op.Squeeze(op.Expand(once, op.Concat(batch, *lengths, constant(1), axis=0)), constant(heads))


def rotary(heads: int, interleaved: bool, once_cos: Pattern, once_sin: Pattern, x: Pattern | None = None) -> Pattern:
    """The operator on x, or on another value of its shape, with cosines and sines of half its size."""
    caches, turned = (cache(once_cos, heads), cache(once_sin, heads)), x_of(heads) if x is None else x
    if heads == HEADS_FIRST:
        return op.RotaryEmbedding(turned, *caches, interleaved=int(interleaved))
    return by_length(turned, *caches, num_heads=number_of_heads, interleaved=int(interleaved))


def by_length(x: Pattern, *caches: Pattern, size: str = "d", **attributes: Any) -> Pattern:
    """The operator on [batch, length, heads, size], passed to it with heads and sizes merged."""
    merged = rearrange(f"b s n {size} -> b s (n {size})", x)
    rotated: Op = op.RotaryEmbedding(merged, *caches, **attributes)
    return rearrange(f"b s (n {size}) -> b s n {size}", rotated)


def number_of_heads(match: Match) -> int | None:
    """The number of heads."""
    return match.size("n")
