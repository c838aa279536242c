"""The differences of two models in nodes, attributes, constants and interface, and the first tensor that is not the same."""

from ortfuse.difference.matching import Matching
from ortfuse.difference.structure import (
    AttributeDifference,
    ConstantDifference,
    Only,
    OperandDifference,
    Structure,
    compare_structure,
)
from ortfuse.difference.tensors import TensorDifference, Tensors, compare_tensors
from ortfuse.difference.whole import ModelDifference

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
