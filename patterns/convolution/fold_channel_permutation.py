"""Fold a Gather, Slice or shuffle of channels before a Conv into its weights, and a Slice of channels behind it.

conv(x[:, indices], W) = conv(x, W')       W'[:, c] the sum of W[:, i] over the positions i of c among the indices
conv(rearrange(x, b (p c) ... -> b (c p) ...), W) = conv(x, rearrange(W, o (c p) ... -> o (p c) ...))
conv(x, W, b)[:, from : to] = conv(x, W[from : to], b[from : to])

Rationale: images come as BGR instead of RGB, and pixels that became channels in the order of one framework or another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Pattern, all_attributes, attr, computed, const, op, opt, var

from . import _conv_weights as layers
from ._test_instances import BARE, PADDED

SOURCE = "a convolution is linear in its input"

Places = Callable[[Match], Sequence[int] | None]

x, apart, together = layers.x, var("to"), var("back")


def _channels(match: Match) -> int | None:
    shape = match.shape("x")
    return shape[1] if shape is not None and len(shape) > 2 and isinstance(shape[1], int) else None


def _gathered(match: Match) -> Sequence[int] | None:
    """The channels that a Gather takes, as they are counted from the front."""
    places, channels = match.const("places"), _channels(match)
    if channels is None or match["axis"] not in (1, 1 - (match.rank("x") or 0)) or places.ndim != 1:
        return None
    return [int(place) + channels * (place < 0) for place in places]


def _sliced(match: Match) -> Sequence[int] | None:
    """The channels that a Slice takes."""
    channels, rank = _channels(match), match.rank("x")
    return None if channels is None or rank is None else _within(match, channels, rank)


def _within(match: Match, channels: int, rank: int) -> Sequence[int] | None:
    """The places along the axis of the channels that a Slice of this axis alone takes."""
    known = (match["starts"], match["ends"], match["axes"], match["steps"] or (1,))
    if any(one is None or len(one) != 1 or not isinstance(one[0], int) for one in known):
        return None
    start, end, axis, step = (one[0] for one in known)
    return range(*slice(start, end, step).indices(channels)) if axis in (1, 1 - rank) and step else None


def _shuffled(match: Match) -> Sequence[int] | None:
    """The channels of x in the order of those behind two axes of them that were swapped."""
    shapes = match.shapes("x", "apart", "mapped")
    if isinstance(shapes, Refusal):
        return None
    before, apart, after = shapes
    perm = list(match["perm"] or ())
    if before != after or apart[:1] != before[:1] or perm != [0, 2, 1, *range(3, len(apart))]:
        return None
    groups, size, channels = *apart[1:3], before[1]
    if (
        not (isinstance(groups, int) and isinstance(size, int) and isinstance(channels, int))
        or groups * size != channels
    ):
        return None
    made: list[int] = np.arange(channels).reshape(groups, size).T.ravel().tolist()
    return made


def _summed(match: Match, places: Sequence[int]) -> Any:
    """The weights for the channels as they were."""
    array = match.const("weight")
    made = np.zeros((array.shape[0], max(places) + 1, *array.shape[2:]))
    for index, place in enumerate(places):
        made[:, place] += array[:, index]
    with np.errstate(over="ignore"):
        return made.astype(array.dtype)


def _reads(places: Places) -> Guard:
    def reads_every_channel(match: Match) -> Refusal | None:
        """The Conv has one group and reads each channel of x, so that NaN and infinity neither appear nor vanish."""
        if refused := layers.unless_layer(match):
            return refused
        found, channels = places(match), _channels(match)
        if found is None or channels is None or sorted({*found}) != list(range(channels)):
            return match.refuse("condition", "mapped", "something that takes each channel")
        if layers.groups(match) != 1 or layers.input_channels(match) != len(found):
            return match.refuse("condition", "layer", "a convolution of one group")
        return match.unless_value("weight", bool(np.all(np.isfinite(_summed(match, found)))), "finite when summed")

    return reads_every_channel


def _before(name: str, mapped: Pattern, places: Places, test: RuleTest) -> Rule:
    def weights(match: Match) -> Any:
        found = places(match)
        assert found is not None
        return _summed(match, found)

    return Rule(
        name=f"conv.fold_channel_{name}",
        pattern=layers.convolution(mapped),
        replace=op.Conv(x, computed("weight", weights), opt(layers.bias), attributes=all_attributes("conv")),
        guards=(_reads(places), layers.growth_is_bounded),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=test,
    )


def takes_filters(match: Match) -> Refusal | None:
    """The Slice takes known channels, at least one, and the Conv has one group."""
    if refused := layers.unless_layer(match):
        return refused
    if layers.groups(match) != 1 or not _taken(match):
        return match.refuse("condition", "layer", "a convolution of one group, of which known channels are taken")
    return None


def _taken(match: Match) -> Sequence[int]:
    return _within(match, layers.output_channels(match), len(match.const("weight").shape)) or ()


def _left(name: str) -> Pattern:
    """The numbers of the filters that are left; nothing if there is no such input."""
    return computed(name, lambda match: None if match[name] is None else match.const(name)[[*_taken(match)]])


_SLICE = {name: attr(name) for name in ("starts", "ends", "axes", "steps")}
_WEIGHTS = {"weight": "4 4 3 3", "bias": "4"}

RULES = [
    _before(
        "gather",
        op.Gather(x, const("places"), axis=attr("axis")).named("mapped"),
        _gathered,
        RuleTest(
            shapes=({"x": "n 4 6 6", "places": "4", **_WEIGHTS}, {"x": "n 3 6 6", "places": "4", **_WEIGHTS}),
            attributes=({"axis": [1, -3], "conv": [PADDED]}, {"axis": [1], "conv": [BARE]}),
            constants={"places": [2, 0, 1, -1]},
            counterexamples={"not all of them": Variation(constants={"places": [2, 0, 1, 1]})},
        ),
    ),
    _before(
        "reverse",
        op.Slice(x, **_SLICE).named("mapped"),
        _sliced,
        RuleTest(
            shapes={"x": "n 4 6 6", **_WEIGHTS},
            attributes={"starts": [(-1,)], "ends": [(-9,)], "axes": [(1,)], "steps": [(-1,)], "conv": [PADDED]},
        ),
    ),
    _before(
        "shuffle",
        op.Reshape(op.Transpose(op.Reshape(x, apart).named("apart"), perm=attr("perm")), together).named("mapped"),
        _shuffled,
        RuleTest(
            shapes={"x": "n 6 4 5", "to": "5", "back": "4", "weight": "4 6 3 3", "bias": "4"},
            attributes={"perm": [(0, 2, 1, 3, 4)], "conv": [PADDED]},
            constants={"to": [0, 2, 3, 4, 5], "back": [0, 6, 4, 5]},
        ),
    ),
    Rule(
        name="conv.fold_output_channel_slice",
        pattern=op.Slice(layers.convolution(), **_SLICE).named("mapped"),
        replace=op.Conv(x, _left("weight"), _left("bias"), attributes=all_attributes("conv")),
        guards=(takes_filters, layers.growth_is_bounded),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "n 4 6 6", **_WEIGHTS},
            attributes={
                "starts": [(1,), (-3,)],
                "ends": [(3,), (99,)],
                "axes": [(1,), (-3,)],
                "steps": [None, (1,), (2,)],
                "conv": [PADDED],
            },
            counterexamples={
                "rows": Variation(attributes={"axes": (2,)}),
                "none": Variation(attributes={"ends": (0,), "starts": (0,)}),
            },
        ),
    ),
]
