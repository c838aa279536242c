"""Quantise LSTM dynamically to 8 bits: its input and the hidden state of each step have their own range.

LSTM(x, W, R, ...)  ~  LSTM(dq(q(x)), dq(W8), dq(R8), ...), with dq(q(h)) in the place of each hidden state h

q is DynamicQuantizeLinear; W8 and R8 are signed, with one scale for all of a direction, or one for each gate and unit. No
standard operator rounds the hidden states in between, so that the definition leaves them as they are.
"""

from __future__ import annotations

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.quantization.quantization_parameters import SMALLEST_SCALE
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, all_attributes, const, ms, op, opt, var
from ortfuse.rewrite.pattern.language import Computed

from ._linear_pattern import in_float32, signed_limit
from ._weight_quantization import Array, is_weight, read_later, tensor_of

SOURCE = "ONNX Runtime operator com.microsoft.DynamicQuantizeLSTM"

HOW = all_attributes("how")
x = var("x", "t b _")
weight, recurrence = const("weight", "d _ _"), const("recurrence", "d _ _")
OTHERS = (opt(var("bias")), None, *(opt(var(name)) for name in ("hidden", "cell", "peepholes")))
"""The other inputs. Lengths are none of them: where sequences have some, the kernels give other last states."""

LAYER = op.LSTM(x, weight, recurrence, *OTHERS, outputs=3, layout=0, attributes=HOW)
ALL = LAYER.naming(last_hidden=1, last_cell=2)[0]
LAST = LAYER.naming(states=0, last_cell=2)[1]
"""The states of all steps, and the last hidden state alone."""


def _matrix(name: str, *, units: bool) -> tuple[Computed, Computed, Computed, Pattern]:
    """A weight [directions, gates, size] as the operator wants it, [directions, size, gates], and as it is meant."""
    axes = 1 if units else (1, 2)

    def scales(array: Array) -> Array:
        largest = np.abs(array.transpose(0, 2, 1)).max(axis=axes)
        found: Array = np.maximum(largest / signed_limit(), SMALLEST_SCALE).astype(np.float32)
        return found

    def rounded(array: Array) -> Array:
        each = scales(array).reshape(array.shape[0], 1, -1)
        found: Array = np.clip(np.rint(array.transpose(0, 2, 1) / each), -signed_limit(), signed_limit())
        return found

    def shape(match: Match) -> tuple[int, ...]:
        directions, gates, size = tensor_of(match, name).shape.numpy()
        return directions, size, gates

    def each(match: Match) -> tuple[int, ...]:
        return (shape(match)[0], shape(match)[2]) if units else (shape(match)[0],)

    def spread(match: Match) -> tuple[int, ...]:
        return (shape(match)[0], 1, shape(match)[2] if units else 1)

    whole = read_later(f"{name}8", np.int8, shape, rounded, of=name)
    scale = read_later(f"{name}8_scale", np.float32, each, scales, of=name)
    zero = read_later(f"{name}8_zero", np.int8, each, lambda array: np.zeros_like(scales(array)), of=name)
    along = read_later(
        f"{name}8_scales",
        np.float32,
        spread,
        lambda array: scales(array).reshape(array.shape[0], 1, -1),
        of=name,
    )
    return whole, scale, zero, op.Transpose(op.Mul(op.Cast(whole, to=1), along), perm=(0, 2, 1))


def _shapes(directions: int) -> dict[str, str | int]:
    sizes = {"weight": "20 6", "recurrence": "20 5", "bias": "40", "hidden": "b 5", "cell": "b 5", "peepholes": "15"}
    found: dict[str, str | int] = {name: f"{directions} {rest}" for name, rest in sizes.items()}
    return {**found, "x": "t b 6", "d": directions}


def states_are_unused(match: Match) -> Refusal | None:
    """Only the last states are used: otherwise the site is that of all states."""
    if match["states"] is None or not match.is_used_elsewhere("states"):
        return None
    return match.refuse("used_elsewhere", "states", found="what takes all states")


def _rule(name: str, *, units: bool, last: bool) -> Rule:
    w, w_scale, w_zero, near_w = _matrix("weight", units=units)
    r, r_scale, r_zero, near_r = _matrix("recurrence", units=units)
    x8 = op.DynamicQuantizeLinear(x, outputs=3)
    near_x = op.DequantizeLinear(x8[0], x8[1], x8[2])
    made = ms.DynamicQuantizeLSTM(x, w, r, *OTHERS, w_scale, w_zero, r_scale, r_zero, outputs=3, attributes=HOW)
    meant = op.LSTM(near_x, near_w, near_r, *OTHERS, outputs=3, attributes=HOW)
    output = 1 if last else 0
    return Rule(
        name=f"dynamic_int8_lstm.{name}",
        pattern=LAST if last else ALL,
        replace=made[output],
        definition=meant[output],
        intermediates={"last_cell": made[2]} if last else {"last_hidden": made[1], "last_cell": made[2]},
        guards=(
            in_float32,
            is_weight("weight"),
            is_weight("recurrence"),
            *([states_are_unused] if last else []),
        ),
        exactness=Exactness.LOSSY,
        source=SOURCE,
        test=RuleTest(
            shapes=(_shapes(1), _shapes(2)),
            attributes=(
                {"how": [{"hidden_size": 5}, {"hidden_size": 5, "direction": "reverse", "clip": 9.0}]},
                {"how": [{"hidden_size": 5, "direction": "bidirectional"}]},
            ),
            never_empty={"*": "the kernels do not take empty tensors"},
            assumes={"*1e5 times as large*": "small differences of a state grow with each step there"},
            beyond=0.1,
        ),
    )


RULES = [
    _rule("tensor", units=False, last=False),
    _rule("unit", units=True, last=False),
    _rule("tensor_last", units=False, last=True),
    _rule("unit_last", units=True, last=True),
]
