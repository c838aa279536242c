"""Fold Mul, Div, Add, Sub and Neg with constants around BatchNormalization into its statistics.

f bn(x) + t = bn'(x)       scale' = f scale, shift' = f shift + t          as Caffe scales after it normalises
bn(f x + t) = bn'(x)       scale' = f scale, mean' = (mean - t) / f        as images of bytes are normalised

This is for a BatchNormalization before an activation or a padding with zeros; a Conv folds the others into its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Op, Pattern, attr, computed, op, var

from . import _conv_weights as layers
from ._test_instances import NORMALISATION, POSITIVE, STATISTICS

SOURCE = "arXiv:1502.03167"

MOST_DEVIATIONS = 64.0
"""How many deviations what is added may be: BatchNormalization computes x s - mean s, which then loses digits."""

x = layers.x


def _channels(match: Match) -> int:
    return len(match.const("scale"))


def _of(match: Match, name: str) -> Any:
    return match.const(name).astype(np.float64)


def _map(match: Match) -> layers.Affine:
    found = layers.arithmetic(match, _channels(match), match.rank("x") or 0)
    assert isinstance(found, layers.Affine)
    return found


def _new(formula: Callable[[Match, layers.Affine], Any]) -> Callable[[Match], Any]:
    def numbers(match: Match) -> Any:
        with np.errstate(all="ignore"):
            return formula(match, _map(match)).astype(match.const("scale").dtype)

    return numbers


_scale = _new(lambda match, map_: _of(match, "scale") * map_.factor)
_shift = _new(lambda match, map_: _of(match, "shift") * map_.factor + map_.offset)
_mean = _new(lambda match, map_: (_of(match, "mean") - map_.offset) / map_.factor)


def maps_channels(match: Match) -> Refusal | None:
    """The constant is one number, or one for each channel of the statistics."""
    shape, channels = match.shape("x"), match.shape("scale")
    if shape is None or len(shape) < 2 or channels is None or len(channels) != 1 or shape[1] != channels[0]:
        return match.refuse("shape", "x", "one with as many channels as there are statistics")
    if isinstance(found := layers.normalisation(match, _channels(match)), Refusal):
        return found
    found = layers.arithmetic(match, _channels(match), len(shape))
    return found if isinstance(found, Refusal) else None


def statistics_are_held(match: Match) -> Refusal | None:
    """The new statistics fit their type."""
    scale, before = np.abs(_scale(match)), _of(match, "scale")
    held = np.isfinite(scale) & ((scale >= np.finfo(scale.dtype).tiny) | (before == 0))
    others = all(bool(np.all(np.isfinite(made(match)))) for made in (_shift, _mean))
    return match.unless_value("scale", bool(np.all(held)) and others, "such that its type holds the new ones")


def offset_is_moderate(match: Match) -> Refusal | None:
    """The shift is not many standard deviations."""
    found = layers.normalisation(match, _channels(match))
    assert isinstance(found, layers.Affine)
    far = float(np.abs(found.factor * _map(match).offset).max(initial=0.0))
    return match.unless_value("mapped", far <= MOST_DEVIATIONS, f"moved by at most {MOST_DEVIATIONS:.0f} deviations")


_kept = {name: var(name) for name in STATISTICS}


def _batch_norm(**changed: Pattern) -> Op:
    made: Op = op.BatchNormalization(x, *({**_kept, **changed}[name] for name in STATISTICS), epsilon=attr("epsilon"))
    return made


def _arithmetic(y: Pattern) -> Pattern:
    return layers.one_of((*layers.factors(y), *layers.offsets(y)))


def _batchnorm_rule(name: str, formula: str, pattern: Pattern, replace: Pattern, *guards: Any) -> Rule:
    return Rule(
        name=f"batchnorm.fold_{name}_scale_shift",
        formula=formula,
        pattern=pattern,
        replace=replace,
        guards=(layers.only_the_result, maps_channels, statistics_are_held, *guards),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=(
                {"x": "n 3 4 5", **dict.fromkeys(STATISTICS, "3"), **dict.fromkeys(layers.OPERANDS, "3 1 1")},
                {"x": "n 4 s", **dict.fromkeys(STATISTICS, "4"), **dict.fromkeys(layers.OPERANDS, "1")},
                {"x": "n 4", **dict.fromkeys(STATISTICS, "4"), **dict.fromkeys(layers.OPERANDS, "4")},
            ),
            attributes=NORMALISATION,
            constants={**POSITIVE, "factor": "positive", "divisor": "positive"},
            redundant={"check of attribute training": layers.CANNOT_TRAIN},
        ),
    )


scale, shift, mean = computed("new_scale", _scale), computed("new_shift", _shift), computed("new_mean", _mean)

RULES = [
    _batchnorm_rule(
        "output",
        f"x * s, x = BatchNormalization(y); {layers.LIKEWISE}",
        _arithmetic(layers.batch_norm(x).named("mapped")),
        _batch_norm(scale=scale, shift=shift),
    ),
    _batchnorm_rule(
        "input",
        f"BatchNormalization(x * s); {layers.LIKEWISE}",
        layers.batch_norm(_arithmetic(x)).named("mapped"),
        _batch_norm(scale=scale, mean=mean),
        offset_is_moderate,
    ),
]
