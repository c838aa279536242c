"""Compute a Conv of images of one pixel as a Gemm.

conv(x, w) + b = reshape(gemm(flatten(x), flatten(w)', b))          x [n, c, 1, 1], w [o, c, 1, 1]

Rationale: squeeze-and-excitation (arXiv:1709.01507) convolves the means of channels. The kernel of Conv multiplies the weights
with a matrix of one column, and that of Gemm a row with the weights, which is several times faster.
"""

from __future__ import annotations

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, attr, computed, const, op, opt, var

x, weight, bias = var("x", "n c h w"), const("weight", "o c kh kw"), var("bias", "o")


def has_one_pixel(match: Match) -> Refusal | None:
    """The image and the kernel have one pixel, and nothing is added around it."""
    if any(match.size(name) != 1 for name in ("h", "w")):
        return match.refuse("shape", "x", ("n", "c", 1, 1))
    if any(match.size(name) != 1 for name in ("kh", "kw")):
        return match.refuse("shape", "weight", ("o", "c", 1, 1))
    if match["auto_pad"] == "NOTSET":
        return match.unless_value("pads", not any(match["pads"] or ()), "none")
    return None  # a kernel of one pixel needs none


RULES = [
    Rule(
        name="conv.single_pixel_to_gemm",
        formula="Conv(x, weight, bias), x and weight of one pixel",
        pattern=op.Conv(
            x, weight, opt(bias), auto_pad=attr("auto_pad"), dilations=attr("dilations"), group=1,
            kernel_shape=attr("kernel_shape"), pads=attr("pads"), strides=attr("strides"),
        ),
        replace=op.Reshape(
            op.Gemm(op.Flatten(x, axis=1), op.Reshape(weight, computed("matrix", lambda match: np.array(
                [match.size("o"), match.size("c")], np.int64))), opt(bias), transB=1),
            computed("image", lambda match: np.array([-1, match.size("o"), 1, 1], np.int64)),
        ),
        guards=(has_one_pixel,),
        exactness=Exactness.ROUNDING,
        source="ONNX operators Conv and Gemm",
        test=RuleTest(
            shapes={"x": "n 4 1 1", "weight": "3 4 1 1", "bias": "3"},
            attributes={"pads": [None, (0, 0, 0, 0)], "strides": [None, (2, 2)], "dilations": [None, (1, 1)],
                        "kernel_shape": [None, (1, 1)], "auto_pad": ["NOTSET", "SAME_UPPER", "VALID"]},
            typical=tuple(
                {"x": f"1 {inputs} 1 1", "weight": f"{outputs} {inputs} 1 1", "bias": f"{outputs}"}
                for inputs, outputs in ((576, 144), (144, 576), (96, 24), (24, 96), (1280, 1000), (16, 8))
            ),
            counterexamples={
                "two pixels": Variation(shapes={"x": "n 4 1 2"}),
                "padding": Variation(attributes={"pads": (1, 0, 1, 0), "auto_pad": "NOTSET"}),
            },
        ),
    ),
]  # fmt: skip
