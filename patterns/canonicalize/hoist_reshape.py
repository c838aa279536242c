"""Hoist a Reshape, Squeeze or Unsqueeze above operators to where it cancels, or becomes the axes and keepdims of a reduction.

unsqueeze(factor sum(x)) = factor sum(x, keepdims=1)
squeeze(sqrt(sum(x, keepdims=1))) = sqrt(sum(x, keepdims=0))
reshape(softmax(squeeze(x) + y)) = softmax(reshape(x) + reshape(y))

Operators tell in the registry how they are reshaped (`ortfuse.rewrite.hoist`). Hoisted only if fewer nodes of data movement are
left, so that no order of rewrites goes on without end.

Rationale: torch.export writes variances and full means with Reshape, and one-dimensional pools as two-dimensional ones.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.node_parameters import attribute_value
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.traits import REDUCES, has
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.hoist.plan_reshape_hoist import NONE, Made, Plan, Planner, may_pass, parts, saved
from ortfuse.rewrite.hoist.reduction_axes_in_other_shape import reduction_of
from ortfuse.rewrite.hoist.replacement import as_pattern
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, op, redundant, var

from .._rule_test_inputs import COST

x = var("x", may_pass, "the result of an operator that can be made in another shape")


def _plan(match: Match, *, computes_targets: bool = False) -> Plan | None:
    """The plan that makes x in the shape of the root; `None` if it saves nothing."""
    shape, node = match.shape("root"), match.root.producer()
    if shape is None or node is None:
        return None
    plan, cost = Planner(match.facts, match["shape"] if computes_targets else None).plan(match["x"], shape, node)
    return plan if cost < NONE and saved(plan, node, match.facts) > 0 else None


def _blocked_mean(plan: Plan, match: Match) -> ir.Value | None:
    """The image of which a plan makes the mean without its axes, if the runtime may compute it in its blocked layout."""
    layout = match.target.blocked_layout
    for part in parts(plan) if layout is not None else ():
        if isinstance(part, Made) and part.node.op_type == "ReduceMean" and not part.attributes["keepdims"]:
            image = part.node.inputs[0]
            was_kept = attribute_value(part.node, "keepdims", match.facts)
            if layout is not None and image is not None and was_kept and layout.may_be_blocked(image, match.facts):
                return image
    return None


@redundant(COST)
def leaves_pools(match: Match) -> Refusal | None:
    """No mean of an image in the blocked layout loses its axes to a Reshape: with them, it is a pool that reads the blocks.

    TensorFlow's exporters write Squeeze behind means that no pool of theirs was.
    """
    node = match.root.producer()
    plan = None if node is None or node.op_type == "Squeeze" else _plan(match)
    image = None if plan is None else _blocked_mean(plan, match)
    return None if image is None else match.refuse("needless", "root", found="the mean may be a pool of blocks")


def leaves_fewer_moves(match: Match) -> Refusal | None:
    """Fewer nodes of data movement are left than there are."""
    if match.shape("root") is None:
        return match.refuse("shape", "root")
    if _plan(match) is None:
        return match.refuse("needless", "root", found="nothing above it cancels it")
    return None


def _hoisted(match: Match) -> Pattern:
    plan = _plan(match)
    assert plan is not None
    return as_pattern(plan, match)


Build = Any
"""The builder of instances of rule tests."""


def _squeezed(build: Build) -> ir.Value:
    """A value of the shape [b, 1, 3, 4] without its axis of size 1."""
    whole = build.input("whole", build.dims("whole"))
    made: ir.Value = build.node("Squeeze", [whole, build.constant([1])]).outputs[0]
    return made


def _maximum(build: Build) -> ir.Value:
    made: ir.Value = build.node("ReduceMax", [_squeezed(build), build.constant([1])], {"keepdims": 1}).outputs[0]
    return made


_ABOVE: dict[str, Callable[[Build], Sequence[Any]]] = {
    "a reduction": lambda build: ("Relu", [_maximum(build)]),
    "a root": lambda build: ("Sqrt", [_maximum(build)]),
    "a product": lambda build: ("Mul", [_maximum(build), build.constant([0.5, 2.0, 3.0, 4.0])]),
    "a softmax": lambda build: ("Softmax", [_maximum(build)], {"axis": -1}),
    "parts": lambda build: ("Concat", [_maximum(build)] * 2, {"axis": 2}),
}


def _above(build: Build) -> ir.Value:
    kinds = tuple(_ABOVE)
    made: ir.Value = build.node(*_ABOVE[kinds[build.chooser.pick("what is above", kinds)]](build)).outputs[0]
    return made


_AXES = attr("axes")


def reaches_reduction(match: Match) -> Refusal | None:
    """A reduction gets other keepdims: fusions find linear layers and heads by the Reshapes that stand around them."""
    shapes = match.shapes("x", "root")
    if isinstance(shapes, Refusal):
        return shapes
    before, after = ([dim for dim in shape if dim != 1] for shape in shapes)
    plan = _plan(match) if before == after else None
    if plan is not None and any(isinstance(part, Made) and has(part.node, REDUCES) for part in parts(plan)):
        return None
    return match.refuse("needless", "root", found="no reduction is above it")


def splits_leading_axis(match: Match) -> Refusal | None:
    """The first of three axes is split into two, as into batch and heads, and fewer nodes of data movement are left."""
    shapes = match.shapes("x", "root")
    if isinstance(shapes, Refusal):
        return shapes
    before, after = shapes
    if len(before) != 3 or len(after) != 4 or before[1:] != after[2:]:
        return match.refuse("shape", "root", ("*", "*", *before[1:]))
    if _plan(match, computes_targets=True) is None:
        return match.refuse("needless", "root", found="nothing above it cancels it")
    return None


def _with_split_heads(match: Match) -> Pattern:
    plan = _plan(match, computes_targets=True)
    assert plan is not None
    return as_pattern(plan, match)


_ANY_SPELLING = (
    op.Reshape(x, var("shape"), allowzero=attr("allowzero"))
    | op.Unsqueeze(x, axes=_AXES)
    | op.Squeeze(x, axes=_AXES)
    | op.Flatten(x, axis=attr("axis"))
)

_TEST = RuleTest(
    shapes={"whole": "b 1 3 4", "shape": "2"},
    constants={"shape": [0, -1]},
    inputs={"x": _above},
    attributes={"axes": [(1,)], "axis": [1], "allowzero": [0]},
    opset=18,
)


def hoisting_rule(
    name: str,
    formula: str,
    guard: Guard = leaves_fewer_moves,
    *,
    pattern: Pattern = _ANY_SPELLING,
    test: RuleTest = _TEST,
) -> Rule:
    """Return the rule that hoists a Reshape where a plan leaves fewer nodes of data movement."""
    return Rule(
        name=name,
        formula=formula,
        pattern=pattern,
        replace=_hoisted,
        makes=("Reshape",),
        guards=(guard, leaves_pools),
        exactness=Exactness.EXACT,
        source="ONNX operator Reshape",
        test=test,
    )


def _with_merged_heads(build: Build) -> ir.Value:
    """Scores with batch and heads as one axis, with a mask that differs along it, or does not."""
    scores = build.input("scores", build.dims("scores"))
    merged = build.node("Reshape", [scores, build.constant([-1, 3, 4])]).outputs[0]
    kind = build.chooser.pick("what is added", ("a mask", "a constant mask", "nothing"))
    mask = build.constant([[[1.0, 2.0, 3.0, 4.0]]]) if kind else build.input("mask", [1, 3, 4])
    masked = merged if kind == 2 else build.node("Add", [merged, mask]).outputs[0]
    made: ir.Value = build.node("Softmax", [masked], {"axis": -1}).outputs[0]
    return made


def _viewed(value: Pattern) -> Pattern:
    """A value behind one operator that gives it another shape."""
    return (
        op.Reshape(value, var("shape"), allowzero=attr("allowzero"))
        | op.Unsqueeze(value, axes=attr("added"))
        | op.Squeeze(value, axes=attr("dropped"))
        | op.Flatten(value, axis=attr("axis"))
    )


def _reduction(match: Match) -> tuple[list[int], int] | None:
    node, shape = match.root.producer(), match.shape("source")
    return None if node is None or shape is None else reduction_of(node, shape, match.facts)


def reduces_whole_axes(match: Match) -> Refusal | None:
    """The axes that are reduced are axes of what was reshaped, and the result has the shape that it had."""
    if match.shape("source") is None:
        return match.refuse("shape", "source")
    return match.unless_value("axes", _reduction(match) is not None, "axes of what was reshaped")


def _of_source(match: Match) -> Pattern:
    found, node = _reduction(match), match.root.producer()
    assert found is not None and node is not None
    axes, keepdims = found
    made: Pattern = getattr(op, node.op_type)(var("source"), axes=axes, keepdims=keepdims)
    return made


_REDUCTIONS = sorted(REDUCES)
_reshaped = _viewed(var("source"))

RULES = [
    Rule(
        name="reduction.drop_reshape_before",
        formula="sum(unsqueeze(x)) = sum(x)",
        pattern=reduce(
            operator.or_,
            (getattr(op, name)(_reshaped, axes=_AXES, keepdims=attr("keepdims")) for name in _REDUCTIONS),
        ),
        replace=_of_source,
        makes=_REDUCTIONS,
        guards=(reduces_whole_axes,),
        # The runtime adds along one axis in another order than along two.
        exactness=Exactness.ROUNDING,
        source="ONNX operators ReduceSum and Unsqueeze",
        test=RuleTest(
            shapes={"source": "2 3 1 4", "shape": "4"},
            constants={"shape": [2, 3, 4, 1]},
            attributes={
                "axes": [(2, 3), (-2, -1)],
                "keepdims": [0],
                "added": [(4,)],
                "dropped": [(2,)],
                "axis": [2],
                "allowzero": [0],
            },
            opset=18,
        ),
    ),
    Rule(
        name="reshape.hoist_head_split",
        formula="split(m(x) + y) = x + split(y)",
        pattern=op.Reshape(x, var("shape"), allowzero=attr("allowzero")),
        replace=_with_split_heads,
        makes=("Reshape", "Concat", "Slice", "Shape"),
        guards=(splits_leading_axis,),
        exactness=Exactness.EXACT,
        source="ONNX operator Reshape",
        test=RuleTest(
            shapes={"scores": "b 2 3 4", "shape": "4"},
            constants={"shape": [-1, 2, 3, 4]},
            inputs={"x": _with_merged_heads},
            attributes={"allowzero": [0]},
            opset=18,
        ),
    ),
    hoisting_rule(
        "reduction.fold_unsqueeze_into_keepdims", "unsqueeze(f(sum(x))) = f(sum(x, keepdims=1))", reaches_reduction
    ),
]
