"""Lower ai.onnx RMSNormalization to SimplifiedLayerNormalization, for targets without its kernel.

rmsnorm(x, scale) = simplified_layer_normalization(x, scale)

ONNX Runtime registers the latter in the domain of the standard, which lacks it. The rule comes after all fusions, which find
ai.onnx RMSNormalization for every target.
"""

from __future__ import annotations

from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import attr, op, var
from ortfuse.targets import Quirk

PASS = "lower_operators"

_kept = {name: attr(name) for name in ("axis", "epsilon", "stash_type")}

RULES = [
    Rule(
        name="rmsnorm.lower_to_simplified_layer_normalization",
        pattern=op.RMSNormalization(var("x"), var("scale"), **_kept),
        replace=op.SimplifiedLayerNormalization(var("x"), var("scale"), **_kept),
        is_refinement=True,
        because=Quirk.LACKS_RMS_NORMALIZATION,
        exactness=Exactness.ROUNDING,
        source="ONNX operator RMSNormalization",
        test=RuleTest(
            shapes=({"x": "b s 8", "scale": "8"}, {"x": "b 3 8", "scale": "3 8"}),
            attributes=(
                {"axis": [-1, 2], "epsilon": [1e-5, 0.1], "stash_type": [1]},
                {"axis": [1], "epsilon": [1e-5], "stash_type": [1]},
            ),
            opset=23,
        ),
    ),
]
