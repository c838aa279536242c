"""Lower com.microsoft RotaryEmbedding to operators of the standard.

rope([a, b], positions, cos, sin) = [a cos[positions] - b sin[positions], b cos[positions] + a sin[positions]]
rope([a, b], [0], cos, sin) = [a cos - b sin, b cos + a sin]

where a and b are the halves of each head (RoFormer, arXiv:2104.09864). Fusions make ai.onnx RotaryEmbedding of it where the
opset has that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, ms, op, var

from .._shared_guards import constant
from ..rotary.standard_to_contrib_rotary_embedding import some_positions

PASS = "canonicalize"

_MERGED, _APART = 3, 4
"""The ranks of an input whose heads are merged into one axis, or stand apart in front of the rows."""

x, positions, cos, sin = (var(name) for name in ("x", "positions", "cos", "sin"))


def rotates_halves(match: Match) -> Refusal | None:
    """All of each head is rotated, by halves and unscaled."""
    for name in ("interleaved", "packed", "rotary_embedding_dim"):
        if match[name]:
            return match.refuse("attribute", name, 0)
    return match.unless_value("scale", match["scale"] in (None, 1.0), 1.0)


def sizes_are_known(match: Match) -> Refusal | None:
    """There is a position for each row, and a head is twice as long as a row of the cosines."""
    shape, table = match.shape("x"), match.shape("cos")
    if shape is None or len(shape) not in (_MERGED, _APART) or not isinstance(shape[-1], int):
        return match.refuse_dimension("x", -1, "a known size")
    if table is None or len(table) != 2 or not isinstance(table[-1], int) or table != match.shape("sin"):
        return match.refuse("shape", "cos", "a table as that of the sines, with a known number of columns")
    head = 2 * table[-1]
    if shape[-1] % head or (len(shape) == _APART and shape[-1] != head):
        return match.refuse("shape", "cos", "half of each head")
    rows, given = shape[-2] if len(shape) == _APART else shape[1], match.shape("positions")
    if given == (shape[0], rows) or (_counts_from_zero(match) and table[0] == rows):
        return None
    return match.refuse("shape", "positions", "a position for each row, or 0 for tables of as many rows")


def _counts_from_zero(match: Match) -> bool:
    """Whether the rows of the tables are those of the input: the single position given is that of the first row."""
    found = match.facts.const(match["positions"])
    return found is not None and found.shape == (1,) and not found.any()


def _by_row(match: Match, table: Pattern, is_merged: bool) -> Pattern:
    """The rows of a table by position, with an axis for heads."""
    if _counts_from_zero(match):
        return op.Unsqueeze(table, constant(1)) if is_merged else table
    return op.Unsqueeze(op.Gather(table, positions, axis=0), constant(2 if is_merged else 1))


def _rotated(match: Match) -> Pattern:
    shape, half = match.shape("x"), match.shape("cos")[-1]  # type: ignore[index]
    assert shape is not None and isinstance(half, int) and isinstance(shape[-1], int)
    width, is_merged = shape[-1], len(shape) == _MERGED
    heads: Pattern = op.Reshape(x, constant(0, 0, width // (2 * half), 2 * half)) if is_merged else x
    cosines, sines = (_by_row(match, table, is_merged) for table in (cos, sin))
    first, second = (op.Slice(heads, constant(start), constant(start + half), constant(-1)) for start in (0, half))
    made: Pattern = op.Concat(
        op.Sub(op.Mul(first, cosines), op.Mul(second, sines)),
        op.Add(op.Mul(second, cosines), op.Mul(first, sines)),
        axis=-1,
    )
    return op.Reshape(made, constant(0, 0, width)) if is_merged else made


def _positions(build: Any) -> Any:
    """Positions of each row, or that of the first one."""
    return build.constant(np.array([0])) if len(build.dims("positions")) == 1 else some_positions(build)


RULES = [
    Rule(
        name="rotary.lower_contrib_rotary_embedding",
        formula="com.microsoft.RotaryEmbedding(x, positions, cos, sin)",
        pattern=ms.RotaryEmbedding(
            x,
            positions,
            cos,
            sin,
            interleaved=attr("interleaved"),
            is_packed_batching=attr("packed"),
            num_heads=attr("num_heads"),
            rotary_embedding_dim=attr("rotary_embedding_dim"),
            scale=attr("scale"),
        ),
        replace=built(_rotated, makes=("Reshape", "Unsqueeze", "Gather", "Slice", "Mul", "Sub", "Add", "Concat")),
        is_refinement=True,
        spells_out=True,
        guards=(rotates_halves, sizes_are_known),
        exactness=Exactness.ROUNDING,
        source="com.microsoft operators of ONNX Runtime; arXiv:2104.09864",
        test=RuleTest(
            shapes=(
                {"x": "2 3 24", "cos": "5 4", "sin": "5 4", "positions": "2 3"},
                {"x": "2 4 3 8", "cos": "5 4", "sin": "5 4", "positions": "2 3"},
                {"x": "2 3 24", "cos": "3 4", "sin": "3 4", "positions": "1"},
                {"x": "2 4 3 8", "cos": "3 4", "sin": "3 4", "positions": "1"},
            ),
            attributes={
                "interleaved": [0, None],
                "packed": [0, None],
                "num_heads": [0, None],
                "rotary_embedding_dim": [0, None],
                "scale": [1.0, None],
            },
            inputs={"positions": _positions},
            never_empty={"*": "the kernel refuses empty tensors"},
        ),
    )
]
