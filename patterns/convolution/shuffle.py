"""Blocks of pixels moved into channels and back, as one node.

depth_to_space(x) = rearrange(x, b (c r r) h w -> b c (h r) (w r))       mode CRD, pixel shuffle, arXiv:1609.05158
depth_to_space(x) = rearrange(x, b (r r c) h w -> b c (h r) (w r))       mode DCR
space_to_depth(x) = rearrange(x, b c (h r) (w r) -> b (r r c) h w)
unshuffle(x) = rearrange(space_to_depth(x), b (r r c) h w -> b (c r r) h w), whole planes being moved

Exporters write Reshape, Transpose and Reshape.
"""

from __future__ import annotations

from typing import Any

from ortfuse.pattern import Match, Pattern, op, rearrange, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule

SHUFFLED, BLOCKED, SPREAD = "b (c r s) h w", "b (r s c) h w", "b c (h r) (w s)"


TYPICAL: dict[str, str | int] = {"b": 1, "c": 16, "r": 2, "s": 2, "h": 56, "w": 56}


def blocks_are_square(match: Match) -> Refusal | None:
    """The blocks have a known number of rows, more than one, and as many columns."""
    rows, columns = match.size("r"), match.size("s")
    if rows is not None and rows > 1 and rows == columns:
        return None
    return match.refuse("condition", "root", "a rearrangement of square blocks of known size", f"of {rows} x {columns}")


def _size(match: Match) -> Any:
    return match.size("r")


def _rule(name: str, before: str, after: str, replace: Pattern, typical: str) -> Rule:
    return Rule(
        name=f"shuffle.{name}",
        pattern=rearrange(f"{before} -> {after}", var("x", before)),
        replace=replace,
        guards=(blocks_are_square,),
        exactness=Exactness.EXACT,
        source="ONNX operators DepthToSpace and SpaceToDepth",
        proof=Proof(shapes={"c": 3, "r": 2, "s": 2, "h": 4, "w": 5}, typical=({"x": typical, **TYPICAL},)),
    )


x = var("x")
to_depth = op.SpaceToDepth(x, blocksize=_size)

RULES = [
    _rule("depth_to_space", SHUFFLED, SPREAD, op.DepthToSpace(x, blocksize=_size, mode="CRD"), "1 64 56 56"),
    _rule("depth_first_to_space", BLOCKED, SPREAD, op.DepthToSpace(x, blocksize=_size, mode="DCR"), "1 64 56 56"),
    _rule("space_to_depth", SPREAD, BLOCKED, to_depth, "1 16 112 112"),
    _rule("pixel_unshuffle", SPREAD, SHUFFLED, rearrange(f"{BLOCKED} -> {SHUFFLED}", to_depth), "1 16 112 112"),
]
