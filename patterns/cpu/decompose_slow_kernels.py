"""Decompose reductions, Softmax over inner axes and Gather of indices in steps, whose CPU kernels are several times slower.

l1(x) = sum(|x|)          l2(x) = sqrt(sum(x x))
both the other way round where all elements are reduced
logsumexp(x) = m + log(sum(exp(x - m))), m = max(x), clamped to finite numbers
gather(x, [2, 3, 4]) = slice(x, 2, 5)          gather(x, [6, 4, 2]) = slice(x, 6, 1, step -2)
softmax(x) = reshape(softmax(reshape(x))), with the axes behind its own merged into one
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.dims import DimLike, product, reshape_target
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, computed, const, op, redundant, var

from .._rule_test_inputs import COST, SHAPES
from .._shared_guards import floating, given_axes, ints, is_not_quantised, reduces_all

PASS = "target_decompositions"

x = var("x")


def are_in_steps(match: Match) -> Refusal | None:
    """The indices have a constant stride and are within the axis, of known size; with another stride than 1, it is the last."""
    shape, indices = match.shape("x"), match.const("indices")
    size = None if shape is None else shape[match["axis"]]
    if shape is None or indices.ndim != 1 or not indices.size or not isinstance(size, int):
        return match.refuse("shape", "indices", "a vector, for an axis of known size")
    step = _step(match)
    row = bool(np.array_equal(indices, int(indices[0]) + step * np.arange(indices.size)))
    inside = min(indices[0], indices[-1]) >= 0 and max(indices[0], indices[-1]) < size
    if step != 1 and match["axis"] not in (-1, len(shape) - 1):
        return match.refuse("needless", "axis", found="an axis before the last one, whose parts are copied at once")
    return match.unless_value("indices", step != 0 and row and inside, "in equal steps, and within the axis")


def _step(match: Match) -> int:
    indices = match.const("indices")
    return int(indices[1]) - int(indices[0]) if indices.size > 1 else 1


def _beyond(match: Match) -> Any:
    """The index behind the last one; before the first element, there is none that does not count from the end."""
    indices = match.const("indices")
    beyond = int(indices[-1]) + (1 if _step(match) > 0 else -1)
    return ints([beyond if beyond >= 0 else np.iinfo(np.int64).min])


@redundant(COST)
def is_no_list(match: Match) -> Refusal | None:
    """x has more than one axis: for a vector of sizes, both take no time."""
    few = match.rank("x") == 1
    return match.refuse("needless", "x", found="it is a list") if few else None


@redundant("the Slice would be right where the kernel of Gather is not")
def is_no_text(match: Match) -> Refusal | None:
    """x has no strings, for which the runtime's Gather is wrong."""
    text = match.dtype("x") in (None, ir.DataType.STRING)
    return match.refuse("dtype", "x", "numbers") if text else None


@redundant(COST)
def reduces_the_last(match: Match) -> Refusal | None:
    """The last axis is reduced: over others, ReduceSumSquare is faster."""
    rank = match.rank("x")
    return match.unless_value("axes", rank is not None and match["axes"][-1] == rank - 1, "up to the last axis")


@redundant(COST)
def leaves_an_axis(match: Match) -> Refusal | None:
    """Some axis is not reduced: over all axes, the operator is faster."""
    rank = match.rank("x")
    some = rank is not None and len(match["axes"]) < rank
    return match.unless_value("axes", some, "not all axes")


_NORMS = ("ReduceL1", "ReduceSumSquare", "ReduceL2")


def _either(*options: Pattern) -> Pattern:
    return functools.reduce(operator.or_, options).named("reduced") if len(options) > 1 else options[0]


def _sum_of(summed: Pattern) -> Pattern:
    made: Pattern = op.ReduceSum(summed, axes=attr("axes"), keepdims=attr("keepdims"))
    return made


def _reduced(name: str, operators: Sequence[str], sums: Sequence[Pattern], *guards: Guard) -> Rule:
    """Reductions, as sums."""
    of_matrix = {"x": "128 768"} if reduces_the_last in guards else {"x": "1 128 768"}
    return Rule(
        name=f"reduction.{name}",
        formula=f"{' or '.join(operators)} of x",
        pattern=_either(*(getattr(op, one)(x, axes=given_axes, keepdims=attr("keepdims")) for one in operators)),
        replace=_either(*sums),
        exactness=Exactness.ROUNDING,
        guards=guards,
        source=f"ONNX operator {operators[0]}",
        test=RuleTest(
            shapes=({"x": "b 4"}, {"x": "b 3 4"}),
            attributes=({"axes": [(1,)], "keepdims": [0, 1]}, {"axes": [(1, 2)], "keepdims": [0, 1]}),
            typical=(of_matrix, {"x": "64 1000"}, {"x": "1 16"}),
            never_empty={"b": "the kernels of some reductions keep the last axis of an empty tensor"},
        ),
    )


# The logarithm of a sum of exponentials


def _is_bounded(match: Match) -> bool:
    values = match.facts.range(match["x"])
    return values is not None and -np.inf < values.low <= values.high < np.inf


def _spelled_log_sum_exp(match: Match) -> Pattern:
    axes = match["axes"]
    largest: Pattern = op.ReduceMax(x, axes=axes, keepdims=1)
    if not _is_bounded(match):
        limits = np.finfo(match.dtype("x").numpy())  # type: ignore[union-attr]
        largest = op.Max(op.Min(largest, float(limits.max)), float(limits.min))
    total = op.ReduceSum(op.Exp(op.Sub(x, largest)), axes=axes, keepdims=1)
    result: Pattern = op.Add(op.Log(total), largest)
    return result if match["keepdims"] else op.Squeeze(result, axes=axes)


def _log_sum_exp() -> Rule:
    return Rule(
        name="reduction.decompose_log_sum_exp",
        formula="ReduceLogSumExp(x)",
        pattern=op.ReduceLogSumExp(x, axes=given_axes, keepdims=attr("keepdims")),
        replace=_spelled_log_sum_exp,
        makes=("ReduceMax", "Max", "Min", "Sub", "Exp", "ReduceSum", "Log", "Add", "Squeeze"),
        guards=(floating("x"),),
        exactness=Exactness.ROUNDING,
        source="ONNX operator ReduceLogSumExp",
        test=RuleTest(
            shapes={"x": "b 3 4"},
            attributes={"axes": [(1,), (1, 2)], "keepdims": [0, 1]},
            typical=({"x": "1 128 768"}, {"x": "64 1000"}, {"x": "1 16"}),
            never_empty={"b": "the kernels of some reductions keep the last axis of an empty tensor"},
        ),
    )


# Softmax over an axis with several behind it


def has_axes_behind(match: Match) -> Refusal | None:
    """At least two axes that may be longer than 1 follow: the runtime transposes them slowly, and a merged one fast."""
    shape, node = match.shape("x"), match.root.producer()
    if shape is None or node is None:
        return match.refuse("shape", "x")
    if match.facts.version(node) < 13:
        return match.refuse("attribute", "axis", "of opset 13 on, where it is the only one")
    behind = [dim for dim in shape[match["axis"] + 1 :] if dim != 1]
    return None if len(behind) > 1 else match.refuse("needless", "root", found="fewer than two axes follow its own")


def _merged(match: Match) -> tuple[DimLike, ...]:
    shape, axis = match.shape("x") or (), match["axis"]
    return (*shape[: axis + 1], product(shape[axis + 1 :]))


def _int64_vector(name: str, numbers: list[int]) -> Pattern:
    return computed(name, lambda match: ints(numbers))


_NORMALISED = ("Softmax", "LogSoftmax", "Hardmax")


def _over_merged(match: Match) -> Pattern:
    axis, shape, merged = match["axis"], match.shape("x") or (), _merged(match)
    there, back = reshape_target(shape, merged), reshape_target(merged, shape)
    rows = op.ReduceProd(op.Shape(x, start=axis + 1), keepdims=1)
    target = op.Concat(op.Shape(x, start=0, end=axis + 1), rows, axis=0)
    flat = op.Reshape(x, target, allowzero=1) if there is None else op.Reshape(x, _int64_vector("there", there))
    result = getattr(op, _NORMALISED[match.choice("kind")])(flat, axis=axis)
    if back is None:
        return op.Reshape(result, op.Shape(x), allowzero=1)
    return op.Reshape(result, _int64_vector("back", back))


softmax_of_merged = Rule(
    name="softmax.merge_dims_behind_axis",
    formula="Softmax, LogSoftmax or Hardmax of x over an axis with several behind it",
    pattern=functools.reduce(operator.or_, (getattr(op, kind)(x, axis=attr("axis")) for kind in _NORMALISED)).named(
        "kind"
    ),
    replace=_over_merged,
    makes=("Reshape", *_NORMALISED, "Shape", "ReduceProd", "Concat"),
    guards=(has_axes_behind, is_not_quantised),
    exactness=Exactness.EXACT,
    source="ONNX operator Softmax",
    test=RuleTest(
        shapes=({"x": "n 3 4 5"}, {"x": "2 n 4 s"}),
        attributes={"axis": [1, -3]},
        typical=({"x": "1 64 56 56"}, {"x": "1 21 128 128"}, {"x": "8 256 14 14"}, {"x": "1 1000 7 7"}),
        counterexamples={
            "before opset 13": Variation(attributes={"axis": 1}, opset=11),
            "the last axis": Variation(attributes={"axis": -1}),
        },
    ),
)


def _indices(*numbers: int) -> dict[str, Any]:
    """These indices as the input of a rule test; without any, backwards along the last of five, or one after the other."""

    def make(build: Any) -> ir.Value:
        usual = (1, 2, 3) if build.dims("x")[0] == 5 else (4, 2, 0)
        chosen: ir.Value = build.constant(ints(numbers or usual[: build.dims("indices")[0]]))
        return chosen

    return {"indices": make}


RULES = [
    Rule(
        name="gather.indices_in_steps_to_slice",
        formula="Gather(x, indices in equal steps)",
        pattern=op.Gather(x, const("indices"), axis=attr("axis")),
        replace=op.Slice(
            x,
            computed("start", lambda match: ints([match.const("indices")[0]])),
            computed("end", _beyond),
            computed("axis", lambda match: ints([match["axis"]])),
            computed("step", lambda match: ints([_step(match)])),
        ),
        guards=(are_in_steps, is_no_list, is_no_text),
        exactness=Exactness.EXACT,
        source="ONNX operators Gather and Slice",
        test=RuleTest(
            shapes=({"x": "b 5", "indices": "3"}, {"x": "5 b", "indices": "3"}, {"x": "b 5", "indices": "1"}),
            inputs=_indices(),
            attributes=({"axis": [1, -1]}, {"axis": [0]}, {"axis": [1]}),
            counterexamples={
                "beyond the end": Variation(shapes={"x": "b 3"}, inputs=_indices(0, 1, 2)),
                "backwards along the first axis": Variation(
                    attributes={"axis": 0}, shapes={"x": "5 b"}, inputs=_indices(3, 2, 1)
                ),
                "with a gap": Variation(inputs=_indices(0, 1, 3)),
                "from the end": Variation(inputs=_indices(-5, -3, -1)),
                "of no length": Variation(inputs=_indices(1, 1, 1)),
            },
        ),
    ),
    softmax_of_merged,
    _reduced("decompose_l1", ("ReduceL1",), (_sum_of(op.Abs(x)),), floating("x"), leaves_an_axis),
    _reduced(
        "decompose_sum_of_squares",
        ("ReduceSumSquare", "ReduceL2"),
        (_sum_of(op.Mul(x, x)), op.Sqrt(_sum_of(op.Mul(x, x)))),
        floating("x"),
        reduces_the_last,
        leaves_an_axis,
    ),
    _log_sum_exp(),
    Rule(
        name="reduction.full_sum_to_norm",
        formula="ReduceSum(Abs(x)), ReduceSum(x * x) or Sqrt(ReduceSum(x * x)) over all axes",
        pattern=_either(
            _sum_of(op.Abs(x)),
            _sum_of(op.Mul(x, x)),
            op.Sqrt(_sum_of(op.Mul(x, x)) | op.ReduceSumSquare(x, axes=attr("axes"), keepdims=attr("keepdims"))),
        ),
        replace=_either(*(getattr(op, name)(x, keepdims=attr("keepdims")) for name in _NORMS)),
        exactness=Exactness.ROUNDING,
        guards=(floating("x"), redundant(SHAPES)(reduces_all)),
        source="ONNX operators ReduceL1, ReduceSumSquare and ReduceL2",
        test=RuleTest(
            shapes=({"x": "b 3 4"}, {"x": "b"}),
            attributes=(
                {"axes": [None, (0, 1, 2), (-1, 0, 1)], "keepdims": [0, 1]},
                {"axes": [(0,)], "keepdims": [0, 1]},
            ),
            typical=({"x": "1 128 768"}, {"x": "1 64 56 56"}, {"x": "1 21 128 128"}),
            never_empty={"b": "the kernels of some reductions keep the last axis of an empty tensor"},
        ),
    ),
]
