"""Describe operators to the analyses: one module per family, the functions of an operator one below the other.

Each function is registered by the decorator of its facet: `transfer` (shapes), `ranges`, `columns`, `norms`, `periods`, `bounds`
or `cost`. The analyses look at the registry alone (see `ortfuse.ir.operators`). `ortfuse.analysis.facts` fills it by importing
this package.
"""

from ortfuse.analysis.operators import (
    arithmetic,
    attention,
    cast_and_identity,
    concat_split_pad,
    control,
    convolution,
    creation,
    indexing,
    logic,
    matmul,
    normalization,
    quantization,
    recurrent,
    reduction,
    repeating,
    reshaping,
    sequence,
    unary,
)

__all__ = [
    "arithmetic",
    "attention",
    "cast_and_identity",
    "concat_split_pad",
    "control",
    "convolution",
    "creation",
    "indexing",
    "logic",
    "matmul",
    "normalization",
    "quantization",
    "recurrent",
    "reduction",
    "repeating",
    "reshaping",
    "sequence",
    "unary",
]
