"""Fuse Reshape, Transpose and Reshape that move blocks of pixels to channels or back into DepthToSpace and SpaceToDepth.

depth_to_space(x) = rearrange(x, b (c r r) h w -> b c (h r) (w r))       mode CRD, pixel shuffle, arXiv:1609.05158
depth_to_space(x) = rearrange(x, b (r r c) h w -> b c (h r) (w r))       mode DCR
space_to_depth(x) = rearrange(x, b c (h r) (w r) -> b (r r c) h w)
unshuffle(x) = space_to_depth(x)[:, indices]: whole planes are moved, as rearrange(b (r r c) h w -> b (c r r) h w) does
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, computed, op, rearrange, var

SHUFFLED, BLOCKED, SPREAD = "b (c r s) h w", "b (r s c) h w", "b c (h r) (w s)"


TYPICAL: dict[str, str | int] = {"b": 1, "c": 16, "r": 2, "s": 2, "h": 56, "w": 56}


def blocks_are_square(match: Match) -> Refusal | None:
    """The blocks are square, of known size above 1."""
    rows, columns = match.size("r"), match.size("s")
    if rows is not None and rows > 1 and rows == columns:
        return None
    return match.refuse("condition", "root", "a rearrangement of square blocks of known size", f"of {rows} x {columns}")


def _size(match: Match) -> Any:
    return match.size("r")


def _places(match: Match) -> Any:
    """The indices of the planes (c r s) among the planes (r s c)."""
    size, channels = match.size("r"), match.size("c")
    assert size is not None
    assert channels is not None
    return np.arange(size * size * channels).reshape(size, size, channels).transpose(2, 0, 1).ravel()


def _unshuffled(match: Match) -> Pattern:
    known = isinstance(match.size("c"), int)
    made: Pattern = op.Gather(to_depth, computed("places", _places), axis=1)
    return made if known else rearrange(f"{BLOCKED} -> {SHUFFLED}", to_depth)


def _rearrange_rule(name: str, before: str, after: str, replace: Any, typical: str, **more: Any) -> Rule:
    return Rule(
        name=f"depth_to_space.{name}",
        pattern=rearrange(f"{before} -> {after}", var("x", before)),
        replace=replace,
        guards=(blocks_are_square,),
        exactness=Exactness.EXACT,
        source="ONNX operators DepthToSpace and SpaceToDepth",
        test=RuleTest(shapes={"c": 3, "r": 2, "s": 2, "h": 4, "w": 5}, typical=({"x": typical, **TYPICAL},)),
        **more,
    )


x = var("x")
to_depth = op.SpaceToDepth(x, blocksize=_size)

RULES = [
    _rearrange_rule(
        "rearrange_to_crd", SHUFFLED, SPREAD, op.DepthToSpace(x, blocksize=_size, mode="CRD"), "1 64 56 56"
    ),
    _rearrange_rule("rearrange_to_dcr", BLOCKED, SPREAD, op.DepthToSpace(x, blocksize=_size, mode="DCR"), "1 64 56 56"),
    _rearrange_rule("rearrange_to_space_to_depth", SPREAD, BLOCKED, to_depth, "1 16 112 112"),
    _rearrange_rule(
        "pixel_unshuffle_to_space_to_depth",
        SPREAD,
        SHUFFLED,
        _unshuffled,
        "1 16 112 112",
        makes=("SpaceToDepth", "Gather", "Reshape", "Transpose"),
        formula=f"rearrange({SPREAD} -> {SHUFFLED}, x)",
    ),
]
