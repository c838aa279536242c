"""Add truth values in place of an And that broadcasts, which the runtime may compute by the program of another And.

a and b = float(a) + float(b) > 1.5      (a product of the numbers becomes an And again)

*Requires:* shapes that are not provably equal.

Rationale: onnxruntime-node 1.30.0 keeps compiled programs under a key that does not tell how the operands of And are broadcast
(`WebGPUBug.SHARES_PROGRAMS_OF_AND`). With two in a session, such as [1, 1, 8, 1] and [2, 1, 1, 8] before [1, 1, 8, 8] and
[1, 1, 8, 1], one of them is wrong; 46 of 90 pairs of shapes were. Less, Equal, Add and the form here are right for all of them.
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, op, var
from ortfuse.targets.webgpu.constraints import WebGPUBug
from ortfuse.targets.webgpu.decompositions._integers_in_float32 import number

a, b = var("a"), var("b")


def may_broadcast(match: Match) -> Refusal | None:
    """The shapes are not provably equal."""
    first, second = match.shape("a"), match.shape("b")
    if first is not None and second is not None and tuple(first) == tuple(second):
        return match.refuse("needless", "root", found="an And of equal shapes")
    return None


def _as_number(truth: Pattern) -> Pattern:
    made: Pattern = op.Cast(truth, to=ir.DataType.FLOAT)
    return made


RULES = [
    Rule(
        name="known_bug.add_for_broadcasting_and",
        is_refinement=True,
        because=WebGPUBug.SHARES_PROGRAMS_OF_AND,
        pattern=op.And(a, b),
        replace=op.Greater(op.Add(_as_number(a), _as_number(b)), number("between one and two", 1.5)),
        guards=(may_broadcast,),
        exactness=Exactness.EXACT,
        source="ONNX operators",
        test=RuleTest(shapes={"a": "b 4", "b": "4"}, inputs={"a": "bool", "b": "bool"}),
    )
]
