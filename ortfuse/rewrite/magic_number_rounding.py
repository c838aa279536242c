"""Recognise rounding by adding and subtracting 1.5 * 2^23, and keep rules from merging such sums.

In float32, `x + 1.5 * 2^23` has no digits behind the point, and subtracting the number again leaves x rounded to an integer.
Exported quantisation and fast rounding use this. Merged with other terms, such a number would round something else, or
nothing.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.rewrite.pattern.match_operators import Match
from ortfuse.rewrite.rule import Exactness, Rule

LEAST = {
    ir.DataType.FLOAT: 2.0**13,
    ir.DataType.DOUBLE: 2.0**42,
    ir.DataType.FLOAT16: 2.0**10,
    ir.DataType.BFLOAT16: 2.0**7,
}
"""The smallest numbers that count: sums with them keep ten binary digits behind the point or fewer; in half precision none."""

MOST = {
    ir.DataType.FLOAT: 2.0**27,
    ir.DataType.DOUBLE: 2.0**56,
    ir.DataType.FLOAT16: 2.0**14,
    ir.DataType.BFLOAT16: 2.0**11,
}
"""The largest numbers that count: beyond them hardly anything is left of what they are added to, as in masks."""


def rounding_number(node: ir.Node, facts: Facts) -> ir.Value | None:
    """The constant that a node adds or takes off, if all of its numbers are so large that they round the rest."""
    dtype = facts.dtype(node.outputs[0]) if node.op_type in ("Add", "Sub") and not node.domain else None
    if dtype not in LEAST:
        return None
    for value in node.inputs:
        numbers = None if value is None else facts.const(value)
        if numbers is not None and numbers.size:
            sizes = np.abs(numbers.astype(np.float64))
            return value if bool(np.all((sizes >= LEAST[dtype]) & (sizes <= MOST[dtype]))) else None
    return None


def merged_with_others(rule: Rule, match: Match) -> Refusal | None:
    """A refusal if a rule that may round otherwise would take in a sum that rounds on purpose."""
    if rule.exactness is Exactness.EXACT:
        return None
    for node in match.nodes:
        number = rounding_number(node, match.facts)
        if number is not None:
            return refuse(
                "value", number, found="so large that it rounds what it is added to", needed="small beside it"
            )
    return None
