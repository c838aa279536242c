"""Fold a factor of columns into the normalisation before it, as `smooth` schemes need.

norm(x, g, b) f = norm(x, g f, b f)            norm: LayerNormalization, SkipLayerNormalization, RMSNormalization
"""

from __future__ import annotations

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Op, Pattern, all_attributes, computed, const, ms, op, opt, var
from ortfuse.rewrite.pattern.language import Computed

PASS = "precision.cleanup"

HOW = all_attributes("how")
x, skip, sum_bias = var("x"), var("skip"), opt(var("sum_bias"))
gain, shift, factor = const("gain", "n"), opt(const("shift", "n")), const("factor", "n")


def stays_normal(match: Match) -> Refusal | None:
    """The products are normal numbers, or 0."""
    for name in ("gain", "shift"):
        if match.get(name) is not None:
            with np.errstate(all="ignore"):
                sizes = np.abs(match.const(name) * match.const("factor"))
            normal = np.isfinite(sizes) & ((sizes >= np.finfo(sizes.dtype).tiny) | (match.const(name) == 0))
            if not normal.all():
                return match.refuse("value", "factor", "of numbers that make no too large or too small ones")
    return None


def _times(name: str) -> Computed:
    return computed(
        f"{name}_times_factor",
        lambda match: None if match.get(name) is None else match.const(name) * match.const("factor"),
    )


def _skipping(scale: Pattern, offset: Pattern) -> Op:
    return ms.SkipLayerNormalization(x, skip, scale, offset, sum_bias, attributes=HOW, outputs=4)


SCALED = _skipping(_times("gain"), _times("shift"))


def _rule(name: str, before: Pattern, after: Pattern, test: RuleTest, total: Pattern | None = None) -> Rule:
    return Rule(
        name=f"column_scale.fold_into_{name}",
        pattern=op.Mul(before, factor),
        replace=after,
        intermediates={} if total is None else {"total": total},
        guards=(stays_normal,),
        exactness=Exactness.ROUNDING,
        source="ONNX operator LayerNormalization: the scale is the last factor",
        test=test,
    )


HOWS = {"how": [{"axis": -1, "epsilon": 1e-5}]}

RULES = [
    _rule(
        "layer_normalization",
        op.LayerNormalization(x, gain, shift, attributes=HOW),
        op.LayerNormalization(x, _times("gain"), _times("shift"), attributes=HOW),
        RuleTest(shapes={"x": "b s 8", "gain": "8", "shift": "8", "factor": "8"}, attributes=HOWS),
    ),
    _rule(
        "rms_normalization",
        op.RMSNormalization(x, gain, attributes=HOW),
        op.RMSNormalization(x, _times("gain"), attributes=HOW),
        RuleTest(shapes={"x": "b s 8", "gain": "8", "factor": "8"}, attributes=HOWS, opset=23),
    ),
    _rule(
        "skip_layer_normalization",
        _skipping(gain, shift).naming(total=3)[0],
        SCALED[0],
        RuleTest(
            shapes={"x": "b s 8", "skip": "b s 8", "gain": "8", "shift": "8", "factor": "8", "sum_bias": "8"},
            attributes={"how": [{"epsilon": 1e-5}]},
        ),
        SCALED[3],
    ),
]
