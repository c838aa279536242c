"""The CoreML provider of ONNX Runtime, for Apple's devices: legality alone, from its documentation. Never run here."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.targets.documented_operators import documented
from ortfuse.targets.kernel_constraints import input_at, input_limit
from ortfuse.targets.kernel_table import KernelTable
from ortfuse.targets.target_spec import TargetSpec

_STANDARD = """
Add ArgMax AveragePool BatchNormalization Cast Clip Concat Conv DepthToSpace Div Flatten Gemm GlobalAveragePool GlobalMaxPool
LRN LeakyRelu MatMul MaxPool Mul PRelu Pad Pow Reciprocal ReduceSum Relu Reshape Resize Sigmoid Sqrt Squeeze Sub Tanh Transpose
"""


def _kernels(provider: str) -> KernelTable:
    return documented(provider, {("", name) for name in _STANDARD.split()})


def _constant_weights(node: ir.Node, facts: Facts) -> Refusal | None:
    value = input_at(node, 1)
    return (
        None if value is None or value.const_value is not None else input_limit(node, 1, "B", "computed", "a constant")
    )


TARGET = TargetSpec(
    name="coreml",
    provider="CoreMLExecutionProvider",
    folder=Path(__file__).parent,
    kernels=_kernels,
    constraints=dict.fromkeys((("", "Conv"), ("", "Gemm"), ("", "MatMul"), ("", "PRelu")), _constant_weights),
    tried="never run here: operators from its documentation",
)
