"""Decompose NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss for targets without kernels for them.

The runtime would inline their definitions, which move the classes to the last axis and back, whatever is known of the labels.
The formulas are those of `fuse_losses`, in the other direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Op, Pattern, attr, built, computed, op, opt, var

from .._shared_guards import ints

SOURCE = "ONNX operators NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss"
OPERATORS = {"nll": "NegativeLogLikelihoodLoss", "cross_entropy": "SoftmaxCrossEntropyLoss"}
OUTPUTS = {"nll": 1, "cross_entropy": 2}

x, labels, weight = var("x"), var("labels"), var("weight")
reduction = attr("reduction", lambda text, facts: text in ("none", "sum", "mean"), "none, sum or mean")


def ranks_are_known(match: Match) -> Refusal | None:
    """The scores have a known rank of at least 2, and classes along the second axis."""
    rank = match.rank("x")
    return None if rank is not None and rank >= 2 else match.refuse("rank", "x", "at least 2")


def _of_labels(name: str, number: int) -> Pattern:
    """A label, as the element type of labels has it."""
    return computed(name, lambda match: np.asarray(number, match.facts.dtype(match["labels"]).numpy()))


def _number(number: float) -> Pattern:
    return computed(f"{number:g}", lambda match: np.asarray(number, match.facts.dtype(match["x"]).numpy()))


def _ignored(match: Match) -> int | None:
    """The label that is ignored, if there can be one."""
    number, dtype = match["ignored"], match.dtype("labels")
    known = match.facts.range(match["labels"])
    if number is None or dtype is None or not np.iinfo(dtype.numpy()).min <= number <= np.iinfo(dtype.numpy()).max:
        return None
    return number if known is None or known.low <= number <= known.high else None


def _spelled(match: Match, scores: Pattern, axis: int) -> Pattern:
    """The loss of scores whose classes are along `axis`."""
    ignored, share = _ignored(match), None
    hidden = None if ignored is None else op.Equal(labels, _of_labels("ignored", ignored))
    safe = labels if hidden is None else op.Where(hidden, _of_labels("class", 0), labels)
    axes = computed("axes", lambda match: ints([axis]))
    loss: Pattern = op.Neg(op.Squeeze(op.GatherElements(scores, op.Unsqueeze(safe, axes), axis=axis), axes))
    if match["weight"] is not None:
        share = op.Gather(weight, safe, axis=0)
        loss = op.Mul(loss, share)
        share = share if hidden is None else op.Where(hidden, _number(0), share)
    elif hidden is not None:
        share = op.Where(hidden, _number(0), _number(1))
    if hidden is not None:
        loss = op.Where(hidden, _number(0), loss)
    if match["reduction"] == "none":
        return loss
    if match["reduction"] != "sum" and share is None:
        return op.ReduceMean(loss, keepdims=0)
    total = op.ReduceSum(loss, keepdims=0)
    return total if match["reduction"] == "sum" else op.Div(total, op.ReduceSum(share, keepdims=0))


def _classes_last(match: Match) -> Pattern:
    """The logarithms of probabilities, with classes along the last axis: LogSoftmax is slow along any other."""
    rank = match.rank("x")
    assert rank is not None
    scores = x if rank == 2 else op.Transpose(x, perm=[0, *range(2, rank), 1])
    return op.LogSoftmax(scores, axis=rank - 1)


def _classes_second(match: Match) -> Pattern:
    """The same as they are to be returned."""
    rank = match.rank("x") or 0
    return log_probs if rank == 2 else op.Transpose(log_probs, perm=[0, rank - 1, *range(1, rank - 1)])


def _spelled_cross_entropy(match: Match) -> Pattern:
    return _spelled(match, log_probs, (match.rank("x") or 0) - 1)


log_probs = built(_classes_last, makes=("Transpose", "LogSoftmax"))
_MAKES = (
    "Equal", "Where", "Unsqueeze", "GatherElements", "Squeeze", "Neg", "Gather", "Mul", "ReduceSum", "ReduceMean", "Div",
)  # fmt: skip


def _loss(name: str, **attributes: Any) -> Op:
    made: Op = getattr(op, OPERATORS[name])(x, labels, opt(weight), outputs=OUTPUTS[name], **attributes)
    return made


SHAPE_SETS: Sequence[dict[str, str | int]] = (
    {"x": "n 4", "labels": "n", "weight": "4"},
    {"x": "n 4 s 3", "labels": "n s 3", "weight": "4"},
)


def _rule_test(**attributes: Any) -> RuleTest:
    return RuleTest(shapes=SHAPE_SETS, inputs={"labels": "int64"}, attributes=attributes)


def _spelled_rule(name: str, replace: Any, pattern: Op, **more: Any) -> Rule:
    return Rule(
        name=f"loss.decompose_{name}", formula=f"{OPERATORS[name]}(x, labels)", pattern=pattern, replace=replace,
        makes=(*_MAKES, *log_probs.makes), spells_out=True, guards=(ranks_are_known,), exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=_rule_test(ignored=[None, 2, -100], reduction=["mean", "sum", "none"]), **more,
    )  # fmt: skip


RULES = [
    _spelled_rule(
        "nll",
        lambda match: _spelled(match, x, 1),
        _loss("nll", ignore_index=attr("ignored"), reduction=reduction),
    ),
    _spelled_rule(
        "cross_entropy",
        _spelled_cross_entropy,
        _loss("cross_entropy", ignore_index=attr("ignored"), reduction=reduction).naming(log_probs=1),
        intermediates={"log_probs": built(_classes_second, makes=("Transpose",))},
    ),
]
