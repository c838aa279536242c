"""Make OneHot of comparisons, for want of a kernel.

one_hot(i, n, [off, on]) = where(j = range(n), on, off)          j = i + n where i < 0, else i

*Requires:* indices in int32, or in int64 and provably within it; the values as a constant; a known rank.

*Does not handle:* values of other types than float32, float16, int32, and int64 within int32.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, all_attributes, built, computed, const, op, var
from ortfuse.targets.webgpu.index_ranges import INDEX_RANGE, fits_int32, has_elements

LONG, SHORT = ir.DataType.INT64, ir.DataType.INT32
_CHOSEN = (ir.DataType.FLOAT, ir.DataType.FLOAT16, SHORT)

indices, depth, values = var("indices"), var("depth"), const("values")


def are_narrow(match: Match) -> Refusal | None:
    """The indices are integers within int32, of elements of tensors."""
    if match.rank("indices") is None:
        return match.refuse("rank", "indices", "a known one")
    if (refused := match.unless_dtype("indices", LONG, SHORT)) is not None:
        return refused
    if match.dtype("indices") == LONG:
        if not has_elements(match.facts, match["indices"]):
            return match.refuse("needless", "indices", found="sizes and inputs alone")
        if not fits_int32(match.facts, match["indices"]):
            return match.refuse("value", "indices", "provably within int32", "any int64")
    return match.unless_dtype("depth", LONG, SHORT)


def are_chosen(match: Match) -> Refusal | None:
    """WebGPU has a kernel that chooses between the two values, perhaps as int32."""
    if (refused := match.unless_dtype("values", *_CHOSEN, LONG)) is not None:
        return refused
    limits = np.iinfo(np.int32)
    found = match.const("values")
    fits = match.dtype("values") != LONG or bool(((found >= limits.min) & (found <= limits.max)).all())
    return match.unless_value("values", fits, "within int32")


def _narrow(match: Match, name: str) -> Pattern:
    made: Pattern = var(name) if match.dtype(name) == SHORT else op.Cast(var(name), to=SHORT)
    return made


def _one_hot(match: Match) -> Pattern:
    rank = match.rank("indices")
    assert rank is not None
    axis = match["how"].get("axis", -1) % (rank + 1)
    zero, one = (computed(name, functools.partial(_int32, number)) for number, name in enumerate(("first", "step")))
    size = _narrow(match, "depth")
    if match.shape("depth") == (1,):
        size = op.Squeeze(size, axes=(0,))
    chosen = op.Unsqueeze(_narrow(match, "indices"), axes=(axis,))
    found = match.facts.answering(INDEX_RANGE)(match["indices"])
    if found is None or found.low < 0:
        chosen = op.Where(op.Less(chosen, zero), op.Add(chosen, size), chosen)
    positions = op.Range(zero, size, one)
    if axis < rank:
        positions = op.Unsqueeze(positions, axes=tuple(range(1, rank + 1 - axis)))
    is_wide = match.dtype("values") == LONG
    off, on = (computed(name, functools.partial(_value, at)) for at, name in enumerate(("off", "on")))
    made: Pattern = op.Where(op.Equal(chosen, positions), on, off)
    return op.Cast(made, to=LONG) if is_wide else made


def _int32(number: int, match: Match) -> Any:
    return np.int32(number)


def _value(at: int, match: Match) -> Any:
    found = np.asarray(match.const("values")).reshape(-1)[at]
    return found.astype(np.int32) if match.dtype("values") == LONG else found


def _scores(build: Any) -> ir.Value:
    """Indices of the largest numbers of rows."""
    dims = build.dims("indices")
    given = build.input("scores", [*dims[:-1], 5], ir.DataType.FLOAT)
    made: ir.Value = build.node("TopK", [given, build.constant(np.array([dims[-1]], np.int64))], outputs=2).outputs[1]
    return made


def _rule(name: str, shapes: dict[str, str], **test: Any) -> Rule:
    return Rule(
        name=f"no_kernel.decompose_one_hot{name}",
        is_refinement=True,
        pattern=op.OneHot(indices, depth, values, attributes=all_attributes("how")),
        replace=built(_one_hot, makes=("Cast", "Squeeze", "Unsqueeze", "Where", "Less", "Add", "Range", "Equal")),
        guards=(are_narrow, are_chosen),
        exactness=Exactness.EXACT,
        source="ONNX operator OneHot",
        test=RuleTest(
            shapes=shapes,
            attributes={"how": [{}, *({"axis": axis} for axis in (-1, 0, 1, 2))]},
            **test,
        ),
    )


RULES = [
    _rule(
        "", {"indices": "b 2", "depth": "", "values": "2"},
        inputs={
            "indices": _scores,
            "depth": lambda build: build.constant(np.int64(4)),
            "values": lambda build: build.constant(np.array([-1, 7], np.int64)),
        },
    ),
]  # fmt: skip
