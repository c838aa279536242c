"""Refuse edits that make two Q/DQ pairs of different scales adjacent, as ONNX Runtime then merges them.

Its optimiser (DoubleQDQPairsRemover, 1.31 among others) gives that one a scale of its own, which rounds elsewhere. It looks at
neighbours only, behind Identities, so that a Transpose that moves nothing, or a Reshape to the same shape, keeps pairs apart.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal, refuse

CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear"})
UNSEEN = frozenset({"Identity"})


@dataclass(frozen=True)
class PairsApart:
    """Objects to a change that takes away what was between quantised pairs, if not all around them have one scale."""

    facts: Facts

    def objection(self, node: ir.Node, index: int, before: ir.Value) -> Refusal | None:
        """Why a node must not have the operand that it has now, and had not before."""
        is_end = not index and node.op_type == "QuantizeLinear"
        if not is_end or not _is_dequantised(node.inputs[0]) or _is_dequantised(before):
            return None
        if not has_scales(node, self.facts, UNSEEN):
            return None
        found = (
            "between quantised pairs of two scales, of which the runtime makes one with a third, once nothing is there"
        )
        return refuse("value", before, found=found, needed="between pairs of one scale")


def is_signed(node: ir.Node, facts: Facts) -> bool:
    """Whether a node makes signed numbers of 8 bits of others that are computed, or others of these: half a signed pair."""
    if node.op_type not in CONVERSIONS or facts.is_const(node.inputs[0]):
        return False
    quantised = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    return facts.dtype(quantised) is ir.DataType.INT8


def has_scales(node: ir.Node, facts: Facts, between: Collection[str]) -> bool:
    """Whether the conversions around one, with nothing but operators of these types between them, may have several scales."""
    seen, pending = {node}, [node]
    while pending:
        here = pending.pop()
        around = [use.node for use in here.outputs[0].uses() if not use.idx]
        above = None if here.inputs[0] is None else here.inputs[0].producer()
        for other in [*around, above]:
            if other is None or other in seen or not (other.op_type in CONVERSIONS or other.op_type in between):
                continue
            if other.op_type in CONVERSIONS and _differ(node, other, facts):
                return True
            seen.add(other)
            pending.append(other)
    return False


def _is_dequantised(value: ir.Value | None) -> bool:
    """Whether a DequantizeLinear is right before a value, or was before an Identity that is removed: that passed it on."""
    above = None if value is None else value.producer()
    while above is not None and above.op_type in UNSEEN:
        if above.graph is None:
            return True
        above = None if above.inputs[0] is None else above.inputs[0].producer()
    return above is not None and above.op_type == "DequantizeLinear"


def _differ(one: ir.Node, other: ir.Node, facts: Facts) -> bool:
    """Whether two conversions may have other scales or zero points."""
    pairs = zip_longest(one.inputs[1:], other.inputs[1:])
    return any(first is not second and not _are_equal(first, second, facts) for first, second in pairs)


def _are_equal(one: ir.Value | None, other: ir.Value | None, facts: Facts) -> bool:
    first, second = (None if value is None else facts.const(value) for value in (one, other))
    return first is not None and second is not None and first.dtype == second.dtype and np.array_equal(first, second)
