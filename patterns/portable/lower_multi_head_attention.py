"""Lower com.microsoft MultiHeadAttention without a mask to operators of the standard.

mha(q, k, v) = merged(softmax(scale split(q) split(k)^T) split(v)), heads split from and merged into the last axis

Rationale: the kernel gives zeros for rows of which a mask hides all keys, and Softmax gives NaN. Only attention that has no
mask, cache or bias is lowered.
"""

from __future__ import annotations

import math

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, ms, op, var

from .._shared_guards import constant

PASS = "canonicalize"

_PARTS = ("query", "key", "value")
query, key, value = (var(name) for name in _PARTS)


def heads_are_in_the_last_axis(match: Match) -> Refusal | None:
    """The number of heads divides the known last axes, and no key is hidden."""
    if match["unidirectional"]:
        return match.refuse("attribute", "unidirectional", 0)
    heads = match["num_heads"]
    for name in _PARTS:
        shape = match.shape(name)
        if shape is None or len(shape) != 3 or not isinstance(shape[-1], int) or not heads or shape[-1] % heads:
            return match.refuse_dimension(name, -1, "a known multiple of the number of heads, of three axes")
    return _alike(match)


def _alike(match: Match) -> Refusal | None:
    """Queries and keys have one size, and batches are equal."""
    shapes = [match.shape(name) or () for name in _PARTS]
    if shapes[0][-1] != shapes[1][-1] or len({shape[0] for shape in shapes}) > 1 or shapes[1][1] != shapes[2][1]:
        return match.refuse("shape", "key", "the batch and size of the queries, and as many rows as the values")
    return None


def _last(match: Match, name: str) -> int:
    shape = match.shape(name)
    assert shape is not None and isinstance(shape[-1], int)
    return shape[-1]


def _attended(match: Match) -> Pattern:
    heads = match["num_heads"]
    sizes = {name: _last(match, name) for name in _PARTS}
    scale = match["scale"] or 1 / math.sqrt(sizes["query"] // heads)

    def split(part: Pattern, name: str, order: tuple[int, ...]) -> Pattern:
        made: Pattern = op.Transpose(op.Reshape(part, constant(0, 0, heads, sizes[name] // heads)), perm=order)
        return made

    scores = op.MatMul(op.Mul(split(query, "query", (0, 2, 1, 3)), scale), split(key, "key", (0, 2, 3, 1)))
    found = op.MatMul(op.Softmax(scores, axis=-1), split(value, "value", (0, 2, 1, 3)))
    merged: Pattern = op.Reshape(op.Transpose(found, perm=(0, 2, 1, 3)), constant(0, 0, sizes["value"]))
    return merged


RULES = [
    Rule(
        name="attention.lower_multi_head_attention",
        formula="com.microsoft.MultiHeadAttention(query, key, value)",
        pattern=ms.MultiHeadAttention(
            query,
            key,
            value,
            num_heads=attr("num_heads"),
            scale=attr("scale"),
            unidirectional=attr("unidirectional"),
            mask_filter_value=attr("filler"),
        ),
        replace=built(_attended, makes=("Reshape", "Transpose", "Mul", "MatMul", "Softmax")),
        is_refinement=True,
        guards=(heads_are_in_the_last_axis,),
        exactness=Exactness.ROUNDING,
        source="com.microsoft operators of ONNX Runtime; arXiv:1706.03762",
        test=RuleTest(
            shapes={"query": "b s 8", "key": "b t 8", "value": "b t 8"},
            attributes={"num_heads": [2], "scale": [None, 0.25], "unidirectional": [None, 0], "filler": [None]},
            never_empty={"*": "the kernel refuses empty tensors"},
        ),
    )
]
