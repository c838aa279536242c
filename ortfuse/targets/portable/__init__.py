"""Operators of the ONNX standard alone, for runtimes and compilers that read plain ONNX.

TensorRT, OpenVINO, tract, MNN, TVM, rten and compilers for hardware read such models. Each operator that ONNX defines counts as
executable on the types of its definition, and no operator of ONNX Runtime's own does. Nothing is done for speed alone.
"""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal, words
from ortfuse.targets.attention_constraints import attention_is_plain
from ortfuse.targets.kernel_constraints import input_limit
from ortfuse.targets.known_bugs import Quirk
from ortfuse.targets.portable.standard_operators import standard_operators
from ortfuse.targets.target_spec import TargetSpec

_RESIZED = frozenset(
    {
        *(ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16),
        *(ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32),
    }
)


def _resizes_pixels(node: ir.Node, facts: Facts) -> Refusal | None:
    """Refuse Resize of types that images do not have, such as positions in int64 and angles in float64."""
    dtype = facts.dtype(node.inputs[0])
    return None if dtype in _RESIZED else input_limit(node, 0, "X", words(dtype), "of a type that pixels have")


TARGET = TargetSpec(
    name="portable",
    provider="portable",
    folder=Path(__file__).parent,
    kernels=standard_operators,
    constraints={("", "Attention"): attention_is_plain, ("", "Resize"): _resizes_pixels},
    known_bugs=frozenset({Quirk.MAY_ZERO_MASKED_ROWS}),
    # what ONNX Runtime, which runs results here, takes
    runs_on=("CPUExecutionProvider",),
    tried="golden models and other exports: ONNX's checker and strict inference, ONNX Runtime on the CPU, OpenVINO",
)
