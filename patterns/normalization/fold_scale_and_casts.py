"""Fold a scale and bias after LayerNormalization or RMSNormalization into it; remove Casts to float32 around it.

norm(x, 1) * w = norm(x, w)                            float16(norm(float32(x), float32(w))) = norm(x, w), x of float16

The operators compute float16 in float32 (`stash_type` 1), as the Casts do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Op, Pattern, attr, computed, const, op, opt, redundant, var

from .._rule_test_inputs import NUMBERS
from .._shared_guards import is_filled_with

SOURCE = "ONNX operators LayerNormalization and RMSNormalization"


def is_half(value: ir.Value, facts: Facts) -> bool:
    """A check for variables: float16."""
    return facts.dtype(value) == ir.DataType.FLOAT16


x, scale, shift = var("x"), var("scale"), var("shift")
half = var("half", is_half, "float16")
unit, nothing = const("unit", is_filled_with(1), "all 1"), const("nothing", is_filled_with(0), "all 0")
_CAST = {"saturate": attr("saturate"), "round_mode": attr("round_mode")}


def _single(name: str) -> Pattern:
    """A float32 vector: a constant, or a Cast of a float16 vector."""
    return op.Cast(var(f"{name}_half", is_half, "float16"), to=ir.DataType.FLOAT.value, **_CAST) | const(name)


def _half(name: str) -> Pattern:
    def value(match: Match) -> Any:
        return None if match[name] is None else match.const(name).astype(np.float16)

    return var(f"{name}_half") | computed(name, value)


def vectors_fit(match: Match) -> Refusal | None:
    """Scale and bias have the shape of the normalised axes, which not every kernel requires."""
    shape = match.shape("half")
    if shape is None:
        return match.refuse("shape", "half")
    return match.unless_shape(shape[match["axis"] :], "weight", "weight_half", "bias", "bias_half")


def constants_fit(match: Match) -> Refusal | None:
    """The float32 constants are representable in float16."""
    for name in ("weight", "bias"):
        if match.get(name) is None:
            continue
        array = match.const(name)
        with np.errstate(over="ignore"):
            if array.dtype != np.float32 or not np.array_equal(array.astype(np.float16).astype(np.float32), array):
                return match.refuse("value", name, "of float32, exact in float16")
    return None


def has_shape_of_unit(match: Match) -> Refusal | None:
    """Scale and bias have the shape of the operator's own scale."""
    names = [name for name in ("scale", "shift") if match.get(name) is not None]
    if not names:
        return match.refuse("needless", "root", found="nothing stands behind the normalisation")
    return match.unless_shape(match.shape("unit") or (), *names)


def _normalisation(kind: str, *inputs: Pattern) -> Op:
    stash = (
        {} if kind == "SimplifiedLayerNormalization" else {"stash_type": attr("stash_type", lambda v, facts: v == 1)}
    )
    made: Op = getattr(op, kind)(*inputs, axis=attr("axis"), epsilon=attr("epsilon"), **stash)
    return made


BROADCAST = "the kernel broadcasts the scale as the standard says"
STASH = "the runtime computes in float32 whatever `stash_type` says"
_ATTRIBUTES: dict[str, list[Any]] = {
    "axis": [-1], "epsilon": [1e-5], "stash_type": [1], "saturate": [1], "round_mode": [None], "to": [ir.DataType.FLOAT16.value],
}  # fmt: skip


def _vector(name: str) -> Any:
    """A float32 vector whose numbers are representable in float16."""

    def make(build: Any) -> ir.Value:
        numbers = np.linspace(-2, 2, int(build.dims(name)[0])).astype(np.float16)
        made: ir.Value = build.constant(numbers.astype(np.float32), ir.DataType.FLOAT)
        return made

    return make


def _between_casts(kind: str, biased: bool) -> Rule:
    inputs, replaced = [_single("weight")], [_half("weight")]
    if biased:
        inputs.append(opt(_single("bias")))
        replaced.append(opt(_half("bias")))
    inner = _normalisation(kind, op.Cast(half, to=ir.DataType.FLOAT.value, **_CAST), *inputs)
    name = kind.lower().replace("alization", "")
    return Rule(
        name=f"{name}.remove_float32_casts_around",
        formula=f"float16({kind}(float32(x)))",
        pattern=op.Cast(inner, to=attr("to"), **_CAST),
        replace=_normalisation(kind, half, *replaced),
        guards=(vectors_fit if biased else redundant(BROADCAST)(vectors_fit), constants_fit),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes={"half": "b s 8", **dict.fromkeys(("weight", "weight_half", "bias", "bias_half"), "8")},
            attributes=_ATTRIBUTES,
            inputs={"weight": _vector("weight"), "bias": _vector("bias")},
            dtypes=("float16",),
            redundant={
                "check of attribute *": STASH,
                "check of *": "of another type there is no kernel, or one that is as exact",
            },
            opset=23,
        ),
    )


def _scaled(kind: str, biased: bool) -> Rule:
    inner = _normalisation(kind, x, unit, opt(nothing)) if biased else _normalisation(kind, x, unit)
    name = kind.lower().replace("alization", "")
    return Rule(
        name=f"{name}.fold_scale{'_and_bias' if biased else ''}_after",
        formula=f"{kind}(x, 1) * scale" + (" + bias" if biased else ""),
        pattern=inner * opt(scale) + opt(shift) if biased else inner * scale,
        replace=_normalisation(kind, x, scale | unit, opt(shift)) if biased else _normalisation(kind, x, scale),
        guards=(has_shape_of_unit,),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        is_refinement=biased,  # the operator is there already
        test=RuleTest(
            shapes={"x": "b s 8", **dict.fromkeys(("unit", "nothing", "scale", "shift"), "8")},
            attributes=_ATTRIBUTES,
            constants={"unit": np.ones(8), "nothing": np.zeros(8)},
            redundant={"demand that *": NUMBERS, "check of attribute *": STASH},
            opset=23,
        ),
    )


RULES = [
    _between_casts("LayerNormalization", True),
    _between_casts("RMSNormalization", False),
    _scaled("LayerNormalization", True),
    _scaled("RMSNormalization", False),
]
