"""Differences of two models in nodes, attributes, constants and interface, and the first tensor that differs."""

from ortfuse.verification.diff.matching import Matching
from ortfuse.verification.diff.model_diff import ModelDifference
from ortfuse.verification.diff.structure import (
    AttributeDifference,
    ConstantDifference,
    Only,
    OperandDifference,
    Structure,
    compare_structure,
)
from ortfuse.verification.diff.tensors import TensorDifference, Tensors, compare_tensors

__all__ = [
    "AttributeDifference",
    "ConstantDifference",
    "Matching",
    "ModelDifference",
    "Only",
    "OperandDifference",
    "Structure",
    "TensorDifference",
    "Tensors",
    "compare_structure",
    "compare_tensors",
]
