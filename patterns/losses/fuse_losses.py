"""Fuse NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.

nll(x, labels) = -x[labels]          cross_entropy(x, labels) = nll(log_softmax(x), labels)
nll(x, labels, w) = w[labels] nll(x, labels)          nll(x, labels, ignored) = where(labels = ignored, 0, nll(x, labels))
mean(nll) = sum(nll) / sum(w[labels], 1 without w, 0 where ignored)

Each step is a rule: the loss of each label, its weight, the ignored labels, the sum, the mean. The operators have kernels in few
builds. Elsewhere `--force` asks for them (`--force loss=SoftmaxCrossEntropyLoss`), and the runtime executes their definitions.

Labels are taken to be numbers of classes, as the operators demand. GatherElements would count those below 0 from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Op, Pattern, attr, computed, const, op, opt, redundant, scalar

from .._rule_test_inputs import SHAPES
from .._shared_guards import array_like
from .decompose_losses import OPERATORS, OUTPUTS, SHAPE_SETS, SOURCE, labels, reduction, weight, x


def reduces_all(match: Match) -> Refusal | None:
    """The sum or mean is over all labels."""
    axes, rank = match["axes"], match.rank("labels")
    whole = not axes or (rank is not None and list(axes) == list(range(rank)))
    return match.unless_value("axes", whole, "all of them")


def a_label_for_each(match: Match) -> Refusal | None:
    """There is a label for all that the scores have but classes: GatherElements takes fewer, too."""
    shapes = match.shapes("x", "labels")
    if isinstance(shapes, Refusal):
        return shapes
    return match.unless_shape((*shapes[0][:1], *shapes[0][2:]), "labels")


def normalises_classes_alone(match: Match) -> Refusal | None:
    """Before opset 13 LogSoftmax is over all axes from the given one on."""
    rank, version = match.rank("x"), match.facts.version(match["logs"].producer())
    return None if rank == 2 or (rank is not None and version >= 13) else match.refuse("rank", "x", 2)


def a_weight_for_each(match: Match) -> Refusal | None:
    """The weights are those of the classes."""
    shape = match.shape("x")
    return match.refuse("shape", "x") if shape is None else match.unless_shape(shape[1:2], "weight")


def _is_one_number(value: ir.Value, facts: Facts) -> bool:
    return facts.scalar(value) is not None


def the_same_are_ignored(match: Match) -> Refusal | None:
    """Require that the count is that of the labels that the loss does not ignore."""
    number = None if match["number"] is None else match.facts.scalar(match["number"])
    return match.unless_value("ignored", match["ignored"] == number, "absent" if number is None else number)


hidden = op.Equal(labels, const("number", _is_one_number, "one number")).kept()
kept = op.Not(hidden).kept()


def of_kept(value: Pattern, otherwise: Pattern | float) -> Pattern:
    """One value for the labels that count, another one for those that are ignored."""
    return op.Where(kept, value, otherwise).kept() | op.Where(hidden, otherwise, value).kept()


safe = of_kept(labels, const("class", _is_one_number, "one number"))


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


def _steps(name: str) -> list[Rule]:
    """From the loss of each label to that of all, each with its weight, those ignored left out."""
    ignored: dict[str, Any] = {"ignore_index": attr("ignored")}
    whole: dict[str, Any] = {"axes": attr("axes"), "keepdims": 0}
    count = op.ReduceSum(op.Cast(kept, to=1), **whole) | op.Cast(op.ReduceSum(op.Cast(kept, to=7), **whole), to=1)
    shares = op.Gather(weight, labels).kept() | of_kept(op.Gather(weight, safe).kept(), 0)
    safely = _loss(name, "none", opt(weight), safe)
    return [
        _rule(f"fold_weights_into_{name}", _loss(name, "none", None) * op.Gather(weight, labels).kept(),
              _loss(name, "none", weight), a_weight_for_each),
        _rule(f"fold_where_into_{name}_ignore_index", op.Where(kept, safely, 0) | op.Where(hidden, 0, safely),
              _loss(name, "none", opt(weight), ignore_index=lambda match: int(match.const("number").item()))),
        _rule(f"fold_sum_into_{name}", op.ReduceSum(_loss(name, "none", opt(weight), **ignored), **whole),
              _loss(name, "sum", opt(weight), **ignored), reduces_all, ignored=(None, 2)),
        _rule(f"fold_mean_into_{name}", op.ReduceMean(_loss(name, "none", None), **whole),
              _loss(name, "mean", None), reduces_all, weighted=False),
        _rule(f"fold_mean_of_counted_into_{name}", _loss(name, "sum", None, **ignored) / count,
              _loss(name, "mean", None, **ignored), reduces_all, the_same_are_ignored, weighted=False, ignored=(2,)),
        _rule(f"fold_weighted_mean_into_{name}", _loss(name, "sum", weight, **ignored) / op.ReduceSum(shares, **whole),
              _loss(name, "mean", weight, **ignored), reduces_all, the_same_are_ignored, ignored=(None, 2)),
    ]  # fmt: skip


def _column(scores: Pattern, of: Pattern = labels) -> Op:
    """The score of its label in each row, with an axis for it."""
    made: Op = op.GatherElements(scores, op.Unsqueeze(of, axes=(1,)).kept(), axis=1)
    return made


def picked(scores: Pattern, of: Pattern = labels) -> Op:
    """The score of its label in each row."""
    made: Op = op.Squeeze(_column(scores, of), axes=(1,))
    return made


logs = op.LogSoftmax(x, axis=1).named("logs")
of_logs = _loss("cross_entropy", reduction, opt(weight), ignore_index=attr("ignored"))
negative = op.NegativeLogLikelihoodLoss(logs, labels, opt(weight), reduction=reduction, ignore_index=attr("ignored"))


def _picks(name: str, scores: Pattern, *guards: Guard) -> list[Rule]:
    """The loss of each label, and the sum and mean of all where the minus is taken of those."""
    made = []
    gathered = "gather_of_log_softmax" if scores is logs else "gather_of_log_probabilities"
    for spelling, kind in (
        (gathered, "none"),
        ("squeeze_of_scaled_gather", "none"),
        ("negated_sum_of_gather", "sum"),
        ("negated_mean_of_gather", "mean"),
    ):
        loss, factor = _loss(name, kind, None), scalar("factor")
        more: dict[str, Any] = {"intermediates": {"logs": loss[1]}} if scores is logs else {}
        of_all: tuple[Guard, ...] = ()
        spelled: Pattern
        if kind != "none":
            reduce = partial(op.ReduceSum if kind == "sum" else op.ReduceMean, axes=attr("axes"), keepdims=0)
            column = _column(scores).named("column")
            spelled = (factor * reduce(picked(scores)) | factor * reduce(column) | reduce(factor * column)).named(
                "spelled"
            )
            of_all = (reduces_column,)
        else:
            spelled = (
                op.Squeeze(factor * _column(scores), axes=(1,)) if spelling != gathered else factor * picked(scores)
            )
            more["allow_extra_operands"] = spelling == gathered
        made.append(_rule(f"{spelling}_to_{name}", spelled, _scaled(loss), a_label_for_each, factor_is_negative,
                          *guards, *of_all, weighted=False, makes=(OPERATORS[name], "Mul"),
                          formula=f"-s {spelled}", scalars={"factor": [-1.0, -0.75]}, **more))  # fmt: skip
    return made


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
    *_steps("cross_entropy"),
    *_steps("nll"),
]
