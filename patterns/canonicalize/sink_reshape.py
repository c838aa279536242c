"""Sink the Reshape that merges batch and heads into one axis below the operators between it and the Reshape that undoes it.

m(x) m(y) = m(x y)     m(x) + z = m(x + z)     m(x)^T = m(x^T)     softmax(m(x)) = m(softmax(x))     c m(x) = m(c x)

m(x) reshapes [a, b, m, n] to [a * b, m, n]. Operators tell in the registry how they are reshaped (`ortfuse.rewrite.hoist`).

Rationale: exporters write the batched MatMuls of attention in three dimensions, with a (batch * heads) axis. The attention rules
are written for four dimensions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.dims import DimLike, reshape_target
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.hoist.plan_reshape_hoist import Kept, Viewed, parts
from ortfuse.rewrite.hoist.replacement import as_pattern, written_size
from ortfuse.rewrite.hoist.sink_merging_reshape import Sunk, sunk
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, op, redundant, var

from .._rule_test_inputs import COST

Build = Any
"""The builder of instances of rule tests."""

x, y, other = var("x"), var("y"), var("other")
_merged = op.Reshape(x, var("target"), allowzero=attr("allowzero")).kept().named("merged")

_AXES, _HEADS = 3, 4


def _sunk(match: Match) -> Sunk | None:
    """The node at the root, made before the axes are merged."""
    node = match.root.producer()
    if node is None or match["merged"] not in node.inputs:
        return None
    return sunk(node, node.inputs.index(match["merged"]), match.facts)


def merges_batch_and_heads(match: Match) -> Refusal | None:
    """The Reshape merges two axes into the first of three, or into another one, which a Transpose makes the first."""
    if match.rank("merged") != _AXES:
        return match.unless_rank("merged", _AXES)
    found = _sunk(match)
    if found is None or len(found.shape) != _HEADS or 0 not in found.axes:
        return match.refuse("shape", "merged", "one with two axes of x as one axis")
    return match.refuse("shape", "root") if _behind(match, found, x) is None else None


@redundant(COST)
def adds_no_reshapes(match: Match) -> Refusal | None:
    """There are no more Reshapes than before."""
    found = _sunk(match)
    fewer = found is not None and found.saved >= 0
    return None if fewer else match.refuse("needless", "root", found="other operands have to be reshaped")


@redundant(COST)
def is_of_scores(match: Match) -> Refusal | None:
    """Products are not of weights; other operands are numbers that scale, or all users of the result are Softmax nodes."""
    node = match.root.producer()
    if match.get("y") is not None:
        return match.unless_rank("y", _AXES)
    if node is None or match.get("other") is None:
        return None
    shape = match.shape("other")
    if node.op_type in ("Mul", "Div") and shape is not None and all(dim == 1 for dim in shape):
        return None
    users = match.root.consumers()
    if users and all(user.op_type == "Softmax" for user in users):
        return None
    return match.refuse("use", "root", "the scores of a Softmax", found="something else")


def _behind(match: Match, found: Sunk, made: Pattern) -> Pattern | None:
    """The Reshape that merges the axes of the result: by a constant target, the one before, or sizes of what is read."""
    after, axis = match.shape("root"), found.axes[1]
    constant = reshape_target(found.shape, after)
    if constant is not None:
        return op.Reshape(made, computed("constant_target", lambda match: np.asarray(constant, np.int64)))
    if found.shape == match.shape("x") and after == match.shape("merged"):
        return op.Reshape(made, var("target"), allowzero=attr("allowzero"))
    sizes = [_size(dim, match, found) for dim in found.shape]
    if any(size is None for size in sizes):
        return None
    merged = op.Mul(*sizes[axis : axis + 2])
    return op.Reshape(made, op.Concat(*sizes[:axis], merged, *sizes[axis + 2 :], axis=0), allowzero=1)


def _size(dim: DimLike, match: Match, found: Sunk) -> Pattern | None:
    """A size as a vector, read from what the node reads, so that nothing else uses its result."""
    if isinstance(dim, int):
        return written_size(dim, match)
    read = [part.value for part in parts(found.plan) if isinstance(part, Kept | Viewed)]
    shapes = ((value, match.facts.shape(value) or ()) for value in read)
    return next((written_size((value, shape.index(dim)), match) for value, shape in shapes if dim in shape), None)


def _with_merged_result(match: Match) -> Pattern:
    found = _sunk(match)
    assert found is not None
    made = _behind(match, found, as_pattern(found.plan, match))
    assert made is not None
    return made


def _matrices(build: Build) -> ir.Value:
    """A matrix for each head, with batch and heads as one axis."""
    matrices = build.input("matrices", ["b", 2, 4, 4])
    made: ir.Value = build.node("Reshape", [matrices, build.constant([-1, 4, 4])]).outputs[0]
    return made


RULES = [
    Rule(
        name="reshape.sink_head_merge",
        formula="m(x) m(y) = m(x y)",
        pattern=op.MatMul(_merged, y)
        | op.Add(_merged, other)
        | op.Sub(_merged, other)
        | op.Mul(_merged, other)
        | op.Div(_merged, other)
        | op.Softmax(_merged, axis=attr("axis"))
        | op.Transpose(_merged, perm=attr("perm")),
        replace=_with_merged_result,
        makes=("MatMul", "Add", "Sub", "Mul", "Div", "Softmax", "Transpose", "Reshape", "Shape", "Slice", "Concat"),
        guards=(merges_batch_and_heads, adds_no_reshapes, is_of_scores),
        exactness=Exactness.EXACT,
        source="ONNX operator Reshape",
        test=RuleTest(
            shapes={"x": "b 2 3 4", "target": "3", "y": "6 4 4", "other": "3 4"},
            constants={"target": [-1, 3, 4]},
            attributes={"allowzero": [0], "axis": [-1], "perm": [(0, 2, 1), (1, 0, 2)]},
            inputs={"y": _matrices},
            followed_by="Softmax",
            opset=17,
        ),
    )
]
