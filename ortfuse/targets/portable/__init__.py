"""Operators of the ONNX standard alone, for runtimes and compilers that read plain ONNX.

TensorRT, OpenVINO, tract, MNN, TVM, rten and compilers for hardware read such models. Each operator that ONNX defines counts as
executable on the types of its definition, and no operator of ONNX Runtime's own does. Nothing is done for speed alone.
"""

from __future__ import annotations

from pathlib import Path

from ortfuse.targets.attention_constraints import attention_is_plain
from ortfuse.targets.portable.standard_operators import standard_operators
from ortfuse.targets.target_spec import TargetSpec

TARGET = TargetSpec(
    name="portable",
    provider="portable",
    folder=Path(__file__).parent,
    kernels=standard_operators,
    constraints={("", "Attention"): attention_is_plain},  # what ONNX Runtime, which runs results here, takes
    runs_on=("CPUExecutionProvider",),
    tried="golden models and other exports: ONNX's checker and strict inference, ONNX Runtime on the CPU, OpenVINO",
)
