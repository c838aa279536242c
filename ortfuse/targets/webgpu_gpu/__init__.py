"""WebGPU on GPUs alone: the target webgpu without the limits that hold on devices with 4 threads in a subgroup.

Such a device is SwiftShader, which computes on the processor. Kernels, releases and decompositions are those of webgpu. The
choice is the user's, and not that of the machine that optimises: results run in browsers elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

from ortfuse.targets.webgpu import TARGET as WEBGPU
from ortfuse.targets.webgpu.constraints import CONSTRAINTS_OF_GPUS

TARGET = replace(
    WEBGPU,
    name="webgpu-gpu",
    provider="webgpu-gpu",
    constraints=CONSTRAINTS_OF_GPUS,
    runner="runner_on_gpu.py",
    tried="never on a GPU: kernels and decompositions are those of webgpu, tried on SwiftShader",
)
