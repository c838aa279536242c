"""Attention whose present keys and values are read: kernels of ONNX Runtime 1.32 ignore a past where they are not asked for."""

from __future__ import annotations

from typing import Any

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite.pattern import Match


def presents_are_used(match: Match) -> Refusal | None:
    """Something reads the present keys and values."""
    for name in ("present_key", "present_value"):
        if match.get(name) is None or not match.is_used_elsewhere(name):
            return match.refuse("use", name, "something else, as kernels ignore the past otherwise")
    return None


def with_presents(build: Any, root: Any) -> Any:
    """The root of a rule test, in a model that uses the present keys and values, too."""
    node = root.producer()
    node.resize_outputs(3)
    floats = [build.node("Cast", [value], {"to": int(build.dtype)}).outputs[0] for value in node.outputs[1:]]
    sums = [build.node("ReduceSum", [value], {"keepdims": 0}).outputs[0] for value in floats]
    return build.node("Add", [root, build.node("Add", sums).outputs[0]]).outputs[0]
