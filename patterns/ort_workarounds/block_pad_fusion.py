"""Block Pad_Fusion of ONNX Runtime, which takes the zeros of a Pad for the padding of the MaxPool behind it.

MaxPool(Pad(x)) = MaxPool(Pad(x), auto_pad=VALID)

Pad_Fusion (1.31 among others) moves a Pad with zeros into the MaxPool behind it, whose own padding is lower than any number.
If x is negative at the border, the maximum is then no longer 0. It leaves a MaxPool alone that says how it pads.

MaxPool(Pad(x), pads) = MaxPool(Sum(Pad(x)), pads)

It does the same if the MaxPool has a padding of its own, or rounds the size of its result up. A Sum of one operand, which
copies it, keeps the two apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.node_parameters import attribute_value, parameter
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, attr, op, redundant, var
from ortfuse.targets import Quirk

x = var("x")


def _is_not_padded(pads: Any, facts: Any) -> bool:
    return pads is None or not any(pads)


def _is_not_automatic(kind: Any, facts: Any) -> bool:
    return kind in (None, "NOTSET")


def _is_not_rounded_up(mode: Any, facts: Any) -> bool:
    return not mode


pooled = {name: attr(name) for name in ("kernel_shape", "strides", "dilations", "storage_order")}

SOUND = "it would be right, but the runtime does not merge it"


@redundant(SOUND)
def is_padded_with_zeros(match: Match) -> Refusal | None:
    """The input is made by a Pad that the runtime merges, and may be negative."""
    needless = match.refuse("needless", "root", found="the runtime merges no padding into it that changes the result")
    facts, pad = match.facts, match["x"].producer()
    if pad is None or pad.op_type != "Pad" or attribute_value(pad, "mode", facts) not in (None, "constant"):
        return needless
    filling = pad.inputs[2] if len(pad.inputs) > 2 else None
    if (facts.scalar(filling) if filling is not None else attribute_value(pad, "value", facts)) not in (None, 0):
        return needless
    names_axes = len(pad.inputs) > 3
    return needless if names_axes or _zeros_change_nothing(match, pad) else None


def _zeros_change_nothing(match: Match, pad: ir.Node) -> bool:
    """Whether every maximum is one of numbers of the image that are not negative, whatever stands around it."""
    values = match.facts.range(pad.inputs[0]) if pad.inputs[0] is not None else None
    border, kernel = parameter(pad, "pads", match.facts), match["kernel_shape"]
    dilated = any(step != 1 for step in match["dilations"] or ())
    # Rounded up, a window may begin where there are zeros alone, and without the zeros there is none.
    beyond = match.get("ceil_mode") and any(step != 1 for step in match["strides"] or ())
    if values is None or values.low < 0 or not isinstance(border, tuple | list) or dilated or beyond:
        return False
    half = len(border) // 2
    around = [*border[2:half], *border[half + 2 :]]
    return all(
        isinstance(zeros, int) and zeros + more < size
        for zeros, more, size in zip(around, match["pads"] or [0] * len(around), [*kernel, *kernel], strict=True)
    )


@redundant("it would be right, but `valid_max_pool` is for it")
def has_windows_beyond(match: Match) -> Refusal | None:
    """The MaxPool has a padding of its own, or rounds the size of its result up."""
    if any(match["pads"] or ()) or match["ceil_mode"]:
        return None
    return match.refuse("needless", "root", found="it has no padding of its own")


@redundant(SOUND)
def gives_no_indices(match: Match) -> Refusal | None:
    """Only the maxima are asked for: the runtime merges no padding where the indices are."""
    node = match.root.producer()
    if node is not None and any(output.name for output in node.outputs[1:]):
        return match.refuse("needless", "root", found="the runtime merges no padding into a MaxPool with indices")
    return None


def _padded(build: Any) -> ir.Value:
    """An image with a border of zeros."""
    image = build.input("image", build.dims("x"))
    border = build.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
    made: ir.Value = build.node("Pad", [image, border]).outputs[0]
    return made


_poolings: dict[str, list[Any]] = {
    "kernel_shape": [(3, 2)],
    "strides": [(1, 1), (2, 2)],
    "dilations": [(1, 1), (2, 1)],
    "storage_order": [0],
    "auto_pad": ["NOTSET"],
}


RULES = [
    Rule(
        name="ort.max_pool_of_pad_to_auto_pad_valid",
        formula="MaxPool(Pad(x))",
        pattern=op.MaxPool(
            x,
            **pooled,
            pads=attr("pads", _is_not_padded, "0"),
            auto_pad=attr("auto_pad", _is_not_automatic, "NOTSET"),
            ceil_mode=attr("ceil_mode", _is_not_rounded_up, "0"),
        ),
        replace=op.MaxPool(x, **pooled, auto_pad="VALID"),
        is_refinement=True,
        because=Quirk.MERGES_ZEROS_INTO_MAX_POOL,
        guards=(is_padded_with_zeros, gives_no_indices),
        exactness=Exactness.EXACT,
        source="ONNX Runtime rewrite rule Pad_Fusion",
        test=RuleTest(
            shapes={"x": "1 2 5 6"},
            inputs={"x": _padded},
            attributes={**_poolings, "pads": [(0, 0, 0, 0)], "ceil_mode": [0]},
        ),
    ),
    Rule(
        name="ort.block_pad_max_pool_fusion",
        formula="MaxPool(Pad(x), pads)",
        pattern=op.MaxPool(
            x,
            **pooled,
            pads=attr("pads"),
            auto_pad=attr("auto_pad", _is_not_automatic, "NOTSET"),
            ceil_mode=attr("ceil_mode"),
        ),
        replace=op.MaxPool(op.Sum(x), **pooled, pads=attr("pads"), ceil_mode=attr("ceil_mode")),
        is_refinement=True,
        because=Quirk.MERGES_ZEROS_INTO_MAX_POOL,
        guards=(is_padded_with_zeros, has_windows_beyond, gives_no_indices),
        exactness=Exactness.EXACT,
        source="ONNX Runtime rewrite rule Pad_Fusion",
        test=RuleTest(
            shapes=({"x": "1 2 5 6"}, {"x": "1 2 5 6"}),
            inputs={"x": _padded},
            attributes=(
                {**_poolings, "pads": [(1, 1, 0, 1)], "ceil_mode": [0]},
                {**_poolings, "pads": [(0, 0, 0, 0)], "ceil_mode": [1]},
            ),
        ),
    ),
]
