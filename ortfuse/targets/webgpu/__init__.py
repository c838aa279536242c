"""WebGPU: the provider of that name, in browsers by onnxruntime-web, and in Node.js by onnxruntime-node."""

from __future__ import annotations

from pathlib import Path

from ortfuse.targets.target_spec import TargetSpec
from ortfuse.targets.webgpu.constraints import CONSTRAINTS, WebGPUBug

TARGET = TargetSpec(
    name="webgpu",
    provider="WebGpuExecutionProvider",
    folder=Path(__file__).parent,
    kernels="stored",
    constraints=CONSTRAINTS,
    known_bugs=frozenset(WebGPUBug),
    sizes_on="cpu",
    decomposed=frozenset({("", "QuantizeLinear"), ("", "MatMulInteger")}),
    runs_on=("WebGpuExecutionProvider",),
    runner="runner.py",
    tried="16 golden models in Node.js, on SwiftShader; never on a GPU",
)
