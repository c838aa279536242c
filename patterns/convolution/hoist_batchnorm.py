"""Hoist BatchNormalization above Concat, Slice, pools, ReduceMean or a flattened Transpose, to Convs that fold it.

bn(concat(a, b, ...)) = concat(bn_a(a), bn_b(b), ...)      each with the statistics of its own channels
bn(reshape(transpose(a))) = reshape(transpose(bn(a)))      where the channels become the columns of a matrix
bn(slice(a)) = slice(bn(a))                                if all channels stay
bn(mean(a)) = mean(bn(a))                                  over spatial axes, all of them or the windows of a pool
bn(max(a)) = max(bn(a))                                    over the windows of a pool, if all factors are above 0
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import (
    Guard,
    Match,
    Pattern,
    all_attributes,
    attr,
    built,
    computed,
    op,
    opt,
    redundant,
    var,
)

from .._rule_test_inputs import COST
from .._shared_guards import ints
from . import _conv_weights as layers
from ._test_instances import NORMALISATION, STATISTICS

SOURCE = "arXiv:1502.03167"

PARTS = ("a", "b", "c", "d")
a, b, c, d = (var(name) for name in PARTS)
joined = op.Concat(a, b, opt(c), opt(d), axis=attr("axis")).named("joined")


def _operand_names(match: Match) -> list[str]:
    return [name for name in PARTS if match.get(name) is not None]


def _sizes(match: Match) -> list[int]:
    """The number of channels of each part."""
    return [
        shape[1] for shape in map(match.shape, _operand_names(match)) if shape is not None and isinstance(shape[1], int)
    ]


def joins_channels(match: Match) -> Refusal | None:
    """The Concat is along channels of known number, and the operands agree in all other sizes."""
    shapes = match.shapes(*_operand_names(match))
    if isinstance(shapes, Refusal):
        return shapes
    first = shapes[0]
    if len(first) < 2 or match["axis"] != 1:
        return match.refuse("attribute", "axis", 1)
    for name, shape in zip(_operand_names(match), shapes, strict=True):
        # Where they disagree, the runtime passes over empty parts.
        if len(shape) != len(first) or (shape[0], *shape[2:]) != (first[0], *first[2:]):
            return match.refuse("shape", name, (first[0], "*", *first[2:]))
        if not isinstance(shape[1], int):
            return match.refuse_dimension(name, 1, "a known number of channels")
    return match.unless_shape((sum(_sizes(match)),), *STATISTICS)


def _is_layer_of_its_own(value: ir.Value, match: Match) -> bool:
    """Whether a convolution that takes the normalisation computes the value, which nothing else needs."""
    node = value.producer()
    if (
        node is None
        or node.op_type not in ("Conv", "ConvTranspose")
        or len(value.uses()) > 1
        or value.is_graph_output()
    ):
        return False
    return all(one is None or match.facts.is_const(one) for one in node.inputs[1:])


def of_convolutions(*names: str) -> Callable[[Match], Refusal | None]:
    """The captured values are convolutions with constant weights, and needed here alone."""

    @redundant(COST)
    def guard(match: Match) -> Refusal | None:
        for name in names:
            if match.get(name) is not None and not _is_layer_of_its_own(match[name], match):
                return match.refuse("needless", name, found="it is no convolution that takes the normalisation")
        return None

    return guard


def _normalised(match: Match, part: Pattern, start: int, size: int) -> Pattern:
    def taken(name: str) -> Pattern:
        return computed(name, lambda match: match.const(name)[start : start + size])

    made: Pattern = op.BatchNormalization(part, *map(taken, STATISTICS), epsilon=attr("epsilon"))
    return made


def _each_normalised(match: Match) -> Pattern:
    """The parts normalised, joined."""
    sizes = _sizes(match)
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    parts = [
        _normalised(match, var(name), *place) for name, *place in zip(_operand_names(match), starts, sizes, strict=True)
    ]
    made: Pattern = op.Concat(*parts, axis=1)
    return made


starts, ends, axes, steps = (var(name) for name in ("starts", "ends", "axes", "steps"))


def keeps_channels(match: Match) -> Refusal | None:
    """All channels stay."""
    shapes = match.shapes("a", "sliced")
    if isinstance(shapes, Refusal):
        return shapes
    axes_ = match.facts.ints(match["axes"])
    if axes_ is None or any(axis in (1, 1 - len(shapes[0])) for axis in axes_.elements):
        return match.refuse("value", "axes", "known, and not that of the channels")
    return None


whole = op.BatchNormalization(a, *(var(name) for name in STATISTICS), epsilon=attr("epsilon"))


def is_a_finite_map(match: Match) -> Refusal | None:
    """The statistics have one number for each channel of a, and give a finite scale and shift."""
    shape = match.shape("a")
    if shape is None or len(shape) < 3 or not isinstance(shape[1], int):
        return match.refuse("shape", "a", "one with a known number of channels")
    found = layers.normalisation(match, shape[1])
    return found if isinstance(found, Refusal) else None


def counts_elements_alone(match: Match) -> Refusal | None:
    """Each window averages elements of the image only, no padding."""
    window = match["window"]
    padded = any(window.get("pads") or ()) or window.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    if window.get("count_include_pad") and (padded or window.get("ceil_mode")):
        return match.refuse("attribute", "window", "count_include_pad=0", "count_include_pad=1")
    return None


def reads_elements(match: Match) -> Refusal | None:
    """Each window has elements of the image, not padding alone."""
    window = match["window"]
    padded = any(window.get("pads") or ()) or window.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    gaps = any(step != 1 for step in window.get("dilations") or ())
    if padded and (gaps or window.get("ceil_mode")):
        return match.refuse("attribute", "window", "windows without gaps that end inside", "dilated, or rounded up")
    return None


def keeps_the_largest(match: Match) -> Refusal | None:
    """All factors are above 0, so that maxima stay maxima."""
    found = layers.normalisation(match, len(match.const("scale")))
    if isinstance(found, Refusal):
        return found
    return match.unless_value("scale", bool(np.all(found.factor > 0)), "above 0")


def gives_no_indices(match: Match) -> Refusal | None:
    """The output with indices is not used."""
    others = [output for output in match["pool"].producer().outputs[1:] if output.name]
    return match.refuse("needless", "root", found="its indices are asked for") if others else None


def is_over_spatial_axes(match: Match) -> Refusal | None:
    """The means are over axes behind that of the channels."""
    rank, reduced = match.rank("a"), match["axes"]
    wanted = rank is not None and bool(reduced) and all(axis % rank > 1 for axis in reduced)
    return None if wanted else match.refuse("value", "axes", "known, and behind that of the channels")


def _averaged(name: str, pattern: Pattern, replace: Any, test: RuleTest, *guards: Guard) -> Rule:
    return Rule(
        name=f"conv.hoist_batchnorm_above_{name}",
        formula=layers.formula_of(layers.batch_norm(pattern)),
        pattern=layers.batch_norm(pattern).named("mapped"),
        replace=replace,
        guards=(layers.only_the_result, *guards, is_a_finite_map, of_convolutions("a")),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=test,
    )


means = op.ReduceMean(a, axes=attr("axes"), keepdims=attr("keepdims"))
reduced_axes = computed("reduced", lambda match: ints(match["axes"]))

turned = op.Transpose(a, perm=attr("perm"))
rows = op.Reshape(turned, var("target"), allowzero=attr("allowzero")).named("rows")


def has_channels_as_columns(match: Match) -> Refusal | None:
    """The Transpose moves the channels to the end, and the Reshape merges the other axes."""
    shapes = match.shapes("a", "rows")
    if isinstance(shapes, Refusal):
        return shapes
    rank = len(shapes[0])
    if rank < 2 or list(match["perm"] or ()) != [0, *range(2, rank), 1]:
        return match.refuse("attribute", "perm", "one that moves the second axis to the end")
    wanted = len(shapes[1]) == 2 and shapes[1][1] == shapes[0][1]
    return None if wanted else match.refuse("shape", "rows", ("*", shapes[0][1]))


def _convolved(name: str) -> Callable[[Any], ir.Value]:
    """Makes two channels by a convolution of an input."""

    def make(build: Any) -> ir.Value:
        image = build.input(name, ["n", 2, 6, 6])
        weight = build.constant(0.25 * build.numbers.standard_normal((2, 2, 3, 3)))
        made: ir.Value = build.node("Conv", [image, weight]).outputs[0]
        return made

    return make


def _statistic(build: Any) -> ir.Value:
    """Makes one positive number for each channel of the convolutions."""
    channels = 2 * sum(node.op_type == "Conv" for node in build.graph)
    made: ir.Value = build.constant(0.5 + build.numbers.random(channels))
    return made


def _below_zero(build: Any) -> ir.Value:
    """Makes factors that are not all above 0."""
    numbers = np.array([0.5, -0.75], np.float32)
    made: ir.Value = build.constant(numbers)
    return made


def _rule_test(parts: str, **attributes: Any) -> RuleTest:
    lists = ("starts", "ends", "axes", "steps")
    return RuleTest(
        shapes=dict.fromkeys(lists, "2"),
        attributes={**NORMALISATION, **attributes},
        inputs={**{name: _convolved(f"x_{name}") for name in parts}, **dict.fromkeys(STATISTICS, _statistic)},
        constants=dict(zip(lists, ([1, 0], [-1, 3], [2, 3], [1, 1]), strict=True)),
        redundant={"check of attribute training": layers.CANNOT_TRAIN},
    )


RULES = [
    Rule(
        name="conv.hoist_batchnorm_above_concat",
        formula=layers.formula_of(layers.batch_norm(joined).named("mapped")),
        pattern=layers.batch_norm(joined).named("mapped"),
        replace=built(_each_normalised, makes=("BatchNormalization", "Concat")),
        guards=(layers.only_the_result, joins_channels, of_convolutions(*PARTS)),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=_rule_test("abcd", axis=[1, -3]),
    ),
    Rule(
        name="conv.hoist_batchnorm_above_slice",
        formula=layers.formula_of(
            layers.batch_norm(op.Slice(a, starts, ends, axes, opt(steps)).named("sliced")).named("mapped")
        ),
        pattern=layers.batch_norm(op.Slice(a, starts, ends, axes, opt(steps)).named("sliced")).named("mapped"),
        replace=op.Slice(whole, starts, ends, axes, opt(steps)),
        guards=(layers.only_the_result, keeps_channels, of_convolutions("a")),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=_rule_test("a"),
    ),
    Rule(
        name="conv.hoist_batchnorm_above_flattened_transpose",
        formula=layers.formula_of(layers.batch_norm(rows).named("mapped")),
        pattern=layers.batch_norm(rows).named("mapped"),
        replace=op.Reshape(op.Transpose(whole, perm=attr("perm")), var("target"), allowzero=attr("allowzero")),
        guards=(layers.only_the_result, has_channels_as_columns, of_convolutions("a")),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=dataclasses.replace(
            _rule_test("a", perm=[(0, 2, 3, 1)], allowzero=[0]), shapes={"target": "2"}, constants={"target": [-1, 2]}
        ),
    ),
    _averaged(
        "average_pool",
        op.AveragePool(a, attributes=all_attributes("window")),
        op.AveragePool(whole, attributes=all_attributes("window")),
        _rule_test(
            "a",
            window=[
                {"kernel_shape": (2, 3), "strides": (2, 1)},
                {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": 0},
                {"kernel_shape": (2, 2), "strides": (2, 2), "count_include_pad": 1},
            ],
        ),
        counts_elements_alone,
    ),
    _averaged(
        "max_pool",
        op.MaxPool(a, attributes=all_attributes("window")).named("pool"),
        op.MaxPool(whole, attributes=all_attributes("window")),
        dataclasses.replace(
            _rule_test(
                "a",
                window=[
                    {"kernel_shape": (2, 3), "strides": (2, 1), "ceil_mode": 1},
                    {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)},
                    {"kernel_shape": (2, 2), "dilations": (2, 1)},
                ],
            ),
            counterexamples={
                "of factors below 0": Variation(inputs={"scale": _below_zero}),
                "of padding alone": Variation(
                    attributes={"window": {"kernel_shape": (2, 2), "pads": (1, 1, 1, 1), "dilations": (5, 5)}}
                ),
            },
        ),
        gives_no_indices,
        reads_elements,
        keeps_the_largest,
    ),
    _averaged("global_average_pool", op.GlobalAveragePool(a), op.GlobalAveragePool(whole), _rule_test("a")),
    _averaged(
        "reduce_mean",
        means,
        (
            op.ReduceMean(whole, reduced_axes, keepdims=attr("keepdims")),
            op.ReduceMean(whole, axes=attr("axes"), keepdims=attr("keepdims")),
        ),
        dataclasses.replace(
            _rule_test("a", axes=[(2, 3), (-1,)], keepdims=[0, 1]),
            never_empty={"n": "the kernel of ReduceMean keeps the axes of an empty tensor"},
        ),
        is_over_spatial_axes,
    ),
]
