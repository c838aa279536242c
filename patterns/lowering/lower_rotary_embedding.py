"""Lower com.microsoft RotaryEmbedding to operators of the standard.

rope([a, b], positions, cos, sin) = [a cos[positions] - b sin[positions], b cos[positions] + a sin[positions]]
rope([a, b], [0], cos, sin) = [a cos - b sin, b cos + a sin]

where a and b are the halves of each head, or its even and odd numbers (RoFormer, arXiv:2104.09864). Numbers behind the first
`rotary_embedding_dim` stay. A single position is that of the first row. Fusions make ai.onnx RotaryEmbedding of it where the
opset has that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, ms, op, var

from .._shared_guards import constant
from ..rotary.standard_to_contrib_rotary_embedding import some_positions
from ._rotated_heads import rotated

PASS = "canonicalize"

_MERGED, _APART = 3, 4
"""The ranks of an input whose heads are merged into one axis, or stand apart in front of the rows."""

_ZERO, _ONE = computed("zero", lambda match: np.int64(0)), computed("one", lambda match: np.int64(1))

x, positions, cos, sin = (var(name) for name in ("x", "positions", "cos", "sin"))


def rotates_plainly(match: Match) -> Refusal | None:
    """Batches are not packed, and the result is not scaled."""
    if match["packed"]:
        return match.refuse("attribute", "packed", 0)
    found = match.unless_value("interleaved", match["interleaved"] in (None, 0, 1), "0 or 1")
    return found or match.unless_value("scale", match["scale"] in (None, 1.0), 1.0)


def sizes_are_known(match: Match) -> Refusal | None:
    """There is a position for each row or one for the first, and a head is as long as the attributes and the cosines say."""
    shape, table = match.shape("x"), match.shape("cos")
    if shape is None or len(shape) not in (_MERGED, _APART) or not isinstance(shape[-1], int):
        return match.refuse_dimension("x", -1, "a known size")
    if table is None or len(table) != 2 or not isinstance(table[-1], int) or table != match.shape("sin"):
        return match.refuse("shape", "cos", "a table as that of the sines, with a known number of columns")
    head = _head(match)
    if not head or shape[-1] % head or (len(shape) == _APART and shape[-1] != head) or 2 * table[-1] > head:
        return match.refuse("shape", "cos", "half of what is rotated of each head")
    rows, given = shape[-2] if len(shape) == _APART else shape[1], match.shape("positions")
    if given in ((shape[0], rows), (1,)):
        return None
    return match.refuse("shape", "positions", "a position for each row, or one")


def _head(match: Match) -> int:
    """The size of a head; 0 where attributes contradict the shapes."""
    shape, table = match.shape("x"), match.shape("cos")
    assert shape is not None and table is not None and isinstance(shape[-1], int) and isinstance(table[-1], int)
    if not match["rotary_embedding_dim"]:
        return 2 * table[-1]
    heads = match["num_heads"] or 0
    if match["rotary_embedding_dim"] != 2 * table[-1] or heads <= 0:
        return 0
    if len(shape) == _APART:
        return shape[-1] if shape[1] == heads else 0
    return shape[-1] // heads if shape[-1] % heads == 0 else 0


def _counts_from_zero(match: Match) -> bool:
    """Whether the rows of the tables are those of the input: the single position given is that of the first row."""
    found, shape, table = match.facts.const(match["positions"]), match.shape("x"), match.shape("cos")
    assert shape is not None and table is not None
    rows = shape[-2] if len(shape) == _APART else shape[1]
    return found is not None and found.shape == (1,) and not found.any() and table[0] == rows


def _by_row(match: Match, table: Pattern, is_merged: bool) -> Pattern:
    """The rows of a table by position, with an axis for heads."""
    if _counts_from_zero(match):
        return op.Unsqueeze(table, constant(1)) if is_merged else table
    if match.shape("positions") == (1,):
        rows = op.Squeeze(op.Gather(op.Shape(x), constant(1 if is_merged else 2), axis=0), constant(0))
        counted = op.Add(op.Range(_ZERO, rows, _ONE), positions)
        found = op.Gather(table, counted, axis=0)
        return op.Unsqueeze(found, constant(1)) if is_merged else found
    return op.Unsqueeze(op.Gather(table, positions, axis=0), constant(2 if is_merged else 1))


def _rotated(match: Match) -> Pattern:
    shape, half = match.shape("x"), match.shape("cos")[-1]  # type: ignore[index]
    assert shape is not None and isinstance(half, int) and isinstance(shape[-1], int)
    width, size, is_merged = shape[-1], _head(match), len(shape) == _MERGED
    heads: Pattern = op.Reshape(x, constant(0, 0, width // size, size)) if is_merged else x
    cosines, sines = (_by_row(match, table, is_merged) for table in (cos, sin))
    made = rotated(heads, half, size, cosines, sines, neighbours=match["interleaved"] == 1)
    return op.Reshape(made, constant(0, 0, width)) if is_merged else made


def _positions(build: Any) -> Any:
    """Positions of each row, or that of the first one."""
    if len(build.dims("positions")) != 1:
        return some_positions(build)
    return build.constant(np.array([build.dims("cos")[0] - 3]))


_CASES = (
    ("2 3 24", "5 4", "2 3", 0),
    ("2 4 3 8", "5 4", "2 3", 0),
    ("2 3 24", "3 4", "1", 0),
    ("2 4 3 8", "3 4", "1", 0),
    ("2 3 24", "5 4", "1", 2),
    ("2 4 3 10", "5 4", "1", 4),
)
"""The shapes of what is rotated, of tables and of positions, and the number of heads of which 8 numbers are rotated."""

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
        replace=built(
            _rotated,
            makes=(
                "Reshape",
                "Unsqueeze",
                "Gather",
                "Slice",
                "Mul",
                "Sub",
                "Add",
                "Concat",
                "Range",
                "Shape",
                "Squeeze",
            ),
        ),
        is_refinement=True,
        spells_out=True,
        guards=(rotates_plainly, sizes_are_known),
        exactness=Exactness.ROUNDING,
        source="com.microsoft operators of ONNX Runtime; arXiv:2104.09864",
        test=RuleTest(
            shapes=tuple(
                {"x": dims, "cos": table, "sin": table, "positions": places} for dims, table, places, _ in _CASES
            ),
            attributes=tuple(
                {
                    "interleaved": [0, None, 1],
                    "packed": [0, None],
                    "num_heads": [heads] if heads else [0, None],
                    "rotary_embedding_dim": [8] if heads else [0, None],
                    "scale": [1.0, None],
                }
                for *_, heads in _CASES
            ),
            inputs={"positions": _positions},
            never_empty={"*": "the kernel refuses empty tensors"},
        ),
    )
]
