"""Fuse NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.

nll(x, labels) = -x[labels]          cross_entropy(x, labels) = nll(log_softmax(x), labels)
nll(x, labels, w) = w[labels] nll(x, labels)          nll(x, labels, ignored) = where(labels = ignored, 0, nll(x, labels))
mean(nll) = sum(nll) / sum(w[labels], 1 without w, 0 where ignored)

Each step is a rule: the loss of each label, its weight, the ignored labels, the sum, the mean. The operators have kernels in few
builds. Elsewhere `--force` asks for them (`--force loss=SoftmaxCrossEntropyLoss`), and the runtime executes their definitions.

No export of a classifier has its loss, so that the pass runs by name (`--patterns contrib.losses`) or for a forced choice.
Labels are taken to be numbers of classes, as the operators demand. GatherElements would count those below 0 from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Op, Pattern, attr, built, computed, op, opt, redundant, scalar

from .._rule_test_inputs import SHAPES
from .._shared_guards import array_like
from ..losses._scores_of_labels import (
    a_label_for_each,
    column,
    hidden,
    kept,
    logs,
    normalises_classes_alone,
    of_kept,
    picked,
    safe,
)
from ..losses.decompose_losses import OPERATORS, OUTPUTS, SHAPE_SETS, SOURCE, labels, reduction, weight, x

PASS = "contrib.losses"


def reduces_all(match: Match) -> Refusal | None:
    """The sum or mean is over all labels."""
    axes, rank = match["axes"], match.rank("labels")
    whole = not axes or (rank is not None and list(axes) == list(range(rank)))
    return match.unless_value("axes", whole, "all of them")


def a_weight_for_each(match: Match) -> Refusal | None:
    """The weights are those of the classes."""
    shape = match.shape("x")
    return match.refuse("shape", "x") if shape is None else match.unless_shape(shape[1:2], "weight")


def the_same_are_ignored(match: Match) -> Refusal | None:
    """Require that the count is that of the labels that the loss does not ignore."""
    number = None if match["number"] is None else match.facts.scalar(match["number"])
    return match.unless_value("ignored", match["ignored"] == number, "absent" if number is None else number)


def _loss(name: str, reduced: Any, weighted: Pattern | None, of: Pattern = labels, **more: Any) -> Op:
    """One of the operators; `weighted` are its weights, `of` its labels."""
    inputs = [x, of] if weighted is None else [x, of, weighted]
    made: Op = getattr(op, OPERATORS[name])(*inputs, reduction=reduced, outputs=OUTPUTS[name], **more)
    return made


def _rule(name: str, pattern: Pattern, replace: Any, *guards: Guard, weighted: bool = True, ignored: Any = (None,),
          scalars: Mapping[str, Sequence[float]] | None = None, **more: Any) -> Rule:  # fmt: skip
    numbers = {"number": "", "class": ""}
    shapes = [
        {**numbers, **{key: shape for key, shape in one.items() if weighted or key != "weight"}} for one in SHAPE_SETS
    ]
    return Rule(
        name=f"loss.{name}", pattern=pattern, replace=replace, guards=guards, by_definition=True,
        exactness=Exactness.ROUNDING, source=SOURCE,
        test=RuleTest(
            shapes=shapes, scalars=scalars or {}, inputs={"labels": "int64"}, constants={"number": 2, "class": 0},
            attributes=tuple(
                {"axes": axes, "ignored": ignored, "reduction": ["mean", "sum", "none"]}
                for axes in ([None, (0,)], [(0, 1, 2)])
            ),
            never_empty={"*": "the definition of cross entropy reshapes the scores, which the runtime refuses if there are none"},
        ), **more,
    )  # fmt: skip


def _either(reduced: Any, weighted: Pattern | None, of: Pattern = labels, **more: Any) -> Pattern:
    """Any of the operators."""
    return (_loss("cross_entropy", reduced, weighted, of, **more) | _loss("nll", reduced, weighted, of, **more)).named(
        "loss"
    )


def _steps() -> list[Rule]:
    """From the loss of each label to that of all, each with its weight, those ignored left out."""
    ignored: dict[str, Any] = {"ignore_index": attr("ignored")}
    whole: dict[str, Any] = {"axes": attr("axes"), "keepdims": 0}
    count = op.ReduceSum(op.Cast(kept, to=1), **whole) | op.Cast(op.ReduceSum(op.Cast(kept, to=7), **whole), to=1)
    shares = op.Gather(weight, labels).kept() | of_kept(op.Gather(weight, safe).kept(), 0)
    safely = _either("none", opt(weight), safe)
    return [
        _rule("fold_weights", _either("none", None) * op.Gather(weight, labels).kept(), _either("none", weight),
              a_weight_for_each),
        _rule("fold_where_into_ignore_index", op.Where(kept, safely, 0) | op.Where(hidden, 0, safely),
              _either("none", opt(weight), ignore_index=lambda match: int(match.const("number").item()))),
        _rule("fold_sum", op.ReduceSum(_either("none", opt(weight), **ignored), **whole),
              _either("sum", opt(weight), **ignored), reduces_all, ignored=(None, 2)),
        _rule("fold_mean", op.ReduceMean(_either("none", None), **whole), _either("mean", None), reduces_all, weighted=False),
        _rule("fold_mean_of_counted", _either("sum", None, **ignored) / count, _either("mean", None, **ignored),
              reduces_all, the_same_are_ignored, weighted=False, ignored=(2,)),
        _rule("fold_weighted_mean", _either("sum", weight, **ignored) / op.ReduceSum(shares, **whole),
              _either("mean", weight, **ignored), reduces_all, the_same_are_ignored, ignored=(None, 2)),
    ]  # fmt: skip


of_logs = _loss("cross_entropy", reduction, opt(weight), ignore_index=attr("ignored"))
negative = op.NegativeLogLikelihoodLoss(logs, labels, opt(weight), reduction=reduction, ignore_index=attr("ignored"))


def _picks(name: str, scores: Pattern, *guards: Guard) -> list[Rule]:
    """The loss of each label, and the sum or mean of all where the minus is taken of those."""
    factor, columns = scalar("factor"), column(scores).named("column")
    gathered = "gather_of_log_softmax" if scores is logs else "gather_of_log_probabilities"

    def rule(spelling: str, spelled: Pattern, kinds: Sequence[str], *further: Guard, **more: Any) -> Rule:
        losses = [_loss(name, kind, None) for kind in kinds]
        replaced = _one_of(*(built(_scaled(loss), makes=(OPERATORS[name], "Mul")) for loss in losses))
        if scores is logs:
            more["intermediates"] = {"logs": losses[0][1]}
        return _rule(f"{spelling}_to_{name}", spelled, replaced, a_label_for_each, factor_is_negative, *guards, *further,
                     weighted=False, formula=f"-s {spelled}", scalars={"factor": [-1.0, -0.75]}, **more)  # fmt: skip

    def reduced(operator: Callable[..., Pattern]) -> Pattern:
        reduce = partial(operator, axes=attr("axes"), keepdims=0)
        spelled = factor * reduce(picked(scores)) | factor * reduce(columns) | reduce(factor * columns)
        return spelled.named("spelled")

    return [
        rule(gathered, factor * picked(scores), ["none"], allow_extra_operands=True),
        rule("squeeze_of_scaled_gather", op.Squeeze(factor * column(scores), axes=(1,)), ["none"]),
        rule("negated_reduction_of_gather", _one_of(reduced(op.ReduceSum), reduced(op.ReduceMean)), ["sum", "mean"],
             reduces_column),
    ]  # fmt: skip


def _one_of(first: Pattern, *others: Pattern) -> Pattern:
    return (first | others[0]).named("reduced") if others else first


@redundant(SHAPES)
def reduces_column(match: Match) -> Refusal | None:
    """The sum or mean is over all labels, and over the axis of their own if they have one."""
    if not match.choice("spelled"):
        return reduces_all(match)
    axes, rank = match["axes"], match.rank("labels")
    whole = not axes or (rank is not None and list(axes) == list(range(rank + 1)))
    return match.unless_value("axes", whole, "all of them")


def _scaled(loss: Pattern) -> Callable[[Match], Pattern]:
    """The loss, times what the logarithms are multiplied by beside the minus: part of a smoothed loss."""

    def made(match: Match) -> Pattern:
        factor = computed("factor", lambda match: array_like(match, -match["factor"]))
        return loss if match["factor"] == -1 else op.Mul(loss, factor)

    return made


@redundant("the loss times a number below 0 would be right too")
def factor_is_negative(match: Match) -> Refusal | None:
    """Require a negative factor that makes the loss neither infinite nor 0."""
    return match.unless_value("factor", -(2.0**20) <= match["factor"] <= -(2.0**-20), "below 0, of moderate size")


RULES = [
    *_picks("cross_entropy", logs, normalises_classes_alone),
    *_picks("nll", x),
    _rule(
        "nll_of_log_softmax_to_cross_entropy",
        negative,
        of_logs,
        normalises_classes_alone,
        intermediates={"logs": of_logs[1]},
    ),
    *_steps(),
]
