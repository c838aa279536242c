"""The XNNPACK provider of ONNX Runtime, for phones: legality alone, from its documentation. Never run here.

Operators that it lacks run on the CPU provider.
"""

from __future__ import annotations

from pathlib import Path

from ortfuse.ir.traits import MICROSOFT
from ortfuse.targets.documented_operators import documented
from ortfuse.targets.kernel_table import KernelTable
from ortfuse.targets.target_spec import TargetSpec

_STANDARD = ("AveragePool", "Conv", "ConvTranspose", "Gemm", "MatMul", "MaxPool", "QLinearConv", "Resize", "Softmax")
_OWN = ("QLinearAveragePool", "QLinearConvTranspose", "QLinearSoftmax")


def _kernels(provider: str) -> KernelTable:
    return documented(provider, {*(("", name) for name in _STANDARD), *((MICROSOFT, name) for name in _OWN)})


TARGET = TargetSpec(
    name="xnnpack",
    provider="XnnpackExecutionProvider",
    folder=Path(__file__).parent,
    kernels=_kernels,
    tried="never run here: operators from its documentation",
)
