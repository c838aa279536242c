"""Lower com.microsoft EmbedLayerNormalization to Gather, Add and LayerNormalization.

embed_layernorm(ids, segments, ...) = layernorm(words[ids] + positions[position_ids] + kinds[segments])

Positions are 0, 1, ... where none are given. The second output counts the tokens that the mask shows, those that are 1; the third
is the sum.

*Requires:* float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, ms, op, opt, var

from .._shared_guards import constant

PASS = "canonicalize"

ids, segments, mask, position_ids = (var(name) for name in ("ids", "segments", "mask", "position_ids"))
words, positions, kinds, gamma, beta = (var(name) for name in ("words", "positions", "kinds", "gamma", "beta"))

_EPSILON = 1e-12
"""The epsilon where the attribute is not given."""


def has_tables(match: Match) -> Refusal | None:
    """Segments and their table are given together, and numbers are float32."""
    if (match.get("segments") is None) != (match.get("kinds") is None):
        return match.refuse("missing_input", "kinds", "a table where there are segments")
    return match.unless_dtype("words", ir.DataType.FLOAT)


def counts_tokens(match: Match) -> Refusal | None:
    """The second output is the number of tokens of each text, or nothing reads it."""
    return match.unless_value("counted", match["counted"] in (None, 0) or match.get("tokens") is None, 0)


def _sum(match: Match) -> Pattern:
    length = op.Gather(op.Shape(ids), constant(1), axis=0)
    rows: Pattern = op.Slice(positions, constant(0), length, constant(0))
    if match.get("position_ids") is not None:
        rows = op.Gather(positions, position_ids, axis=0)
    total: Pattern = op.Add(op.Gather(words, ids, axis=0), rows)
    return total if match.get("kinds") is None else op.Add(total, op.Gather(kinds, segments, axis=0))


def _normalised(match: Match) -> Pattern:
    epsilon = _EPSILON if match["epsilon"] is None else match["epsilon"]
    made: Pattern = op.LayerNormalization(_sum(match), gamma, beta, axis=-1, epsilon=epsilon)
    return made


def _tokens(match: Match) -> Pattern:
    if match.get("mask") is None:  # zeros
        batch = op.Gather(op.Shape(ids), constant(0), axis=0)
        nothing: Pattern = op.Expand(computed("none", lambda match: np.zeros(1, np.int32)), batch)
        return nothing
    shown = op.Equal(mask, computed("one", lambda match: np.int32(1)))
    made: Pattern = op.ReduceSum(op.Cast(shown, to=ir.DataType.INT32), axes=(1,), keepdims=0)
    return made


_ROWS = {"ids": 9, "position_ids": 7, "segments": 3, "mask": 3}
"""The numbers of rows of the tables; of the mask, only 1 counts."""


def _indices(name: str) -> Any:
    """Rows of a table, a number for each token."""

    def made(build: Any) -> ir.Value:
        given = build.input(name, build.dims("ids"), ir.DataType.INT32)
        bounds = [build.constant(np.asarray(number, np.int32)) for number in (0, _ROWS[name] - 1)]
        clipped: ir.Value = build.node("Clip", [given, *bounds]).outputs[0]
        return clipped

    return made


def _with_all(build: Any, root: Any) -> Any:
    """The root of a rule test, in a model that uses the other outputs, too."""
    node = root.producer()
    node.resize_outputs(3)
    tokens = build.node("Cast", [node.outputs[1]], {"to": int(ir.DataType.FLOAT)}).outputs[0]
    sums = [build.node("ReduceSum", [value], {"keepdims": 0}).outputs[0] for value in (tokens, node.outputs[2])]
    return build.node("Add", [root, build.node("Add", sums).outputs[0]]).outputs[0]


RULES = [
    Rule(
        name="embedding.lower_embed_layer_normalization",
        formula="com.microsoft.EmbedLayerNormalization(ids, segments, words, positions, kinds, gamma, beta, mask, position_ids)",
        pattern=ms.EmbedLayerNormalization(
            ids, opt(segments), words, positions, opt(kinds), gamma, beta, opt(mask), opt(position_ids),
            epsilon=attr("epsilon"), mask_index_type=attr("counted"),
        ).naming(tokens=1, summed=2),
        replace=built(_normalised, makes=("Shape", "Gather", "Slice", "Add", "LayerNormalization")),
        intermediates={
            "tokens": built(_tokens, makes=("Shape", "Gather", "Expand", "Equal", "Cast", "ReduceSum")),
            "summed": built(_sum, makes=("Shape", "Gather", "Slice", "Add")),
        },
        is_refinement=True,
        spells_out=True,
        guards=(has_tables, counts_tokens),
        exactness=Exactness.ROUNDING,
        source="com.microsoft operators of ONNX Runtime; arXiv:1810.04805",
        test=RuleTest(
            shapes={"ids": "b 5", "words": "9 8", "positions": "7 8", "kinds": "3 8", "gamma": "8", "beta": "8"},
            inputs={name: _indices(name) for name in _ROWS},
            attributes={"epsilon": [None, 1e-5], "counted": [None]},
            never_empty={"*": "the kernel refuses empty tensors"},
            followed_by=_with_all,
        ),
    )
]  # fmt: skip
