"""Transfer functions: each infers the facts of an operator's outputs from the facts of its inputs.

One module per kind of operator; each function is registered by the `transfer` decorator in the module `op`.
"""

from ortfuse.analysis.transfer import (
    attention,
    control,
    convolution,
    creation,
    elementwise,
    indexing,
    linear,
    normalization,
    quantization,
    recurrent,
    reduction,
    sequence,
    shaping,
)
from ortfuse.analysis.transfer.op import TRANSFERS

__all__ = [
    "TRANSFERS",
    "attention",
    "control",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "linear",
    "normalization",
    "quantization",
    "recurrent",
    "reduction",
    "sequence",
    "shaping",
]
