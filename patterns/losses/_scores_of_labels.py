"""Scores of labels, ignored labels and logarithms of probabilities, which the rules of losses share."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite.pattern import Match, Op, Pattern, const, op

from .decompose_losses import labels, x


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


def _is_one_number(value: ir.Value, facts: Facts) -> bool:
    return facts.scalar(value) is not None


hidden = op.Equal(labels, const("number", _is_one_number, "one number")).kept()
kept = op.Not(hidden).kept()


def of_kept(value: Pattern, otherwise: Pattern | float) -> Pattern:
    """One value for the labels that count, another one for those that are ignored."""
    return op.Where(kept, value, otherwise).kept() | op.Where(hidden, otherwise, value).kept()


safe = of_kept(labels, const("class", _is_one_number, "one number"))


def column(scores: Pattern, of: Pattern = labels) -> Op:
    """The score of its label in each row, with an axis for it."""
    made: Op = op.GatherElements(scores, op.Unsqueeze(of, axes=(1,)).kept(), axis=1)
    return made


def picked(scores: Pattern, of: Pattern = labels) -> Op:
    """The score of its label in each row."""
    made: Op = op.Squeeze(column(scores, of), axes=(1,))
    return made


logs = op.LogSoftmax(x, axis=1).named("logs")
