"""Replace Sum by Add, which patterns match in any order and nesting, and ReduceSum of stacked tensors by Add.

sum(a, b) = a + b
sum(a, b, c, ...) = (a + b) + c + ...      where two operands are branches that may become one convolution
reducesum(concat(unsqueeze(a), unsqueeze(b), ...)) = a + b + ...

A Sum of more operands stays elsewhere: it is one node instead of several.

Rationale: AddN of TensorFlow and the sums of Caffe and MXNet come as Sum; PyTorch's `stack(...).sum()` as the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import RULE_KEY, Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, op, redundant, rest

from .._rule_test_inputs import COST

_BRANCHES = ("Conv", "ConvTranspose", "BatchNormalization")


def _is_branch(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type in _BRANCHES


@redundant(COST)
def is_of_two_or_of_branches(match: Match) -> Refusal | None:
    """There are two operands, or more of which two are branches that may become one."""
    parts = match["parts"]
    if len(parts) == 2 or (len(parts) > 2 and sum(map(_is_branch, parts)) > 1):
        return None
    return match.refuse("needless", "root", found="it is one node for several sums")


@redundant(COST)
def was_there_before(match: Match) -> Refusal | None:
    """No rule has written it, in place of an Add that the runtime would merge with something."""
    rule = match.root.producer().metadata_props.get(RULE_KEY)  # type: ignore[union-attr]
    return None if rule is None else match.refuse("needless", "root", found=f"{rule} made it")


def _added(match: Match) -> Pattern:
    parts = [match.capture(f"part{number}", part) for number, part in enumerate(match["parts"])]
    made: Pattern = op.Add(*parts[:2])
    for part in parts[2:]:
        made = op.Add(made, part)
    return made


def _stacked(value: ir.Value, match: Match) -> ir.Value | None:
    """The value stacked as this operand of the Concat; `None` if it is not made by an Unsqueeze of the one axis."""
    node, shape = value.producer(), match.facts.shape(value)
    if node is None or node.domain or node.op_type != "Unsqueeze" or shape is None:
        return None
    axes = parameter(node, "axes", match.facts)
    alone = isinstance(axes, tuple | list) and [axis % len(shape) for axis in axes] == [match["axis"] % len(shape)]
    return node.inputs[0] if alone else None


def are_stacked(match: Match) -> Refusal | None:
    """The operands are stacked along a new axis, and the sum is over this axis only, without keepdims."""
    parts, rank = match["parts"], match.rank("joined")
    if rank is None or [axis % rank for axis in match["axes"] or ()] != [match["axis"] % rank]:
        return match.refuse("value", "axes", "the axis along which tensors are stacked")
    if len(parts) < 2 or any(_stacked(part, match) is None for part in parts):
        return match.refuse("condition", "joined", "of tensors that are made longer by that axis")
    # Where they disagree, the runtime passes over empty parts.
    shapes = {match.facts.shape(part) for part in parts}
    return match.refuse("shape", "joined", "of tensors of one shape") if len(shapes) > 1 or None in shapes else None


def are_floats(match: Match) -> Refusal | None:
    """The numbers are no integers, which the runtime adds otherwise where the sum is beyond their type."""
    return match.unless_dtype("joined", ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


def _added_stack(match: Match) -> Pattern:
    made: Any = None
    for number, part in enumerate(match["parts"]):
        value = _stacked(part, match)
        assert value is not None
        operand = match.capture(f"part{number}", value)
        made = operand if made is None else op.Add(made, operand)
    added: Pattern = made
    return added


def _lifted(build: Any) -> Sequence[ir.Value]:
    """Two or three tensors made longer by an axis."""
    dims = build.dims("x")
    names = ("x", "y", "z")[: 2 + build.chooser.pick("operands", ("two", "three"))]
    axis = build.constant(np.array([1], np.int64))
    return [build.node("Unsqueeze", [build.input(name, dims), axis]).outputs[0] for name in names]


def _sum_operands(build: Any) -> Sequence[ir.Value]:
    """Two operands of different ranks, or three of which two are branches."""
    x = build.input("x", build.dims("x"))
    if build.chooser.pick("operands", ("two", "three")) == 0:
        return [x, build.input("y", build.dims("x")[1:])]
    weight = build.constant(build.numbers.standard_normal((3, 3, 1, 1)))
    return [build.node("Conv", [x, weight]).outputs[0], x, build.node("Conv", [x, weight]).outputs[0]]


RULES = [
    Rule(
        name="sum.sum_to_add",
        formula="Sum(x, y, ...)",
        pattern=op.Sum(rest("parts")),
        replace=_added,
        makes=("Add",),
        guards=(is_of_two_or_of_branches, was_there_before),
        exactness=Exactness.EXACT,
        source="ONNX operator Sum",
        test=RuleTest(shapes={"x": "n 3 4 5"}, inputs={"parts": _sum_operands}),
    ),
    Rule(
        name="sum.reduce_sum_of_stack_to_add",
        formula="ReduceSum(Concat(Unsqueeze(x), Unsqueeze(y), ...))",
        pattern=op.ReduceSum(
            op.Concat(rest("parts"), axis=attr("axis")).named("joined"), axes=attr("axes"), keepdims=0
        ),
        replace=_added_stack,
        makes=("Add",),
        guards=(are_stacked, are_floats),
        exactness=Exactness.ROUNDING,
        source="ONNX operators Concat and ReduceSum",
        test=RuleTest(
            shapes={"x": "n 3 4"},
            inputs={"parts": _lifted},
            attributes={"axis": [1], "axes": [(1,), (-3,)]},
            never_empty={"n": "the kernel of ReduceSum keeps the axes of an empty tensor"},
            counterexamples={
                "of another axis": Variation(attributes={"axes": (2,)}),
                "joined along another axis": Variation(attributes={"axis": 2}),
            },
        ),
    ),
]
