"""Select the faster of equivalent pools and reductions: GlobalAveragePool, AveragePool, MaxPool, ReduceMean.

globalaveragepool(x) = mean(x) over the spatial axes        averagepool(x) = globalaveragepool(x), a window as large as the image
maxpool(x) = globalmaxpool(x), likewise                     pool(x) over one axis = squeeze(pool(unsqueeze(x)))
mean(reshape(x)) over blocks of pixels = averagepool(x), a window as large as a block

A ReduceMean that drops its axes stays: a Squeeze would be executed besides. MaxPool is not replaced by ReduceMax, and only
by GlobalMaxPool if every element is above -infinity: the kernels differ in what they make of NaN and -infinity.

Rationale: on the CPU, ReduceMean over the last axes takes a half to a quarter of the time of GlobalAveragePool. In the blocked
layout (see `ortfuse.targets.cpu.blocked_layout`) GlobalAveragePool is faster: the image stays in it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.dims import is_nonzero
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Op, Pattern, all_attributes, attr, computed, op, redundant, var

from .._rule_test_inputs import COST
from .._shared_guards import ints, is_not_quantised, snake_case

PASS = "target_decompositions"
TARGETS = ("cpu",)

SOURCE = "ONNX operators GlobalAveragePool, AveragePool, MaxPool and ReduceMean"

x = var("x")


def _spatial(match: Match) -> list[int]:
    return list(range(2, match.rank("x") or 2))


def has_pixels(match: Match) -> Refusal | None:
    """The image is provably not empty: the kernels of pools refuse an empty one."""
    shape = match.shape("x")
    if shape is None or len(shape) < 3:
        return match.refuse("rank", "x", "at least 3")
    wanting = [axis for axis in _spatial(match) if not is_nonzero(shape[axis])]
    return match.refuse_dimension("x", wanting[0], "greater than 0") if wanting else None


def is_image(match: Match) -> Refusal | None:
    """x has spatial axes; GlobalAveragePool itself fails if there is nothing along them."""
    rank = match.rank("x")
    return None if rank is not None and rank >= 3 else match.refuse("rank", "x", "at least 3")


@redundant(COST)
def is_blocked(match: Match) -> Refusal | None:
    """The runtime computes x in its blocked layout."""
    layout = match.target.blocked_layout
    if layout is None:
        return match.refuse("needless", "x", found=f"{match.target.name} has no blocked layout")
    return layout.unless_blocked(match["x"], match.facts)


@redundant(COST)
def is_never_blocked(match: Match) -> Refusal | None:
    """The runtime never computes x in its blocked layout, so that ReduceMean needs no reordering."""
    layout = match.target.blocked_layout
    blocked = layout is not None and layout.may_be_blocked(match["x"], match.facts)
    return match.refuse("needless", "x", found="it may be in the blocked layout") if blocked else None


@redundant(COST)
def is_reordered_once(match: Match) -> Refusal | None:
    """No reordering is needed for the other users of x and for those of the result."""
    layout = match.target.blocked_layout
    if layout is None or layout.reads_blocks(match.root, match.facts):
        return None
    others = layout.leaves_blocks(match["x"], match.facts, match.root.producer())
    return match.refuse("needless", "x", found="it is read outside of the blocked layout too") if others else None


def over_spatial_axes(match: Match) -> Refusal | None:
    """The ReduceMean is over all spatial axes."""
    return match.unless_value("axes", list(match["axes"] or ()) == _spatial(match), "all from the third on")


def reads_everything(match: Match) -> Refusal | None:
    """The window is the whole image, without padding."""
    shape, window = match.shape("x"), match["window"]
    if shape is None or tuple(window.get("kernel_shape") or ()) != shape[2:]:
        return match.refuse("attribute", "window", "a window as large as the image", "another")
    plain = not any(window.get("pads") or ()) and window.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    whole = plain and all(step == 1 for step in window.get("dilations") or ())
    return None if whole else match.refuse("attribute", "window", "nothing padded or left out", "padded or dilated")


def gives_no_indices(match: Match) -> Refusal | None:
    """The output with indices is not used."""
    others = [output for output in match.root.producer().outputs[1:] if output.name]  # type: ignore[union-attr]
    return match.refuse("needless", "root", found="its indices are asked for") if others else None


def _means(match: Match) -> tuple[Any, ...]:
    return tuple(_spatial(match))


def _given(match: Match) -> Any:
    return ints(_spatial(match))


spatial = computed("axes", _given)
mean = (op.ReduceMean(x, spatial, keepdims=1), op.ReduceMean(x, axes=_means, keepdims=1))


def _pool(kind: str) -> Op:
    made: Op = getattr(op, kind)(x, attributes=all_attributes("window"))
    return made


def _pool_rule(name: str, pattern: Pattern, replace: Any, test: RuleTest, *guards: Guard, **more: Any) -> Rule:
    return Rule(
        name=f"pool.{name}",
        pattern=pattern,
        replace=replace,
        guards=guards,
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=test,
        **more,
    )


def _convolved(build: Any) -> ir.Value:
    """An image in the blocked layout."""
    image = build.input("image", build.dims("x"))
    made: ir.Value = build.node("MaxPool", [image], {"kernel_shape": [1, 1]}).outputs[0]
    return made


_IMAGES: Any = ({"x": "n 3 4 5"}, {"x": "n 3 7"})
_WINDOWS: list[dict[str, Any]] = [
    {"window": [{"kernel_shape": (4, 5)}]},
    {"window": [{"kernel_shape": (7,), "strides": (2,)}]},
]
_PADDED = Variation(attributes={"window": {"kernel_shape": (4, 5), "pads": (1, 1, 1, 1)}})
_SMALLER = Variation(attributes={"window": {"kernel_shape": (3, 3)}})
_TYPICAL = ({"x": "1 64 56 56"}, {"x": "1 21 128 128"}, {"x": "8 256 14 14"})
_WHOLE = tuple({"window": {"kernel_shape": (size, size)}} for size in (56, 128, 14))
_CASES = {"padded": _PADDED, "smaller": _SMALLER}


_OF_EVERYTHING = RuleTest(
    shapes=_IMAGES,
    attributes=_WINDOWS,
    typical=_TYPICAL,
    typical_attributes=_WHOLE,
    counterexamples=_CASES,
)


def over_one_axis(match: Match) -> Refusal | None:
    """The pool is over one axis."""
    return match.unless_rank("x", 3)


@redundant(COST)
def is_not_behind_padding(match: Match) -> Refusal | None:
    """There is no Pad before the pool, which the runtime would fold."""
    before = match["x"].producer()
    if before is None or before.op_type != "Pad" or match["window"].get("auto_pad") == "VALID":
        return None
    return match.refuse("needless", "x", found="the runtime makes the Pad part of the pool")


def is_above_minus_infinity(match: Match) -> Refusal | None:
    """No element is -infinity, for which kernels differ."""
    values = match.facts.range(match["x"])
    low = values is not None and values.low > -math.inf
    return None if low else match.refuse("values_unknown", "x", "above -infinity")


def _positive(build: Any) -> ir.Value:
    """The sizes of the numbers of an input."""
    made: ir.Value = build.node("Abs", [build.input("numbers", build.dims("x"))]).outputs[0]
    return made


def _of_the_lowest(*sizes: int) -> dict[str, Variation]:
    """A counterexample: images of -infinity."""
    lowest = np.full((1, *sizes), -np.inf, np.float32)
    return {"of -infinity": Variation(inputs={"x": "float32"}, sizes={"n": 1}, fixed={"x": lowest})}


# Means of blocks

blocks = op.Reshape(x, var("split"), allowzero=attr("allowzero")).named("blocks")

_SPLIT: dict[tuple[int, ...], tuple[int | None, int | None]] = {(3, 5): (3, 5), (3,): (3, None), (4,): (None, 4)}
"""By the axes of a block that means are taken over, where its rows and its columns are."""


def _window(match: Match) -> tuple[int, int] | None:
    """The size of a block; `None` if x is not an image whose rows or columns are split in two and averaged."""
    shape, parts = match.shape("x"), match.shape("blocks")
    places = _SPLIT.get(tuple(sorted(axis % len(parts) for axis in match["axes"]))) if parts else None
    if shape is None or parts is None or places is None or len(shape) != 4:
        return None
    found: list[int] = []
    whole, rest = [*parts[:2]], list(parts[2:])
    for place in places:
        inner = 1 if place is None else parts[place]
        if not rest or not isinstance(inner, int) or inner < 1:
            return None
        found.append(inner)
        whole.append(rest.pop(0) * inner)
        rest = rest if place is None else rest[1:]
    return None if rest or tuple(whole) != shape else (found[0], found[1])


def are_blocks(match: Match) -> Refusal | None:
    """The Reshape splits rows, columns or both of an image into blocks of known size, which the ReduceMean averages."""
    return match.unless_value("axes", _window(match) is not None, "those within blocks of the pixels of an image")


def _into_blocks(build: Any) -> ir.Value:
    """A target that splits rows and columns into twos, where that comes out even."""
    _, channels, *sizes = build.dims("x")
    parts = [[int(size)] if int(size) % 2 else [int(size) // 2, 2] for size in sizes]
    made: ir.Value = build.constant(ints([0, int(channels), *parts[0], *parts[1]]))
    return made


def _of_blocks(match: Match) -> Pattern:
    window = _window(match)
    made: Pattern = op.AveragePool(x, kernel_shape=window, strides=window)
    return made


_FIRST = {"kernel_shape": 1, "strides": 1, "dilations": 1}


def _over_two_axes(kind: str) -> Any:
    def made(match: Match) -> Pattern:
        window = dict(match["window"])
        for name, one in _FIRST.items():
            if name in window:
                window[name] = (one, *window[name])
        if "pads" in window:
            front, back = window["pads"]
            window["pads"] = (0, front, 0, back)
        axis = computed("axis", lambda match: ints([2]))
        squeezed: Pattern = op.Squeeze(getattr(op, kind)(op.Unsqueeze(x, axis), **window), axis)
        return squeezed

    return made


def _two_axes(kind: str, more: dict[str, Any], *guards: Guard, **test: Any) -> Rule:
    far = {"kernel_shape": (3,), "strides": (2,), "pads": (1, 1), **more}
    return _pool_rule(
        f"{snake_case(kind)}_1d_to_2d",
        _pool(kind),
        _over_two_axes(kind),
        RuleTest(
            shapes={"x": "n 3 9"},
            attributes={"window": [{"kernel_shape": (3,)}, far, {"kernel_shape": (2,), "auto_pad": "SAME_UPPER"}]},
            typical=({"x": "1 3 1000"}, {"x": "1 256 200"}, {"x": "1 512 1500"}),
            **test,
        ),
        over_one_axis,
        *guards,
        is_not_behind_padding,
        is_not_quantised,
        makes=("Unsqueeze", kind, "Squeeze"),
        formula=f"{kind}(x) over one axis",
    )


RULES = [
    _pool_rule(
        "global_average_pool_to_reduce_mean",
        op.GlobalAveragePool(x),
        mean,
        RuleTest(shapes=_IMAGES, typical=_TYPICAL),
        is_image,
        is_never_blocked,
        is_not_quantised,
    ),
    _pool_rule(
        "full_average_pool_to_reduce_mean",
        _pool("AveragePool"),
        mean,
        _OF_EVERYTHING,
        reads_everything,
        is_never_blocked,
        is_not_quantised,
    ),
    _pool_rule(
        "full_average_pool_to_global_average_pool",
        _pool("AveragePool"),
        op.GlobalAveragePool(x),
        RuleTest(shapes={"x": "n 16 4 5"}, attributes=_WINDOWS[0], inputs={"x": _convolved}),
        reads_everything,
        is_blocked,
        is_not_quantised,
    ),
    _pool_rule(
        "reduce_mean_to_global_average_pool",
        op.ReduceMean(x, axes=attr("axes"), keepdims=1),
        op.GlobalAveragePool(x),
        RuleTest(
            shapes={"x": "n 16 4 5"},
            attributes={"axes": [(2, 3), (-1, -2)]},
            inputs={"x": _convolved},
            never_empty={"n": "the kernel of ReduceMean keeps the axes of an empty tensor"},
        ),
        redundant("only what has pixels is convolved")(has_pixels),
        over_spatial_axes,
        is_blocked,
        is_reordered_once,
        is_not_quantised,
    ),
    _pool_rule(
        "full_max_pool_to_global_max_pool",
        _pool("MaxPool"),
        op.GlobalMaxPool(x),
        dataclasses.replace(
            _OF_EVERYTHING, inputs={"x": _positive}, counterexamples={**_CASES, **_of_the_lowest(3, 4, 5)}
        ),
        reads_everything,
        redundant(COST)(gives_no_indices),
        is_above_minus_infinity,
        is_not_quantised,
    ),
    _pool_rule(
        "block_mean_to_average_pool",
        op.ReduceMean(blocks, axes=attr("axes", lambda found, facts: bool(found), "given"), keepdims=0),
        _of_blocks,
        RuleTest(
            shapes=({"x": "n 3 4 6"}, {"x": "n 3 4 5"}, {"x": "n 3 5 6"}),
            inputs={"split": _into_blocks},
            never_empty={"n": "the kernel of ReduceMean keeps the axes of an empty tensor"},
            attributes=tuple({"axes": axes, "allowzero": [0]} for axes in ([(3, 5), (-1, -3)], [(3,)], [(4,), (-1,)])),
            typical=_TYPICAL,
        ),
        are_blocks,
        has_pixels,
        is_not_quantised,
        makes=("AveragePool",),
        formula="ReduceMean(Reshape(x)) over blocks of pixels",
    ),
    _two_axes("AveragePool", {"count_include_pad": 1}),
    _two_axes(
        "MaxPool",
        {"storage_order": 0},
        redundant(COST)(gives_no_indices),
        is_above_minus_infinity,
        inputs={"x": _positive},
        counterexamples=_of_the_lowest(3, 9),
    ),
]
