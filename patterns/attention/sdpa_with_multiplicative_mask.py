"""Fuse attention whose scores and weights are multiplied by a mask of 0 and 1.

    p = m softmax(m s q k^T + (1 - m) filler)               p v = attention(q, k, v, where(m, 0, -inf))
    p = where(m, softmax(where(m, s q k^T, filler)), 0)     likewise; m is 1 to keep a key and 0 to hide it

Keras masks this way, and its exporter multiplies instead of selecting. The filler is about -1e9. It hides keys if every score
is provably far above it, so that the exponential of the difference is 0. A row without kept keys has weights multiplied by 0,
and the runtime's kernel gives zeros too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, const, op, scalar, var
from ortfuse.targets import Quirk

from .._rule_test_inputs import FINITE_SCORES, NEVER_EMPTY
from .._shared_guards import is_filled_with
from ._score_bounds import lowest
from .sdpa import LOWEST, heads_are_shared_alike, replacements, weights_have_known_length

SOURCE = "https://keras.io/api/layers/activation_layers/softmax"

FADED = 110.0
"""The exponential of a number lower than the opposite of this is 0 in float32."""

mask = var("mask", "b? h? s? _")


def _is_float(to: Any, facts: Facts) -> bool:
    return bool(to == ir.DataType.FLOAT)


def _as_number(truth: Pattern) -> Pattern:
    cast: Pattern = op.Cast(truth, to=attr("to", _is_float, "float32")).kept()
    return cast


kept = _as_number(mask)
hidden = _as_number(op.Not(mask).kept()) | op.Sub(const("one", is_filled_with(1), "1"), kept).kept()
product = (scalar("query_scale") * var("query", "b h s d")) @ (scalar("key_scale") * var("transposed_key", "b g d t"))
scores = (scalar("score_scale") * product).named("scores")
filler = scalar("filler")
masked = (kept * scores + op.Mul(filler, hidden).kept()) | op.Where(mask, scores, filler)
softmax = op.Softmax(masked, axis=-1)
weights = (kept * softmax) | op.Where(mask, softmax, 0.0)


def zeroes_hidden_rows(match: Match) -> Refusal | None:
    """The kernel gives zeros for queries whose keys are all hidden, as the graph does."""
    if refused := match.unless_dtype("mask", ir.DataType.BOOL) or match.unless_dtype("query", ir.DataType.FLOAT):
        return refused
    return None if Quirk.ZEROES_MASKED_ROWS in match.quirks else match.refuse("value", "mask", "for a kernel of zeros")


def filler_hides(match: Match) -> Refusal | None:
    """The filler is finite, and so much lower than any score that the weight of a hidden key is 0."""
    low = lowest(match["scores"], match.facts)
    if low is None:
        return match.refuse("values_unknown", "scores", "computed of what is normalised or otherwise bounded")
    hides = LOWEST <= match["filler"] < low - FADED
    return None if hides else match.refuse("value", "filler", f"lower than {low - FADED:g}, as scores may be {low:g}")


def _additive(match: Match) -> Pattern:
    """The mask as a term: nothing where a key is kept, -inf where it is hidden."""
    zero = computed("nothing", lambda match: np.float32(0))
    made: Pattern = op.Where(mask, zero, computed("hidden", lambda match: np.float32(-math.inf)))
    return made


_MADE, _WEIGHTS = replacements(_additive, "Where")


def _tanh(name: str) -> Any:
    """Bounded numbers."""

    def make(build: Any) -> ir.Value:
        made: ir.Value = build.node("Tanh", [build.input(f"{name}_given", build.dims(name))]).outputs[0]
        return made

    return make


def _truths(build: Any) -> ir.Value:
    """A mask that occasionally hides a whole row."""
    made: ir.Value = build.input("keep", [*build.dims("mask")[:-1], "t"], ir.DataType.BOOL)
    return made


RULES = [
    Rule(
        name="attention.sdpa_multiplicative_mask",
        formula="p = m softmax(m s q k^T + (1 - m) filler); p v",
        pattern=weights.named("weights") @ var("value", "b g u v"),
        replace=tuple(_MADE),
        intermediates={"weights": tuple(_WEIGHTS)},
        guards=(heads_are_shared_alike, zeroes_hidden_rows, filler_hides, weights_have_known_length),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes={"h": 2, "g": 2, "d": 4, "v": 4, "u": "t", "mask": "b 1 s t", "one": ""},
            scalars={
                **{name: [1.0, 0.5] for name in ("score_scale", "query_scale", "key_scale")},
                "filler": [-1e9, LOWEST],
            },
            attributes={"to": [int(ir.DataType.FLOAT)]},
            constants={"one": 1.0},
            inputs={"mask": _truths, "query": _tanh("query"), "transposed_key": _tanh("transposed_key")},
            never_empty=NEVER_EMPTY,
            assumes=FINITE_SCORES,
        ),
    )
]
