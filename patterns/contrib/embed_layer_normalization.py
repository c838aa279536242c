"""Fuse com.microsoft EmbedLayerNormalization: the sum of token, position and segment embeddings, normalised.

layernorm(words[ids] + positions[places] + kinds[segments]) = embed_layernorm(ids, segments, words, positions, kinds, ..., places)
                                                                                        Devlin et al., arXiv:1810.04805

The operator counts rows from the front, while Gather takes -1 for the last. Indices that may be negative get the number of rows
added; those beyond either end fail on both sides. The rule runs if `--force` asks for it,
`--force embedding=com.microsoft.EmbedLayerNormalization`: on the CPU it is no faster for short texts. Its mask counts the tokens,
and is left out, as no operator made here asks for that number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, const, ms, op, opt, redundant, var

from .._rule_test_inputs import KERNEL
from .._shared_guards import array_like

PASS = "contrib.embed_layer_normalization"

PAPER = "arXiv:1810.04805"

ids, places, segments = var("ids", "b s"), var("places", "_ s"), var("segments", "b s")
words, positions, kinds = const("words", "v c"), const("positions", "p c"), const("kinds", "k c")
gamma, beta = var("gamma", "c"), var("beta", "c")

total = (
    op.Gather(words, ids, axis=0) + op.Gather(positions, places, axis=0) + opt(op.Gather(kinds, segments, axis=0))
).named("total", "b s c")


def last_axis_alone(match: Match) -> Refusal | None:
    """The normalisation is over the last axis, with an epsilon that the operator takes."""
    if match["epsilon"] < 0:
        return match.refuse("value", "epsilon", "at least 0")
    return match.unless_value("axis", match["axis"] in (-1, 2), "the last axis alone")


@redundant(KERNEL)
def places_fit(match: Match) -> Refusal | None:
    """There is a row of positions for each text, or one for all."""
    shapes = match.shapes("ids", "places")
    if isinstance(shapes, Refusal):
        return shapes
    return None if shapes[1][0] in (1, shapes[0][0]) else match.refuse_dimension("places", 0, shapes[0][0])


def _rows(name: str, table: str) -> Pattern:
    """Indices of rows of a table as int32, counted from the front."""

    def made(match: Match) -> Pattern:
        if match.get(name) is None:
            return var(name)
        kind = match.dtype(name).numpy()  # type: ignore[union-attr]
        zero = computed("zero", lambda match: np.zeros((), kind))
        size = computed("size", lambda match: np.asarray(match.const(table).shape[0], kind))
        found: Pattern = var(name)
        values = match.facts.range(match[name])
        if values is None or values.low < 0:
            found = op.Where(op.Less(found, zero), op.Add(found, size), found)
        return found if match.dtype(name) == ir.DataType.INT32 else op.Cast(found, to=ir.DataType.INT32.value)

    return built(made, makes=("Less", "Add", "Where", "Cast"))


def _zeros(match: Match) -> Any:
    return array_like(match, np.zeros(match.const("words").shape[1]))


embedded = ms.EmbedLayerNormalization(
    _rows("ids", "words"),
    opt(_rows("segments", "kinds")),
    words,
    positions,
    opt(kinds),
    gamma,
    beta | computed("zeros", _zeros),
    None,
    _rows("places", "positions"),
    epsilon=attr("epsilon"),
    outputs=3,
)


def _indices(name: str, rows: int) -> Any:
    """Indices of rows, some counted from the end."""

    def made(build: Any) -> ir.Value:
        given = build.input(name, build.dims(name), ir.DataType.INT64)
        lowest = build.chooser.pick(f"the lowest of {name}", [str(-rows), "0"])
        bounds = [build.constant(np.asarray(number, np.int64)) for number in (0 if lowest else -rows, rows - 1)]
        clipped: ir.Value = build.node("Clip", [given, *bounds]).outputs[0]
        return clipped

    return made


_SIZES = {"v": 7, "p": 9, "k": 2, "c": 8}

RULES = [
    Rule(
        name="embedding.fuse_embed_layer_normalization",
        is_refinement=True,
        on_request=True,
        formula="LayerNormalization(words[ids] + positions[places] + kinds[segments], gamma, beta)",
        pattern=op.LayerNormalization(
            total, gamma, opt(beta), axis=attr("axis"), epsilon=attr("epsilon"), stash_type=attr("stash_type")
        ),
        replace=embedded[0],
        makes=("com.microsoft.EmbedLayerNormalization",),
        intermediates={"total": embedded[2]},
        guards=(last_axis_alone, places_fit),
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(
            shapes=({**_SIZES, "places": "1 s"}, {**_SIZES, "places": "b s"}),
            inputs={"ids": _indices("ids", 7), "places": _indices("places", 9), "segments": _indices("segments", 2)},
            attributes={"axis": [-1], "epsilon": [1e-12, 1e-5], "stash_type": [1]},
        ),
    )
]
