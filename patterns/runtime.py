"""Spellings that keep the runtime's own optimisations from making a model slower.

LayerNormalization(Add(x, skip)) = LayerNormalization(Sum(x, skip))

At session creation ONNX Runtime fuses a sum and the normalisation behind it into SkipLayerNormalization, which on the CPU is
several times slower than the two nodes (benchmarks/kernels.md). It looks for Add; Sum computes the same bits.
"""

from __future__ import annotations

from ortfuse.pattern import Match, Op, Pattern, all_attributes, op, opt, var
from ortfuse.rewrite import Exactness, Proof, Rule

from ._common import text

SOURCE = "ONNX Runtime graph transformer SkipLayerNormFusion"

x, skip, scale, bias = var("x"), var("skip"), var("scale"), var("bias")
added = op.Add(x, skip).named("added")
summed = op.Sum(x, skip)


def may_have_one_shape(match: Match) -> str | None:
    """Neither operand is known to be broadcast to the other, which the runtime would leave alone."""
    one, other = match.shape("x"), match.shape("skip")
    if one is None or other is None:
        return None
    if len(one) != len(other) or any((a == 1) != (b == 1) for a, b in zip(one, other, strict=True)):
        return f"{text(one)} and {text(other)} are broadcast"
    return None


def _normalised(kind: str, total: Pattern) -> Op:
    made: Op = getattr(op, kind)(total, scale, opt(bias), attributes=all_attributes("normalisation"))
    return made


def _sum_before(kind: str) -> Rule:
    vectors = {"scale": "768", "bias": "768"} if kind == "LayerNormalization" else {"scale": "768"}
    small = dict.fromkeys(vectors, "8")
    return Rule(
        name=f"runtime.sum_before_{kind.lower()}",
        formula=f"{kind}(x + skip)",
        pattern=_normalised(kind, added),
        replace=_normalised(kind, summed),
        emits={"added": summed},
        refines=True,
        guards=(may_have_one_shape,),
        exactness=Exactness.EXACT,
        source=SOURCE,
        proof=Proof(
            shapes={"x": "b s 8", "skip": "b s 8", **small},
            attributes={"normalisation": [{"axis": -1, "epsilon": 1e-5}]},
            typical=({"x": "1 128 768", "skip": "1 128 768", **vectors},),
            redundant={
                "guard may_have_one_shape": "Sum broadcasts as Add does; the runtime fuses nothing where they do"
            },
            opset=23,
        ),
    )


RULES = [_sum_before("LayerNormalization"), _sum_before("RMSNormalization")]
