"""Fold Mul, Div, Add, Sub and Neg with constants through a Pad into the Conv behind it.

conv(pad(s x + t), W, b) = conv(pad(x), W s, b + W t)        pad: reflect, edge or wrap

Such a Pad copies elements, so that it commutes with a map of each element.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, op, opt, var

from .._shared_guards import ints
from . import _conv_weights as layers
from ._test_instances import BARE, PADDED, images
from .fold_input_scale import (
    LINEAR,
    MAPS,
    maps_channels,
    new_bias,
    new_weight,
    offset_is_moderate,
    offset_stays_inside,
    result_is_held,
)
from .fold_pad_and_slice import border_of


def _repeats(mode: Any, facts: Facts) -> bool:
    return mode in ("reflect", "edge", "wrap")


def frames_images(match: Match) -> Refusal | None:
    """The pads are known, and of spatial axes only."""
    found = border_of(match)
    if found is None or any(found[0][:2] + found[1][:2]):
        return match.refuse("attribute", "border", "known numbers, none of them for batches and channels")
    return None


def _pads(match: Match) -> tuple[int, ...]:
    front, back = border_of(match) or ([], [])
    return (*front, *back)


def _mode(match: Match) -> str:
    return str(match["mode"])


def _convolved(framed: Pattern) -> Pattern:
    made: Pattern = op.Conv(framed, new_weight, new_bias, attributes=layers.CONV)
    return made


def _filled(number: float) -> Any:
    return np.full((3, 1, 1), number, np.float32)


def _near(number: float, reach: float) -> Any:
    """An image of numbers that are so far from one number."""
    return (number + reach * np.sin(np.arange(108.0)).reshape(1, 3, 6, 6)).astype(np.float32)


RULES = [
    Rule(
        name="conv.fold_scale_shift_through_pad",
        formula=f"Conv(Pad(x * s), weight, bias), mode reflect, edge or wrap; {layers.LIKEWISE}",
        pattern=layers.convolution(
            op.Pad(
                layers.one_of(MAPS).named("mapped"),
                opt(var("filling")),
                pads=attr("border"),
                mode=attr("mode", _repeats, "reflect, edge or wrap"),
            )
        ),
        replace=(
            _convolved(op.Pad(layers.x, computed("pads", lambda match: ints(_pads(match))), mode=_mode)),
            _convolved(op.Pad(layers.x, pads=_pads, mode=_mode)),
        ),
        guards=(
            maps_channels,
            frames_images,
            offset_stays_inside,
            offset_is_moderate,
            result_is_held,
            layers.growth_is_bounded,
        ),
        exactness=Exactness.ROUNDING,
        source=LINEAR,
        test=RuleTest(
            shapes={**images("n 3 6 6", "4 3 3 3", operands="3 1 1"), "filling": ""},
            attributes={
                "conv": [BARE],
                "border": [(0, 0, 1, 2, 0, 0, 0, 1)],
                "mode": ["reflect", "edge"],
            },
            counterexamples={
                "a frame of zeros": Variation(attributes={"mode": "constant"}),
                "a frame of channels": Variation(attributes={"border": (0, 1, 1, 1, 0, -1, 1, 1), "mode": "edge"}),
                "a term and zeros around it": Variation(options={"(Mul*": "Add"}, attributes={"conv": PADDED}),
                "a term that takes a large number away": Variation(
                    options={"(Mul*": "Add"},
                    constants={"added": _filled(1e5)},
                    fixed={"x": _near(-1e5, 1.0)},
                    sizes={"n": 1},
                ),
                "a factor that the weights cannot hold": Variation(
                    constants={"factor": _filled(3e38)}, fixed={"x": _near(0.0, 2e-38)}, sizes={"n": 1}
                ),
            },
        ),
    )
]
