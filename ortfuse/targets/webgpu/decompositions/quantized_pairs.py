"""Compute QuantizeLinear and the DequantizeLinear behind it in float32, for want of kernels of the former.

dq(q(x, s, z), t, y) = (round(clip(x / s, least - z, most - z)) + (z - y)) t
dq(move(q(x)), t, y) = move(dq(q(x), t, y))          of one scale for all; move: Transpose, Reshape, Slice and others

*Requires:* scales and zero points that are constants; integers of 8 or 16 bits; float32.

*Does not handle:* MaxPool with windows that may lie in padding alone; Resize that interpolates; scales in blocks; zeros,
subnormal numbers, infinities and NaN as scales. NaN in x, of which ONNX leaves the integer undefined, may become any number.

Rationale: integers and their differences are exact in float32, so that results have the same bits on a device that divides as
IEEE 754 says. WebGPU allows quotients that are 2.5 units off: where x / s is as near to a half, such a device may round to the
other integer.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, all_attributes, attr, built, computed, const, op, opt, var

from ._integers_in_float32 import NUMBERS, along_axis, is_along_known_axis, rounded, scale_is_positive, zero_is_known
from ._moved_results import DATA_MOVEMENT, are_moved_results

x, numbers = var("x"), var("numbers")
scale, zero, by, middle = const("scale"), const("zero"), const("by"), const("middle")


def are_integers(match: Match) -> Refusal | None:
    """Numbers of float32 become integers of 8 or 16 bits, and are float32 again."""
    return (
        match.unless_dtype("x", ir.DataType.FLOAT)
        or match.unless_dtype("by", ir.DataType.FLOAT)
        or match.unless_dtype("quantized", *NUMBERS)
    )


def has_no_blocks(match: Match) -> Refusal | None:
    """Neither scale is one of blocks."""
    found = any(match[name] for name in ("block", "other_block"))
    return match.refuse("attribute", "block", 0) if found else None


def has_one_scale(match: Match) -> Refusal | None:
    """There is one scale for all elements."""
    return match.unless_value("by", match.shape("by") in ((), (1,)), "one number")


def are_quantized_here(match: Match) -> Refusal | None:
    """The integers are results of QuantizeLinear, moved or not."""
    if are_moved_results(match["numbers"], "QuantizeLinear", DATA_MOVEMENT):
        return None
    return match.refuse("needless", "numbers", found="not those of QuantizeLinear")


def has_elements_in_each_window(match: Match) -> Refusal | None:
    """No window of MaxPool lies in padding alone: the runtime has padding shorter than windows."""
    how = match["how"]
    spread = any(step != 1 for step in how.get("dilations") or ())
    return match.refuse("attribute", "how", "ceil_mode 0 and dilations 1") if how.get("ceil_mode") or spread else None


def takes_nearest(match: Match) -> Refusal | None:
    """Resize takes the nearest elements, and none from outside."""
    how = match["how"]
    nearest = how.get("mode", "nearest") == "nearest"
    inside = how.get("coordinate_transformation_mode") != "tf_crop_and_resize"
    return None if nearest and inside else match.refuse("attribute", "how", "mode nearest")


def _constant(match: Match, name: str, of: str, axis: str) -> np.ndarray[Any, Any]:
    """A scale or zero point, so that it broadcasts to the numbers; 0 if it is absent."""
    if match.get(name) is None:
        return np.zeros((), np.float32)
    found = match.facts.const(match[name])
    assert found is not None
    return along_axis(np.asarray(found).astype(np.float32), match[axis], match.rank(of))


def _limit(upper: bool, match: Match) -> np.ndarray[Any, Any]:
    found = np.iinfo((match.dtype("quantized") or ir.DataType.UINT8).numpy())
    limit = found.max if upper else found.min
    return np.asarray(np.float32(limit) - _constant(match, "zero", "x", "axis"), np.float32)


def _shift(match: Match) -> np.ndarray[Any, Any]:
    """The difference of the two zero points."""
    difference = _constant(match, "zero", "x", "axis") - _constant(match, "middle", "x", "other_axis")
    return np.asarray(difference, np.float32)


def _paired(match: Match) -> Pattern:
    divisor, factor = _constant(match, "scale", "x", "axis"), _constant(match, "by", "x", "other_axis")
    quotient = x if (divisor == 1).all() else op.Div(x, computed("divisor", lambda _: divisor))
    least, most = (computed(name, functools.partial(_limit, name == "most")) for name in ("least", "most"))
    if _limit(False, match).ndim:
        clipped = op.Min(op.Max(quotient, least), most)
    else:
        clipped = op.Clip(quotient, least, most)
    whole = rounded(clipped)
    if _shift(match).any():
        whole = op.Add(whole, computed("shift", _shift))
    made: Pattern = whole if (factor == 1).all() else op.Mul(whole, computed("factor", lambda _: factor))
    return made


def _both(quantized: Pattern) -> Pattern:
    found: Pattern = op.DequantizeLinear(
        quantized, by, opt(middle), axis=attr("other_axis"), block_size=attr("other_block")
    )
    return found


_PAIR = _both(
    op.QuantizeLinear(x, scale, opt(zero), axis=attr("axis"), block_size=attr("block"), output_dtype=attr("kind"))
    .kept()
    .named("quantized")
)

_HOW = all_attributes("how")
_region, _factors, _sizes = (var(name) for name in ("region", "factors", "sizes"))
_target, _starts, _ends, _axes, _steps = (var(name) for name in ("target", "starts", "ends", "axes", "steps"))


def _moves(of: Pattern) -> dict[str, Any]:
    """Each operator that moves elements, of a value."""
    return {
        "transpose": op.Transpose(of, attributes=_HOW),
        "reshape": op.Reshape(of, _target, attributes=_HOW),
        "squeeze": op.Squeeze(of, axes=attr("over")),
        "unsqueeze": op.Unsqueeze(of, axes=attr("over")),
        "flatten": op.Flatten(of, attributes=_HOW),
        "slice": op.Slice(of, _starts, _ends, opt(_axes), opt(_steps)),
        "gather": op.Gather(of, _target, attributes=_HOW),
        "expand": op.Expand(of, _target),
        "max_pool": op.MaxPool(of, attributes=_HOW),
        "resize": op.Resize(of, opt(_region), opt(_factors), opt(_sizes), attributes=_HOW),
    }


_CONDITIONS: dict[str, tuple[Guard, ...]] = {
    "max_pool": (scale_is_positive("by"), has_elements_in_each_window),
    "resize": (takes_nearest,),
}
"""Further conditions of operators, besides that they move integers of one scale: MaxPool keeps the order of numbers."""


def _integers(build: Any) -> ir.Value:
    """Integers of 8 bits, quantized from an input."""
    given = build.input("floats", build.dims("numbers"))
    ends = [build.constant(np.array(number, kind)) for number, kind in ((0.1, np.float32), (3, np.uint8))]
    made: ir.Value = build.node("QuantizeLinear", [given, *ends]).outputs[0]
    return made


def _int64(*numbers: int) -> Any:
    return lambda build: build.constant(np.array(numbers, np.int64))


_MOVED: dict[str, dict[str, Any]] = {
    "transpose": {"attributes": {"how": [{"perm": (0, 2, 1)}, {"perm": (2, 1, 0)}]}},
    "reshape": {"inputs": {"target": _int64(-1, 3)}, "shapes": {"target": "2"}, "attributes": {"how": [{}]}},
    "squeeze": {"shapes": {"numbers": "b 1 3"}, "attributes": {"over": [(1,)]}},
    "unsqueeze": {"attributes": {"over": [(0,), (1, 2)]}},
    "flatten": {"attributes": {"how": [{"axis": 1}, {"axis": 2}]}},
    "slice": {
        "inputs": {"starts": _int64(1), "ends": _int64(3), "axes": _int64(2), "steps": _int64(1)},
        "shapes": {"starts": "1", "ends": "1", "axes": "1", "steps": "1"},
    },
    "gather": {"inputs": {"target": _int64(1, 0)}, "shapes": {"target": "2"}, "attributes": {"how": [{"axis": 2}]}},
    "expand": {"inputs": {"target": _int64(2, 1, 1, 3)}, "shapes": {"target": "4"}},
    "max_pool": {
        "shapes": {"numbers": "b 2 5 6"},
        "attributes": {
            "how": [{"kernel_shape": (2, 3), "pads": (1, 1, 0, 1)}, {"kernel_shape": (2, 2), "strides": (2, 2)}]
        },
    },
    "resize": {
        "inputs": {
            "factors": lambda build: build.constant(np.array((1, 1, 2), np.float32)),
            "sizes": _int64(2, 2, 7),
            "region": lambda build: build.constant(np.zeros(6, np.float32)),
        },
        "shapes": ({"factors": "3"}, {"numbers": "2 2 3", "sizes": "3", "region": "6"}),
        "attributes": {
            "how": [{"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}]
        },
    },
}


def _moved(name: str) -> Rule:
    test = _MOVED[name]
    shapes = test.get("shapes", {})
    return Rule(
        name=f"qdq.sink_{name}_below_dequantize",
        is_refinement=True,
        pattern=_both(_moves(numbers)[name].kept()),
        replace=_moves(op.DequantizeLinear(numbers, by, opt(middle)))[name],
        guards=(has_one_scale, are_quantized_here, *_CONDITIONS.get(name, ())),
        exactness=Exactness.EXACT,
        source="ONNX operators QuantizeLinear and DequantizeLinear",
        test=RuleTest(
            shapes=[
                {"numbers": "b 2 3", "by": "", "middle": "", **one}
                for one in ([shapes] if isinstance(shapes, dict) else shapes)
            ],
            inputs={"numbers": _integers, **test.get("inputs", {})},
            constants={"by": np.float32(0.3), "middle": np.uint8(7)},
            attributes={"other_axis": [1], "other_block": [None], **test.get("attributes", {})},
            opset=21,
        ),
    )


_TENSOR = {"x": "b 4", "scale": "", "zero": "", "by": "", "middle": ""}
_CHANNELS = {"x": "b 4 2", "scale": "4", "zero": "4", "by": "4", "middle": "4"}


def _numbers(name: str, first: float, step: float, kind: Any) -> Any:
    """Constants of one number, or of several in steps."""

    def made(build: Any) -> ir.Value:
        count = math.prod(build.dims(name))
        found: ir.Value = build.constant((first + step * np.arange(count)).reshape(build.dims(name)).astype(kind))
        return found

    return made


_QUANTIZATION = {
    "scale": _numbers("scale", 0.02, 0.03, np.float32),
    "zero": _numbers("zero", 120, 3, np.uint8),
    "by": _numbers("by", 0.03, 0.02, np.float32),
    "middle": _numbers("middle", 118, 2, np.uint8),
}

RULES = [
    Rule(
        name="qdq.compute_pair_in_float32",
        is_refinement=True,
        pattern=_PAIR,
        replace=built(_paired, makes=("Div", "Clip", "Max", "Min", "Add", "Sub", "Mul")),
        guards=(
            are_integers,
            has_no_blocks,
            scale_is_positive("scale"),
            scale_is_positive("by"),
            zero_is_known("scale", "zero"),
            zero_is_known("by", "middle"),
            is_along_known_axis("scale", "axis", "x"),
            is_along_known_axis("by", "other_axis", "x"),
        ),
        exactness=Exactness.EXACT,
        source="ONNX operators QuantizeLinear and DequantizeLinear",
        test=RuleTest(
            shapes=(_TENSOR, _CHANNELS),
            attributes=(
                {"axis": [1], "other_axis": [1], "block": [None], "other_block": [None], "kind": [None]},
                {"axis": [1], "other_axis": [-2], "block": [None], "other_block": [None], "kind": [None]},
            ),
            inputs=_QUANTIZATION,
            opset=21,
        ),
    ),
    *map(_moved, _MOVED),
]
