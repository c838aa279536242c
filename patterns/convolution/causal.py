"""One step of a causal convolution, whose window is kept from step to step.

conv(concat(past, x), W, b) = causal_conv_with_state(x, W, b, past)        each channel on its own, x: one position

The window of the next step stays what it was, a Slice of the joined positions. Models of state spaces and gated delta nets
decode so (Mamba, arXiv:2312.00752). The runtime's kernel is 1.5 to 4.6 times as fast as Conv for one position, and slower for
more (0.4 to 0.9 times as fast for 64 to 2048), where Conv stays.
"""

from __future__ import annotations

from ortfuse.pattern import Match, ms, op, opt, redundant, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule

from .._proofs import COST
from ._layers import CONV, bias, weight
from ._windows import Axis, Window, window

x, past = var("x", "b c l"), var("past", "b c p")


def fills_the_window(match: Match) -> Refusal | None:
    """Each channel has one kernel of its own, which the past and one position fill."""
    sizes = match.shape("weight") or ()
    kernel, channels, before = sizes[2] if len(sizes) == 3 else None, match.size("c"), match.size("p")
    if not isinstance(kernel, int) or not isinstance(channels, int) or before != kernel - 1 or kernel < 2:
        return match.refuse("condition", "past", "all positions but one of a kernel of known size")
    if sizes != (channels, 1, kernel) or window(match["conv"], [kernel]) != Window((Axis(kernel),), channels):
        return match.refuse(
            "condition", "layer", "a convolution of each channel alone, without padding, strides and gaps"
        )
    return None


@redundant(COST)
def is_one_position(match: Match) -> Refusal | None:
    """There is one new position."""
    return None if match.size("l") == 1 else match.refuse("condition", "x", "one position")


RULES = [
    Rule(
        name="causal.step",
        pattern=op.Conv(op.Concat(past, x, axis=2).named("joined"), weight, opt(bias), attributes=CONV).named("layer"),
        replace=ms.CausalConvWithState(x, weight, opt(bias), past, outputs=2),
        intermediates={"joined": op.Concat(past, x, axis=2)},
        guards=(fills_the_window, is_one_position),
        exactness=Exactness.ROUNDING,
        source="ONNX Runtime contrib operator CausalConvWithState",
        proof=Proof(
            shapes={"c": 6, "l": 1, "p": 3, "weight": "6 1 4", "bias": "6"},
            attributes={"conv": [{"kernel_shape": (4,), "group": 6}]},
            typical_attributes=({"conv": {"kernel_shape": (4,), "group": 512}},),
            typical=(
                {
                    "x": "1 512 1",
                    "past": "1 512 3",
                    "weight": "512 1 4",
                    "bias": "512",
                    "b": 1,
                    "c": 512,
                    "l": 1,
                    "p": 3,
                },
            ),
        ),
    ),
]
