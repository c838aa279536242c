"""Softmax and its logarithm, decomposed.

softmax(x)     = exp(x - max(x)) / sum(exp(x - max(x)))
log_softmax(x) = x - max(x) - log(sum(exp(x - max(x)))) = log(softmax(x)) = x - logsumexp(x)

With the maximum subtracted, a row with an infinity gives NaN on both sides. The last two forms of log_softmax differ: the
logarithm of a softmax that underflows is infinite, and logsumexp of a row with an infinity is infinite, not NaN.
"""

from __future__ import annotations

from ortfuse.pattern import Match, attr, op, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

from ..normal_form.reduction import axes

SOURCE = "ONNX operator LogSoftmax"

x = var("x")
maximum = op.ReduceMax(x, axes=axes, keepdims=1)
shifted = (x - maximum).named("shifted")
powers = op.Exp(shifted)
total = op.ReduceSum(powers, axes=axes, keepdims=1)


def last_axis_alone(match: Match) -> Refusal | None:
    """There is one axis, the last: before opset 13 Softmax means this only for the last axis, and it is the fastest."""
    rank = match.rank("x")
    if rank is None:
        return match.refuse("rank", "x")
    return match.unless_value("axes", match["axes"] == (rank - 1,), "the last one alone")


def axis_is_last(match: Match) -> Refusal | None:
    """The axis of the Softmax is the last one."""
    rank = match.rank("x")
    return match.unless_value("axis", rank is not None and match["axis"] in (-1, rank - 1), "the last one")


def last_axis(match: Match) -> int:
    """The last axis, counted from the front as the oldest opsets require."""
    return (match.rank("x") or 0) - 1


_PROOF = Proof(
    shapes=({"x": "b s 8"}, {"x": "b 5"}),
    attributes=({"axes": [(-1,), (2,)]}, {"axes": [(1,)]}),
    dtypes=("float32", "float64"),
    counterexamples={"all axes, not given": Variation(shapes={"x": "8"}, attributes={"axes": None})},
    typical=({"x": "1 12 128 128"}, {"x": "1 1000"}, {"x": "16 50257"}),
)
RULES = [
    Rule(
        name="softmax.decomposed",
        formula="exp(x - max(x)) / sum(exp(x - max(x)))",
        pattern=powers / total,
        replace=op.Softmax(x, axis=last_axis),
        guards=(last_axis_alone,),
        exactness=Exactness.ROUNDING,
        source="ONNX operator Softmax",
        allow_extra_operands=True,
        proof=_PROOF,
    ),
    Rule(
        name="log_softmax.decomposed",
        formula="x - max(x) - log(sum(exp(x - max(x))))",
        pattern=shifted - op.Log(total) | x - maximum - op.Log(total),
        replace=op.LogSoftmax(x, axis=last_axis),
        guards=(last_axis_alone,),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        proof=_PROOF,
    ),
    Rule(
        name="log_softmax.log",
        pattern=op.Log(op.Softmax(x, axis=attr("axis"))),
        replace=op.LogSoftmax(x, axis=last_axis),
        guards=(axis_is_last,),
        exactness=Exactness.APPROXIMATE,
        source=SOURCE,
        proof=Proof(
            shapes=({"x": "b s 8"}, {"x": "b 5"}),
            attributes={"axis": [-1]},
            dtypes=("float32", "float64"),
            typical=_PROOF.typical,
        ),
    ),
    Rule(
        name="log_softmax.logsumexp",
        pattern=x - op.ReduceLogSumExp(x, axes=axes, keepdims=1),
        replace=op.LogSoftmax(x, axis=last_axis),
        guards=(last_axis_alone,),
        exactness=Exactness.APPROXIMATE,
        source=SOURCE,
        proof=_PROOF,
    ),
]
