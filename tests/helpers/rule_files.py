"""Rule files for tests."""

from __future__ import annotations

HEAD = """
from ortfuse.rewrite.pattern import op, var
from ortfuse.rewrite import Exactness, RuleTest, Rule
x = var("x")
def rule(name, pattern, replace):
    return Rule(name=name, pattern=pattern, replace=replace, exactness=Exactness.EXACT, source="test",
                test=RuleTest(shapes={"x": "2"}))
"""


def rules(*names: str) -> str:
    """A rule file in which each rule removes a pair of Neg nodes."""
    return HEAD + "RULES = [" + ", ".join(f"rule({name!r}, op.Neg(op.Neg(x)), x)" for name in names) + "]\n"
