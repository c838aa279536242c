"""Fold Pad before, and Slice behind, a Conv or pool into its pads.

conv(pad(x, p)) = conv(x, pads + p)                          zeros around the spatial axes
averagepool(pad(x, p)) = averagepool(x, pads + p)            zeros that count as elements
maxpool(pad(x, p)) = maxpool(x, pads + p)                    numbers no higher than any other, as zeros around positive numbers
slice(conv(x), p) = conv(x, pads - p)                        of a stride of 1, as causal convolutions are written
slice(convtranspose(x), p) = convtranspose(x, pads + p)

Other zeros before a MaxPool stay: `patterns.ort_workarounds` keeps the runtime from folding them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import is_nonzero
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Op, all_attributes, attr, ms, op, opt, redundant, var

from .._rule_test_inputs import KERNEL
from ._test_instances import BARE, PADDED

SOURCE = "ONNX operators Pad, Conv, AveragePool and MaxPool"

x, weight, bias, residual, axes = (var(name) for name in ("x", "weight", "bias", "residual", "axes"))


def _are_known(numbers: Any, facts: Facts) -> bool:
    return isinstance(numbers, tuple | list) and all(isinstance(number, int) and number >= 0 for number in numbers)


def _is_constant(mode: Any, facts: Facts) -> bool:
    return mode in (None, "constant")


padded = op.Pad(
    x,
    opt(axes),
    pads=attr("border", _are_known, "at least 0"),
    constant_value=attr("filling"),
    mode=attr("mode", _is_constant, "constant"),
).kept()


def border_of(match: Match) -> tuple[list[int], list[int]] | None:
    """The padding before and behind each axis; `None` if it is not known."""
    rank, border = match.rank("x"), match["border"]
    if rank is None:
        return None
    where: Any = range(rank)
    if match.get("axes") is not None:
        known = match.facts.ints(match["axes"])
        where = () if known is None else known.elements
    if not where or len(border) != 2 * len(where) or not all(isinstance(axis, int) for axis in where):
        return None
    front, back = [0] * rank, [0] * rank
    for number, axis in enumerate(where):
        front[axis], back[axis] = border[number], border[number + len(where)]
    return front, back


def _pads(match: Match) -> list[int] | None:
    """The padding of the window and the border together; `None` if either is not known, or not spatial."""
    border, window = border_of(match), match["window"]
    automatic = window.get("auto_pad", "NOTSET")
    if border is None or automatic not in ("NOTSET", "VALID"):
        return None
    front, back = border
    spatial = len(front) - 2
    before = list((window.get("pads") if automatic == "NOTSET" else None) or [0] * 2 * spatial)
    if spatial < 1 or any((*front[:2], *back[:2])) or len(before) != 2 * spatial:
        return None
    return [one + other for one, other in zip(before, [*front[2:], *back[2:]], strict=True)]


def pads_known_axes(match: Match) -> Refusal | None:
    """The pads are known, and of spatial axes only."""
    return (
        None if _pads(match) is not None else match.refuse("attribute", "border", "numbers that pad spatial axes alone")
    )


def with_zeros(match: Match) -> Refusal | None:
    """The Pad is with zeros."""
    return match.unless_value("filling", match["filling"] in (None, 0), 0)


def with_the_lowest(match: Match) -> Refusal | None:
    """No element is lower than the padding, so that the padding is never a maximum."""
    values, filling = match.facts.range(match["x"]), match["filling"] or 0
    low = filling == -np.inf or (values is not None and filling <= values.low)
    return match.unless_value("filling", bool(low), "no higher than any element")


def has_elements(match: Match) -> Refusal | None:
    """The image is provably not empty: the kernels of pools refuse an empty one, however it is padded."""
    shape = match.shape("x") or ()
    wanting = [axis for axis in range(2, len(shape)) if not is_nonzero(shape[axis])]
    return match.refuse_dimension("x", wanting[0], "greater than 0") if wanting else None


@redundant(KERNEL)
def is_narrow(match: Match) -> Refusal | None:
    """No window lies in the padding alone, which the kernels of pools refuse."""
    kernel, pads = match["window"].get("kernel_shape") or (), _pads(match) or []
    narrow = len(pads) == 2 * len(kernel) and all(
        pad < size for pad, size in zip(pads, (*kernel, *kernel), strict=True)
    )
    return None if narrow else match.refuse("attribute", "border", "less than the kernel")


def has_no_gaps(match: Match) -> Refusal | None:
    """The window is not dilated: it might read padding alone, on both sides of a narrow image."""
    gaps = any(step != 1 for step in match["window"].get("dilations") or ())
    return match.refuse("attribute", "window", "windows without gaps", "dilated ones") if gaps else None


def rounds_down(match: Match) -> Refusal | None:
    """The pool rounds its output size down."""
    return (
        None
        if not match["window"].get("ceil_mode")
        else match.refuse("needless", "root", found="it has windows that hang over")
    )


def counts_zeros(match: Match) -> Refusal | None:
    """The pool has no padding of its own that its averages leave out."""
    window = match["window"]
    own = any(window.get("pads") or ()) and window.get("auto_pad", "NOTSET") == "NOTSET"
    return (
        match.refuse("attribute", "window", "count_include_pad=1", "count_include_pad=0")
        if own and not window.get("count_include_pad")
        else None
    )


def gives_no_indices(match: Match) -> Refusal | None:
    """The output with indices is not used."""
    others = [output for output in match["pool"].producer().outputs[1:] if output.name]
    return match.refuse("needless", "root", found="its indices are asked for") if others else None


def _pool(kind: str) -> Op:
    made: Op = getattr(op, kind)(padded, attributes=all_attributes("window")).named("pool")
    return made


_CHANGED: dict[str, Any] = {"attributes": all_attributes("window"), "pads": _pads, "auto_pad": lambda match: None}


def _rule_test(*windows: dict[str, Any], filling: list[float | None]) -> RuleTest:
    shapes = {"x": "n 3 6 6", "weight": "4 3 3 3", "bias": "4", "residual": "n 4 7 6"}
    others: dict[str, Any] = {"mode": ["constant"], "window": [*windows]}
    return RuleTest(
        shapes=(shapes, {**shapes, "axes": "2"}),
        attributes=(
            {"border": [(0, 0, 1, 2, 0, 0, 2, 0)], "filling": filling, **others},
            {"border": [(1, 2, 2, 0)], "filling": filling[-1:], **others},
        ),
        typical=({"x": "1 64 56 56", "weight": "64 64 3 3", "bias": "64"},),
        opset=20,  # the axes came with opset 18
        constants={"axes": [-1, 2]},
        counterexamples={
            "one that cuts off": Variation(attributes={"border": (0, 0, -1, 0, 0, 0, 0, 0)}, shapes={"residual": None}),
            "a reflection": Variation(attributes={"mode": "reflect"}),
        },
    )


def _positive(build: Any) -> ir.Value:
    """The sizes of the numbers of an input."""
    made: ir.Value = build.node("Abs", [build.input("numbers", build.dims("x"))]).outputs[0]
    return made


def _maximum() -> RuleTest:
    windows = ({"kernel_shape": (3, 3)}, {"kernel_shape": (3, 4), "pads": (0, 1, 0, 1), "strides": (2, 1)})
    rule_test = _rule_test(*windows, filling=[-np.inf, -0.5, 0.0])
    return dataclasses.replace(
        rule_test,
        inputs={"x": _positive},
        counterexamples={
            **rule_test.counterexamples,
            "numbers above some elements": Variation(attributes={"filling": 0.5}),
            "with gaps, over one column": Variation(
                attributes={
                    "window": {"kernel_shape": (3, 2), "dilations": (1, 2)},
                    "border": (0, 0, 1, 1, 0, 0, 2, 1),
                },
                shapes={"x": "n 3 6 1"},
            ),
        },
    )


def _pad_rule(name: str, pattern: Op, replace: Op, test: RuleTest, *guards: Guard) -> Rule:
    return Rule(
        name=f"conv.{name}",
        pattern=pattern,
        replace=replace,
        guards=(pads_known_axes, *guards),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=test,
    )


def _trimmed(match: Match) -> list[int] | None:
    """The padding that is left when each trimmed element is one less of it; `None` if that is not known, or negative."""
    shapes, window = match.shapes("layer", "root"), match["window"]
    starts, where = match["starts"], match["axes"]
    if isinstance(shapes, Refusal) or window.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    before, after = shapes
    spatial = len(before) - 2
    pads = list(window.get("pads") or [0] * 2 * spatial)
    strides = window.get("strides") or [1] * spatial
    for start, axis in zip(starts, range(len(starts)) if where is None else where, strict=False):
        trimmed = before[axis] - after[axis]
        front, back = axis - 2, axis - 2 + spatial
        if front < 0 or strides[front] != 1 or not isinstance(start, int) or not isinstance(trimmed, int) or start < 0:
            return None
        pads[front] -= start
        pads[back] -= trimmed - start
    return pads if min(pads) >= 0 else None


def _trimmed_more(match: Match) -> list[int] | None:
    """The padding of a ConvTranspose with what is trimmed besides; `None` if that is not known."""
    shapes, window = match.shapes("layer", "root"), match["window"]
    starts, where = match["starts"], match["axes"]
    given = window.get("auto_pad", "NOTSET") != "NOTSET" or window.get("output_shape")
    if isinstance(shapes, Refusal) or given or match["steps"] not in (None, (1,) * len(starts)):
        return None
    before, after = shapes
    spatial = len(before) - 2
    pads = list(window.get("pads") or [0] * 2 * spatial)
    for start, axis in zip(starts, range(len(starts)) if where is None else where, strict=False):
        trimmed = before[axis] - after[axis]
        if not isinstance(start, int) or start < 0 or not isinstance(trimmed, int) or trimmed < start:
            return None
        if axis % len(before) < 2 and trimmed:
            return None
        if axis % len(before) > 1:
            pads[axis % len(before) - 2] += start
            pads[axis % len(before) - 2 + spatial] += trimmed - start
    return pads


def trims_a_known_number(match: Match) -> Refusal | None:
    """The Slice removes a known number of elements along spatial axes, and leaves some."""
    if _trimmed_more(match) is None:
        return match.refuse("attribute", "starts", "known, as is what is trimmed off spatial axes alone")
    if not all(map(is_nonzero, (match.shape("root") or ())[2:])):
        return match.refuse("shape", "root", "one that is not empty: a convolution cannot make an empty result")
    return None


def trims_padding(match: Match) -> Refusal | None:
    """The Slice removes no more elements than padding adds, along spatial axes of stride 1."""
    found = match["steps"] in (None, (1,) * len(match["starts"])) and _trimmed(match) is not None
    if found and not all(map(is_nonzero, (match.shape("root") or ())[2:])):
        return match.refuse("shape", "root", "one that is not empty: a convolution cannot make an empty result")
    return None if found else match.refuse("attribute", "starts", "known, and to trim no more than padding")


trimmed = op.Slice(
    op.Conv(x, weight, opt(bias), attributes=all_attributes("window")).named("layer"),
    **{name: attr(name) for name in ("starts", "ends", "axes", "steps")},
)


RULES = [
    _pad_rule(
        "fold_pad",
        op.Conv(padded, weight, opt(bias), attributes=all_attributes("window")),
        op.Conv(x, weight, opt(bias), **_CHANGED),
        _rule_test(BARE, {**PADDED, "strides": (2, 1)}, filling=[None, 0.0]),
        with_zeros,
    ),
    _pad_rule(
        "fold_pad_into_fused_conv",
        ms.FusedConv(padded, weight, opt(bias), opt(residual), attributes=all_attributes("window")),
        ms.FusedConv(x, weight, opt(bias), opt(residual), **_CHANGED),
        _rule_test({**BARE, "activation": "Relu"}, filling=[None, 0.0]),
        with_zeros,
    ),
    _pad_rule(
        "fold_pad_into_average_pool",
        _pool("AveragePool"),
        op.AveragePool(x, **_CHANGED, count_include_pad=1),
        _rule_test(
            {"kernel_shape": (3, 3)},
            {"kernel_shape": (3, 4), "pads": (0, 1, 0, 1), "count_include_pad": 1, "strides": (2, 1)},
            filling=[None, 0.0],
        ),
        with_zeros,
        counts_zeros,
        rounds_down,
        has_elements,
        is_narrow,
    ),
    _pad_rule(
        "fold_pad_into_max_pool",
        _pool("MaxPool"),
        op.MaxPool(x, **_CHANGED),
        _maximum(),
        with_the_lowest,
        rounds_down,
        has_elements,
        is_narrow,
        has_no_gaps,
        gives_no_indices,
    ),
    Rule(
        name="conv.fold_slice_into_pads",
        pattern=trimmed,
        replace=op.Conv(x, weight, opt(bias), attributes=all_attributes("window"), pads=_trimmed),
        guards=(trims_padding,),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=(
                {"x": "n 3 6 6", "weight": "4 3 3 3", "bias": "4"},
                {"x": "n 3 7", "weight": "4 3 3", "bias": "4"},
            ),
            attributes=(
                {"window": [PADDED], "starts": [(1, 0)], "ends": [(9, -1)], "axes": [(2, 3)], "steps": [None, (1, 1)]},
                {
                    "window": [{"pads": (2, 2)}],
                    "starts": [(0,)],
                    "ends": [(-2,)],
                    "axes": [(2,)],
                    "steps": [None, (1,)],
                },
            ),
            counterexamples={
                "more than was padded": Variation(attributes={"starts": (2, 0)}),
                "every second row": Variation(attributes={"steps": (1, 2)}),
                "of strides": Variation(attributes={"window": {**PADDED, "strides": (2, 2)}}),
            },
        ),
    ),
    Rule(
        name="conv.fold_slice_into_conv_transpose_pads",
        pattern=op.Slice(
            op.ConvTranspose(x, weight, opt(bias), attributes=all_attributes("window")).named("layer"),
            **{name: attr(name) for name in ("starts", "ends", "axes", "steps")},
        ),
        replace=op.ConvTranspose(x, weight, opt(bias), attributes=all_attributes("window"), pads=_trimmed_more),
        guards=(trims_a_known_number,),
        exactness=Exactness.ROUNDING,
        source="ONNX operator ConvTranspose",
        test=RuleTest(
            shapes=(
                {"x": "n 3 5 6", "weight": "3 4 3 3", "bias": "4"},
                {"x": "n 3 7", "weight": "3 4 3", "bias": "4"},
            ),
            attributes=(
                {
                    "window": [{}, {"strides": (2, 3), "pads": (1, 0, 0, 1), "output_padding": (1, 0)}],
                    "starts": [(1, 0)],
                    "ends": [(6, -1)],
                    "axes": [(2, 3), (-2, -1)],
                    "steps": [None, (1, 1)],
                },
                {
                    "window": [{"strides": (2,)}],
                    "starts": [(0,)],
                    "ends": [(-1,)],
                    "axes": [(2,)],
                    "steps": [None, (1,)],
                },
            ),
            counterexamples={
                "every second row": Variation(attributes={"steps": (1, 2)}),
                "fewer channels": Variation(attributes={"axes": (1, 3)}),
            },
        ),
    ),
]
