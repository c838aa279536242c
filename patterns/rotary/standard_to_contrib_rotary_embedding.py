"""Lower ai.onnx RotaryEmbedding to com.microsoft RotaryEmbedding, for targets without its kernel.

rope(x, cos, sin, positions) = com.microsoft.rope(x, positions, cos, sin)
rope(x, cos[b, s, h], sin[b, s, h]) = com.microsoft.rope(x, [[0, 1, ...], ...], cos[b s, h], sin[b s, h])

The rules come after all fusions, which find ai.onnx RotaryEmbedding for every target.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Op, Pattern, attr, built, computed, ms, op, opt, redundant, var
from ortfuse.targets import Quirk

from .._rule_test_inputs import KERNEL
from .._shared_guards import ints

PASS = "lower_operators"

x, cos, sin, positions = var("x"), var("cos"), var("sin"), var("positions")


def _heads(match: Match) -> int | None:
    """The number of heads; `None` if it is not known."""
    shape = match.shape("x")
    found = shape[1] if shape is not None and len(shape) == 4 else match["num_heads"]
    return found if isinstance(found, int) and found > 0 else None


def heads_are_known(match: Match) -> Refusal | None:
    """The size of heads is known, and their number if the operator needs it; cosines and sines are of half of what is rotated."""
    shape, heads = match.shape("x"), _heads(match)
    if shape is None or len(shape) not in (3, 4) or not isinstance(shape[-1], int):
        return match.refuse_dimension("x", -1, "a known size of each head")
    if heads is None and (len(shape) == 3 or match["rotary_embedding_dim"]):
        return match.refuse_dimension("x", 1, "a known number of heads")
    size = shape[-1] if len(shape) == 4 else shape[-1] // (heads or 1)
    rotated = match["rotary_embedding_dim"] or size
    for name in ("cos", "sin"):
        table = match.shape(name)
        if table is None or table[-1] * 2 != rotated:
            return match.refuse("shape", name, "half of what is rotated of each head")
    return None


@redundant(KERNEL)
def are_tables(match: Match) -> Refusal | None:
    """With positions, cosines and sines are tables; without, they have a row for each position of each batch."""
    rank = 3 if match["positions"] is None else 2
    return match.unless_rank("cos", rank) or match.unless_rank("sin", rank)


def _integer(number: int) -> Pattern:
    return computed(str(number), lambda match: np.array(number, np.int64))


def _rotation(match: Match) -> Op:
    rows: list[Pattern] = [positions, cos, sin]
    if match["positions"] is None:
        half = (match.shape("cos") or (0,))[-1]
        flat = [op.Reshape(one, computed("rows", lambda match: ints([-1, half]))) for one in (cos, sin)]
        count = op.Squeeze(op.Shape(flat[0], start=0, end=1), computed("first", lambda match: ints([0])))
        zero, one = _integer(0), _integer(1)
        rows = [op.Reshape(op.Range(zero, count, one), op.Shape(cos, start=0, end=2)), *flat]
    size = match["rotary_embedding_dim"] or None
    made: Op = ms.RotaryEmbedding(
        x, *rows, num_heads=_heads(match), rotary_embedding_dim=size, interleaved=match["interleaved"]
    )
    return made


def _attributes(heads: int | None, part: int) -> dict[str, list[Any]]:
    return {"num_heads": [heads], "rotary_embedding_dim": [part], "interleaved": [0, 1]}


def some_positions(build: Any) -> Any:
    """Positions of two batches of three rows, in tables of five."""
    return build.constant(np.array([[3, 0, 4], [1, 1, 2]]))


RULES = [
    Rule(
        name="rotary.lower_to_contrib_rotary_embedding",
        formula="rope(x, cos, sin, positions)",
        is_refinement=True,
        pattern=op.RotaryEmbedding(
            x,
            cos,
            sin,
            opt(positions),
            **{name: attr(name) for name in ("num_heads", "rotary_embedding_dim", "interleaved")},
        ),
        replace=built(_rotation, makes=("com.microsoft.RotaryEmbedding", "Reshape", "Range", "Shape", "Squeeze")),
        guards=(heads_are_known, are_tables),
        because=Quirk.LACKS_ROTARY_EMBEDDING,
        exactness=Exactness.ROUNDING,
        source="ONNX operator RotaryEmbedding; ONNX Runtime contrib operator RotaryEmbedding",
        test=RuleTest(
            shapes=(
                {"x": "b s 24", "cos": "b s 4", "sin": "b s 4"},
                {"x": "b 3 s 8", "cos": "b s 2", "sin": "b s 2"},
                {"x": "2 3 24", "cos": "5 2", "sin": "5 2", "positions": "2 3"},
                {"x": "2 4 3 8", "cos": "5 4", "sin": "5 4", "positions": "2 3"},
            ),
            attributes=(_attributes(3, 0), _attributes(None, 4), _attributes(3, 4), _attributes(None, 0)),
            inputs={"positions": some_positions},
            opset=23,
            never_empty={"*": "the kernel refuses empty tensors"},
        ),
    ),
]
