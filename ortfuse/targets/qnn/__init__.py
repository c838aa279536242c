"""The QNN provider of ONNX Runtime, for Qualcomm's processors: legality alone, from its documentation. Never run here.

It takes no open dimensions: fix them (`--fix`). What stays in float32 is computed in float16 on its HTP backend.
"""

from __future__ import annotations

from pathlib import Path

from ortfuse.ir.traits import MICROSOFT
from ortfuse.targets.documented_operators import documented
from ortfuse.targets.kernel_table import KernelTable
from ortfuse.targets.target_spec import TargetSpec

_STANDARD = """
Abs Add And ArgMax ArgMin Asin Atan AveragePool BatchNormalization Cast Clip Concat Conv ConvTranspose Cos DepthToSpace
DequantizeLinear Div Elu Equal Exp Expand Flatten Floor Gather Gelu Gemm GlobalAveragePool Greater GreaterOrEqual GridSample
HardSwish InstanceNormalization LRN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization MatMul Max
MaxPool Min Mul Neg Not Or PRelu Pad Pow QuantizeLinear ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape Resize
Round Sigmoid Sign Sin Slice Softmax SpaceToDepth Split Sqrt Squeeze Sub Tanh Tile TopK Transpose Unsqueeze Where
"""
_OWN = ("DequantizeLinear", "Gelu", "QuantizeLinear")


def _kernels(provider: str) -> KernelTable:
    return documented(provider, {*(("", name) for name in _STANDARD.split()), *((MICROSOFT, name) for name in _OWN)})


TARGET = TargetSpec(
    name="qnn",
    provider="QNNExecutionProvider",
    folder=Path(__file__).parent,
    kernels=_kernels,
    tried="never run here: operators from its documentation",
    accelerator="npu",
)
