"""WebGPU on GPUs alone: the target webgpu without the limits that hold on devices with 4 threads in a subgroup.

Such a device is SwiftShader, which computes on the processor: no models run for this target there. Kernels, releases and
decompositions are those of webgpu. The choice is the user's, and not that of the machine that optimises: results run in browsers
elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

from ortfuse.targets.webgpu import TARGET as WEBGPU
from ortfuse.targets.webgpu.constraints import CONSTRAINTS_OF_GPUS
from ortfuse.targets.webgpu.runner import has_gpu

TARGET = replace(
    WEBGPU,
    name="webgpu-gpu",
    provider="webgpu-gpu",
    constraints=CONSTRAINTS_OF_GPUS,
    runs_on=WEBGPU.runs_on if has_gpu() else (),
    needs="a GPU with a driver of its own: on the processor (SwiftShader, lavapipe) attention of 32 queries and more is wrong",
    tried="never on a GPU: kernels and decompositions are those of webgpu, tried on SwiftShader",
)
