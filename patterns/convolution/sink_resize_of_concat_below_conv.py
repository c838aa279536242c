"""Sink an enlarging Resize of Concat operands below the Conv with a 1x1 kernel behind the Concat.

conv(concat(resize(x), y), concat(V, W), b) = resize(conv(x, V)) + conv(y, W, b)

where the weights are a single tap and the Resize makes larger images. An interpolation is a mean of pixels whose weights sum up
to 1. A linear map of the channels, with its bias, commutes with it.

Rationale: heads of segmentation networks map features of several sizes so (SegFormer, arXiv:2105.15203).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.linear_maps import leaves_channels
from ortfuse.analysis.linear_maps.windows import window
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import (
    Match,
    Pattern,
    all_attributes,
    attr,
    computed,
    const,
    op,
    opt,
    redundant,
    rest,
    var,
)

from .._rule_test_inputs import COST
from ._enlarging_resize import becomes_larger, enlarged

weight, bias = const("weight"), var("bias")
joined = op.Concat(rest("parts"), axis=attr("axis")).named("joined")


def _channels(match: Match) -> list[int]:
    """The channels of each part; none if they are not known, or the parts differ elsewhere, as a Concat takes empty ones, too."""
    shapes = [match.facts.shape(part) or () for part in match["parts"]]
    if any((*shape[:1], *shape[2:]) != (*shapes[0][:1], *shapes[0][2:]) for shape in shapes):
        return []
    found = [shape[1] for shape in shapes if len(shape) > 2 and isinstance(shape[1], int)]
    whole = match.const("weight").shape
    return found if len(found) == len(shapes) and len(whole) == len(shapes[0]) and sum(found) == whole[1] else []


def _resizes(match: Match) -> list[ir.Node | None]:
    """The Resize of each part; `None` if none makes the map provably less work before it."""
    outputs = len(match.const("weight"))
    found: list[ir.Node | None] = []
    for part, channels in zip(match["parts"], _channels(match), strict=False):
        node = part.producer()
        taken = node is not None and outputs <= channels and len(part.uses()) == 1 and not part.is_graph_output()
        found.append(
            node if taken and leaves_channels(node, match.facts) and becomes_larger(node, match.facts) else None
        )
    return found


def is_a_map_of_channels(match: Match) -> Refusal | None:
    """The Concat is along channels of known number, and the Conv has a 1x1 kernel, without strides or padding."""
    rank = match.rank("joined")
    if rank is None or match["axis"] not in (1, 1 - rank) or not _channels(match):
        return match.refuse(
            "condition", "joined", "images of one size with known numbers of channels, joined along these"
        )
    shape = match.const("weight").shape
    found = window(match["conv"], shape[2:])
    if found is None or found.groups != 1 or not found.is_single_tap:
        return match.refuse("condition", "layer", "a convolution of a single tap, without padding, strides or groups")
    return None


@redundant(COST)
def has_enlarged_parts(match: Match) -> Refusal | None:
    """Some operand is a Resize that provably enlarges its input, with no fewer channels than the result."""
    if any(_resizes(match)):
        return None
    return match.refuse("needless", "joined", found="no image becomes provably larger")


def _weight(match: Match, places: Sequence[slice]) -> Any:
    array = match.const("weight")
    return np.concatenate([array[:, place] for place in places], axis=1)


def _mapped(match: Match) -> Pattern:
    """The sum of what the parts are mapped to, each before it is enlarged."""
    ends = np.cumsum(_channels(match)).tolist()
    places = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    found = list(zip(match["parts"], places, _resizes(match), strict=True))
    others = [(match.capture(f"part{place.start}", part), place) for part, place, node in found if node is None]
    biased = [opt(bias)]
    terms: list[Pattern] = []
    if others:
        images = [part for part, _ in others]
        image = images[0] if len(images) == 1 else op.Concat(*images, axis=1)
        terms.append(_layer(image, [place for _, place in others], biased))
        biased = []
    for _, place, node in found:
        if node is not None:
            image = match.capture(f"image{place.start}", node.inputs[0])  # type: ignore[arg-type]
            terms.append(enlarged(match, node, _layer(image, [place], biased), len(match.const("weight"))))
            biased = []
    return functools.reduce(lambda one, other: one + other, terms)


def _layer(image: Pattern, places: Sequence[slice], biased: Sequence[Any]) -> Pattern:
    part = computed(f"weight{places[0].start}", lambda match: _weight(match, places))
    made: Pattern = op.Conv(image, part, *biased, attributes=all_attributes("conv"))
    return made


# Proof

_TWICE = np.array([1.0, 1.0, 2.0, 2.0], np.float32)
_MEANS = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
_CORNERS = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
_NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
_SPELLINGS = ("one of two", "the last of three", "all", "a known size")


def _concat_operands(build: Any) -> Sequence[ir.Value]:
    """Six channels at twice the size of the images of four channels that some are enlarged from."""
    batch = build.dims("batch")[0]
    spelled = build.chooser.pick("parts", _SPELLINGS)

    def image(name: str, channels: int, factor: int = 1) -> ir.Value:
        made: ir.Value = build.input(name, [batch, channels, 3 * factor, 4 * factor])
        return made

    def twice(small: ir.Value, how: dict[str, Any]) -> ir.Value:
        factors = build.constant(_TWICE, ir.DataType.FLOAT)
        made: ir.Value = build.node("Resize", [small, None, factors], how).outputs[0]
        return made

    if spelled == 0:
        return [twice(image("a", 4), _MEANS), image("b", 2, 2)]
    if spelled == 1:
        return [image("a", 1, 2), image("b", 1, 2), twice(image("c", 4), _NEAREST)]
    if spelled == 2:
        return [twice(image("a", 3), _CORNERS), twice(image("b", 3), _MEANS)]
    small, large = image("a", 4), image("b", 2, 2)
    rows = build.node("Shape", [large], {"end": 1}).outputs[0]
    sizes = build.node("Concat", [rows, build.constant(np.array([4, 6, 8]), ir.DataType.INT64)], {"axis": 0})
    return [large, build.node("Resize", [small, None, None, sizes.outputs[0]], _MEANS).outputs[0]]


RULES = [
    Rule(
        name="conv.sink_resize_through_concat",
        formula="Conv(Concat(Resize(x), y), W, b), W a single tap",
        pattern=op.Conv(joined, weight, opt(bias), attributes=all_attributes("conv")).named("layer"),
        replace=_mapped,
        makes=("Conv", "Resize", "Concat", "Add"),
        guards=(is_a_map_of_channels, has_enlarged_parts),
        exactness=Exactness.ROUNDING,
        source="arXiv:2105.15203",
        test=RuleTest(
            shapes={"weight": "3 6 1 1", "bias": "3", "batch": "n"},
            inputs={"parts": _concat_operands},
            attributes={"axis": [1, -3], "conv": [{}]},
            counterexamples={
                "of several taps": Variation(shapes={"weight": "3 6 3 3"}),
                "with strides": Variation(attributes={"conv": {"strides": (2, 2)}}),
                "of groups": Variation(shapes={"weight": "4 3 1 1", "bias": "4"}, attributes={"conv": {"group": 2}}),
            },
        ),
    )
]
