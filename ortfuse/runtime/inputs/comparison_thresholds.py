"""Find constants that a model compares values with, so that generated inputs reach both sides."""

from __future__ import annotations

import math

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir import walk
from ortfuse.ir.inlinable_functions import looked_into
from ortfuse.ir.traits import COMPARES

LEAST = 4.0
"""Smaller thresholds are passed by usual numbers."""

LARGEST = 1e6
"""Larger ones are there to be passed by none, as the ends of a type are."""


def thresholds(model: ir.Model) -> list[float]:
    """The magnitudes of constants that numbers are compared with, or bounded by, the smallest first."""
    flat = looked_into(model)
    facts = Facts(flat)
    found = set[float]()
    for node in walk.nodes(flat):
        if node.domain or not (node.op_type in COMPARES or node.op_type in ("Clip", "Max", "Min")):
            continue
        for value in node.inputs:
            number = facts.scalar(value)
            if number is not None and math.isfinite(number) and LEAST <= abs(number) <= LARGEST:
                found.add(abs(float(number)))
    return sorted(found)
