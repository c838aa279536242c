"""Clip floats before they become integers, in place of int64 numbers behind that, for which WebGPU has no kernels.

int32(clip(int64(x) + c, low, high)) = int32(clip(x, low - c, high - c)) + c
int32(clip(c - int64(x), low, high)) = c - int32(clip(x, c - high, c - low))
move(int64(x)) = int64(move(x))          move: Unsqueeze, Squeeze, Reshape or Transpose; x floats

*Requires:* constants up to 2^23, of which float32 holds sums of two, and low <= high. Casts of infinities and NaN to integers,
which ONNX leaves undefined, may give anything.

Rationale: truncation keeps integers and the order of numbers, so that numbers may be clipped at integers before it. The buckets
of relative positions in DeBERTa are floats behind a logarithm, for which no range is known, and become indices in this way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, all_attributes, attr, computed, const, op, var

LONG, SHORT = ir.DataType.INT64, ir.DataType.INT32
LARGEST = 1 << 23
"""The largest constants; sums of two of them are exact in float32."""

x, target = var("x"), var("target")
low, high, offset = const("low", ""), const("high", ""), const("offset")
_HOW = all_attributes("how")
_long = op.Cast(x, to=LONG)


def is_float32(match: Match) -> Refusal | None:
    """The numbers are float32."""
    return match.unless_dtype("x", ir.DataType.FLOAT)


def is_floating(match: Match) -> Refusal | None:
    """The numbers are floats that the GPU has."""
    return match.unless_dtype("x", ir.DataType.FLOAT, ir.DataType.FLOAT16)


def ends_are_small(match: Match) -> Refusal | None:
    """The ends are in order, and they and the offset are small."""
    least, most = int(match.const("low")), int(match.const("high"))
    size = match.const("offset").size if match.get("offset") is not None else 1
    largest = max(abs(least), abs(most), abs(_offset(match)) if size == 1 else 0)
    fits = size == 1 and least <= most and largest <= LARGEST
    return match.unless_value("low", fits, f"not above the other end, and all constants single numbers up to {LARGEST}")


def _offset(match: Match) -> int:
    return int(match.const("offset").reshape(())) if match.get("offset") is not None else 0


def _end(name: str, end: Callable[[int, int, int], int]) -> Pattern:
    return computed(
        name, lambda match: np.float32(end(int(match.const("low")), int(match.const("high")), _offset(match)))
    )


def _short(match: Match) -> Any:
    return match.const("offset").astype(np.int32)


_given = computed("short_offset", _short)
_FORMS: dict[str, tuple[Pattern, Pattern]] = {
    "cast": (_long.kept(), op.Cast(op.Clip(x, _end("least", lambda a, b, c: a), _end("most", lambda a, b, c: b)), to=SHORT)),
    "sum": (
        op.Add(_long.kept(), offset).kept(),
        op.Add(
            op.Cast(op.Clip(x, _end("least", lambda a, b, c: a - c), _end("most", lambda a, b, c: b - c)), to=SHORT), _given
        ),
    ),
    "difference": (
        op.Sub(offset, _long.kept()).kept(),
        op.Sub(
            _given, op.Cast(op.Clip(x, _end("least", lambda a, b, c: c - b), _end("most", lambda a, b, c: c - a)), to=SHORT)
        ),
    ),
}  # fmt: skip


def _int64(*numbers: int) -> Any:
    array = np.array(numbers if len(numbers) > 1 else numbers[0], np.int64)
    return lambda build: build.constant(array)


def _clipped(name: str) -> Rule:
    found, made = _FORMS[name]
    return Rule(
        name=f"index_arithmetic.clip_{name}_before_truncation",
        is_refinement=True,
        pattern=op.Cast(op.Clip(found, low, high).kept(), to=SHORT),
        replace=made,
        guards=(is_float32, ends_are_small),
        exactness=Exactness.EXACT,
        source="ONNX operators Cast and Clip",
        test=RuleTest(
            shapes={"x": "b 4", "low": "", "high": "", "offset": ""},
            inputs={"low": _int64(-2), "high": _int64(3), "offset": _int64(1)},
            opset=17,
        ),
    )


_MOVES: dict[str, tuple[Callable[[Pattern], Any], RuleTest]] = {
    "unsqueeze": (
        lambda of: op.Unsqueeze(of, axes=attr("over")),
        RuleTest(shapes={"x": "b 4"}, attributes={"over": [(0,), (1, 2)]}),
    ),
    "squeeze": (
        lambda of: op.Squeeze(of, axes=attr("over")),
        RuleTest(shapes={"x": "b 1"}, attributes={"over": [(1,)]}),
    ),
    "reshape": (
        lambda of: op.Reshape(of, target, attributes=_HOW),
        RuleTest(shapes={"x": "b 4", "target": "2"}, inputs={"target": _int64(-1, 2)}, attributes={"how": [{}]}),
    ),
    "transpose": (
        lambda of: op.Transpose(of, attributes=_HOW),
        RuleTest(shapes={"x": "b 4"}, attributes={"how": [{"perm": (1, 0)}]}),
    ),
}


def _moved(name: str) -> Rule:
    move, test = _MOVES[name]
    return Rule(
        name=f"index_arithmetic.sink_cast_below_{name}",
        is_refinement=True,
        pattern=move(_long.kept()),
        replace=op.Cast(move(x), to=LONG),
        guards=(is_floating,),
        exactness=Exactness.EXACT,
        source="ONNX operator Cast",
        test=test,
    )


RULES = [*map(_clipped, _FORMS), *map(_moved, _MOVES)]
