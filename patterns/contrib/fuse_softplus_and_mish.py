"""Fuse Softplus from a sum and a logarithm, alone and inside Mish.

softplus(x) = max(x, 0) + log(1 + exp(-|x|))
mish(x)     = x tanh(log(1 + exp(x))) = x tanh(softplus(x))                         Misra, arXiv:1908.08681

log(1 + exp(x)) is infinite if exp(x) overflows (above 88 in float32), but Softplus is not. Inside a Tanh both are 1.
The kernel of Softplus is slower than what it replaces, on each kind of processor that was measured.
"""

from __future__ import annotations

from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import op, var

from ..activation.clip import SHAPES, TYPICAL

PASS = "contrib.softplus"

x = var("x")

RULES = [
    Rule(
        name="softplus.max_plus_log_one_plus_exp",
        formula="max(x, 0) + log(1 + exp(-|x|))",
        pattern=op.Relu(x) + op.Log(1 + op.Exp(-op.Abs(x))),
        replace=op.Softplus(x),
        exactness=Exactness.ROUNDING,
        source="ONNX operator Softplus",
        test=RuleTest(shapes=SHAPES, typical=TYPICAL),
    ),
    Rule(
        name="softplus.inside_tanh_of_mish",
        formula="tanh(log(1 + exp(x)))",
        pattern=op.Tanh(op.Log(1 + op.Exp(x))),
        replace=op.Tanh(op.Softplus(x)),
        exactness=Exactness.ROUNDING,
        source="arXiv:1908.08681",
        test=RuleTest(shapes=SHAPES, typical=TYPICAL),
    ),
]
