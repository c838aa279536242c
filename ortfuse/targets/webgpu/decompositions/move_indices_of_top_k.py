"""Gather by the indices of TopK as they are, which WebGPU makes in int64, and reshape what is gathered.

gather(x, reshape(i)) = reshape(gather(x, i))       along axis 0
gather_nd(x, i[..., None]) = gather(x, i)           along axis 0
int32(i) = gather(range(n), i)                      n the size of the axis of TopK

*Requires:* indices of TopK, which other Reshapes may lie between; a constant target without zeros; known sizes behind axis 0.

Rationale: WebGPU has no Reshape of int64, so that the processor waits for the GPU to move indices, as in the routing of experts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, op, var

from ._moved_results import SHAPE_OPS, are_moved_results

data, indices, target, count = var("data"), var("indices"), var("target"), var("count")


def are_of_top_k(match: Match) -> Refusal | None:
    """The indices are those of TopK."""
    if are_moved_results(match["indices"], "TopK", SHAPE_OPS):
        return None
    return match.refuse("needless", "indices", found="not those of TopK")


def is_along_first_axis(match: Match) -> Refusal | None:
    """Rows are gathered, of known sizes."""
    shape = match.shape("data")
    if match["axis"] not in (None, 0):
        return match.refuse("attribute", "axis", 0)
    if shape is None or not shape or not all(isinstance(size, int) and size > 0 for size in shape[1:]):
        return match.refuse("shape", "data", "known sizes behind the first axis")
    return None


def is_fixed(match: Match) -> Refusal | None:
    """The target is a constant without zeros."""
    found = match.facts.const(match["target"])
    return match.unless_value("target", found is not None and bool((found != 0).all()), "a constant without zeros")


def is_one_column(match: Match) -> Refusal | None:
    """The indices have one column, whose axis was added behind."""
    rank = match.rank("indices")
    if match["batch"]:
        return match.refuse("attribute", "batch", 0)
    is_last = rank is not None and tuple(match["axes"]) in ((-1,), (rank,))
    return match.unless_value("axes", is_last, "the last one")


def _target(match: Match) -> Any:
    found = match.facts.const(match["target"])
    assert found is not None
    return np.asarray([*found.tolist(), *(match.shape("data") or ())[1:]], np.int64)


def _reshaped(match: Match) -> Pattern:
    made: Pattern = op.Reshape(op.Gather(data, indices, axis=0), computed("target of rows", _target))
    return made


def has_known_rank(match: Match) -> Refusal | None:
    """The rank is known."""
    return match.refuse("rank", "data", "a known one") if not match.rank("data") else None


_number = op.TopK(data, count, axis=attr("axis"), largest=attr("largest"), sorted=attr("sorted"), outputs=2).kept()[1]


def _numbered(match: Match) -> Pattern:
    rank = match.rank("data")
    assert rank
    axis = (-1 if match["axis"] is None else match["axis"]) % rank
    size = op.Cast(op.Squeeze(op.Shape(data, start=axis, end=axis + 1), axes=(0,)), to=ir.DataType.INT32)
    first, step = computed("first", lambda _: np.int32(0)), computed("step", lambda _: np.int32(1))
    made: Pattern = op.Gather(op.Range(first, size, step), _number, axis=0)
    return made


def _of_top_k(build: Any) -> ir.Value:
    """Indices 0 to 2 of the largest numbers of rows."""
    dims = build.dims("indices")
    given = build.input("scores", [math.prod(dims[:-1]), 3])
    found = build.node("TopK", [given, build.constant(np.array([dims[-1]], np.int64))], outputs=2).outputs[1]
    made: ir.Value = build.node("Reshape", [found, build.constant(np.array(dims, np.int64))]).outputs[0]
    return made


RULES = [
    Rule(
        name="gather.sink_reshape_of_top_k",
        is_refinement=True,
        pattern=op.Gather(data, op.Reshape(indices, target).kept(), axis=attr("axis")),
        replace=built(_reshaped, makes=("Gather", "Reshape")),
        guards=(are_of_top_k, is_along_first_axis, is_fixed),
        exactness=Exactness.EXACT,
        source="ONNX operators Gather and Reshape",
        test=RuleTest(
            shapes={"data": "4 5 2", "indices": "3 2", "target": "1"},
            inputs={"indices": _of_top_k, "target": lambda build: build.constant(np.array([-1], np.int64))},
            attributes={"axis": [0, None]},
        ),
    ),
    Rule(
        name="gather.gather_nd_of_one_column_of_top_k",
        is_refinement=True,
        pattern=op.GatherND(data, op.Unsqueeze(indices, axes=attr("axes")).kept(), batch_dims=attr("batch")),
        replace=op.Gather(data, indices, axis=0),
        guards=(are_of_top_k, is_one_column),
        exactness=Exactness.EXACT,
        source="ONNX operators Gather and GatherND",
        test=RuleTest(
            shapes={"data": "4 5 2", "indices": "3 2"},
            inputs={"indices": _of_top_k},
            attributes={"axes": [(-1,), (2,)], "batch": [0]},
        ),
    ),
    Rule(
        name="index_arithmetic.gather_numbers_by_indices_of_top_k",
        is_refinement=True,
        pattern=op.Cast(_number, to=ir.DataType.INT32),
        replace=built(_numbered, makes=("Shape", "Squeeze", "Cast", "Range", "Gather")),
        guards=(has_known_rank,),
        exactness=Exactness.EXACT,
        source="ONNX operators TopK and Gather",
        test=RuleTest(
            shapes={"data": "b 5", "count": "1"},
            inputs={"count": lambda build: build.constant(np.array([2], np.int64))},
            attributes={"axis": [-1, 1, None], "largest": [1, 0], "sorted": [1]},
        ),
    ),
]
