"""The TensorRT provider of ONNX Runtime: what ONNX defines up to opset 20 and CUDA has kernels of. Never run here.

TensorRT compiles operators of the standard, and the runtime leaves others to the CUDA provider: ONNX Runtime's own would cut the
engine in pieces.
"""

from __future__ import annotations

from pathlib import Path

from ortfuse.targets.cuda import TARGET as CUDA
from ortfuse.targets.documented_operators import documented
from ortfuse.targets.kernel_table import KernelTable
from ortfuse.targets.release_kernel_tables import newest_table
from ortfuse.targets.target_spec import TargetSpec

MAX_OPSET = 20
"""The opset whose operators its parser is documented to read."""


def _kernels(provider: str) -> KernelTable:
    cuda = newest_table(CUDA)
    assert cuda is not None
    names = {key for key, operator in cuda.operators.items() if operator.kernels and not key[0]}
    return documented(provider, names - {("", "SimplifiedLayerNormalization")}, MAX_OPSET)


TARGET = TargetSpec(
    name="tensorrt",
    provider="TensorrtExecutionProvider",
    folder=Path(__file__).parent,
    kernels=_kernels,
    tried="never run here: operators of the standard that CUDA has kernels of",
    accelerator="gpu",
)
