"""Merge or drop small nodes in masks, positions and angles, whose dispatch costs more than their computation.

cos(concat(x, y))[:h] = cos(x)          x of size h
shape(x)[a : b] = shape(x, start=a, end=b)
activation(x W) = activation(gemm(x, W))          x with two axes: the runtime computes Gemm and some activations as one

The rules run in the last pass, after `simplify_data_movement`: patterns of fusions have the spellings of exporters.
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, fixed, op, redundant, var

from .._rule_test_inputs import COST

PASS = "target_decompositions"

_SHAPE_HAS_ENDS = 15
"""The opset from which on Shape has `start` and `end`."""

x, y = var("x"), var("y")


def agree_elsewhere(match: Match) -> Refusal | None:
    """The parts have the same sizes but along the last axis; the runtime passes over empty ones of any size."""
    shapes = match.shapes("part", "y")
    if isinstance(shapes, Refusal):
        return shapes
    return None if shapes[0][:-1] == shapes[1][:-1] else match.refuse("shape", "y", (*shapes[0][:-1], "any"))


def _curve(operand: Pattern) -> Pattern:
    return (op.Cos(operand) | op.Sin(operand)).named("curve")


part = var("part", "... h")
half_of_curve = Rule(
    name="op_count.drop_concat_and_slice_around_cos_or_sin",
    formula="f(Concat(part, y))[:h], f Cos or Sin",
    pattern=_curve(op.Concat(part, y, axis=-1).kept())[..., :"h"],
    replace=_curve(part),
    guards=(agree_elsewhere,),
    exactness=Exactness.ROUNDING,
    source="ONNX operators Cos and Sin",
    test=RuleTest(shapes={"h": 4, "part": "b s 4", "y": "b s 3"}),
)


def _told(match: Match) -> range:
    """The axes of x whose sizes are taken; none if that is not known, or if they are not next to each other."""
    cuts = [match[name] for name in ("starts", "ends")]
    rank, axes, steps = match.rank("x"), match["axes"] or (0,), match["steps"] or (1,)
    if rank is None or axes[0] not in (0, -1) or any(len(cut) != 1 or not isinstance(cut[0], int) for cut in cuts):
        return range(0)
    return range(rank)[slice(cuts[0][0], cuts[1][0])] if tuple(steps) == (1,) else range(0)


def takes_sizes_in_a_row(match: Match) -> Refusal | None:
    """Sizes of axes next to each other are taken, at least one; no opset is raised for it."""
    node = match.root.producer()
    if node is not None and match.facts.version(node) < _SHAPE_HAS_ENDS:
        return match.refuse("needless", "root", found="an older opset, in which a Shape is of all axes")
    return None if _told(match) else match.refuse("values_unknown", "root", "sizes between known axes, at least one")


def _sizes() -> Rule:
    taken = {name: attr(name) for name in ("starts", "ends", "axes", "steps")}
    return Rule(
        name="op_count.fold_slice_into_shape",
        formula="shape(x)[a : b]",
        pattern=op.Slice(op.Shape(x).kept(), **taken),
        replace=op.Shape(x, start=lambda match: _told(match).start, end=lambda match: _told(match).stop),
        guards=(takes_sizes_in_a_row,),
        exactness=Exactness.EXACT,
        source="ONNX operator Shape",
        test=RuleTest(
            shapes={"x": "b s 3"},
            opset=18,
            attributes={
                "starts": [(0,), (1,), (-2,)],
                "ends": [(2,), (-1,), (9,)],
                "axes": [(0,), (-1,)],
                "steps": [None, (1,)],
            },
            counterexamples={"none": Variation(attributes={"starts": (2,), "ends": (1,)})},
        ),
    )


def in_float32(match: Match) -> Refusal | None:
    """The product is of float32, for which the runtime has the operator of both."""
    return match.unless_dtype("rows", ir.DataType.FLOAT)


@redundant(COST)
def has_columns(match: Match) -> Refusal | None:
    """There is more than one column: a single one is for the rules of vectors."""
    shape = match.shape("weight")
    single = shape is not None and shape[-1] == 1
    return match.refuse("needless", "weight", found="it has a single column") if single else None


def _activated(product: Pattern) -> Pattern:
    leaky = op.LeakyRelu(product, alpha=attr("alpha"))
    return (op.Relu(product) | op.Sigmoid(product) | op.Tanh(product) | leaky).named("activated")


rows, weight = var("rows", "b k"), fixed("weight", "k n")
activated_product = Rule(
    # As exporters write a linear layer without bias, in squeeze-and-excitation (arXiv:1709.01507) for example.
    name="op_count.matmul_to_gemm_before_activation",
    formula="f(rows @ weight), f Relu, Sigmoid, Tanh or LeakyRelu",
    pattern=_activated(op.MatMul(rows, weight)),
    replace=_activated(op.Gemm(rows, weight)),
    guards=(in_float32, has_columns),
    exactness=Exactness.ROUNDING,
    source="ONNX operators MatMul and Gemm",
    test=RuleTest(shapes={"k": 4, "n": 3}, attributes={"alpha": [0.2]}),
)


RULES = [
    half_of_curve,
    activated_product,
    _sizes(),
]
