"""Sink a Cast of sizes below Slice and Gather, so that Shape and its reader are neighbours.

slice(cast(shape(x))) = cast(slice(shape(x)))       likewise Gather
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Pattern, attr, op, opt, var

x = var("x")

sizes = op.Shape(x, start=attr("start"), end=attr("end"))
converted = op.Cast(sizes.kept(), to=attr("to")).kept()
parts = {name: var(name) for name in ("starts", "ends", "axes", "steps")}


def _of_sizes(name: str, of: Callable[[Pattern], Pattern]) -> Rule:
    """Some of the sizes, converted."""
    return Rule(
        name=f"cast.sink_below_{name}_of_shape",
        pattern=of(converted),
        replace=op.Cast(of(sizes), to=attr("to")),
        exactness=Exactness.EXACT,
        source="ONNX operator Cast",
        test=RuleTest(
            shapes={"x": "b 3 4", **dict.fromkeys(parts, "1"), "places": "2"},
            constants={"starts": [1], "ends": [3], "axes": [0], "steps": [1], "places": [2, 0]},
            attributes={
                "to": [ir.DataType.INT32.value, ir.DataType.FLOAT.value],
                "start": [0],
                "end": [3],
                "axis": [0],
            },
            opset=20,
        ),
    )


RULES = [
    _of_sizes(
        "slice", lambda of: op.Slice(of, parts["starts"], parts["ends"], opt(parts["axes"]), opt(parts["steps"]))
    ),
    _of_sizes("gather", lambda of: op.Gather(of, var("places"), axis=attr("axis"))),
]
