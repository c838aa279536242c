"""Runner of the target webgpu-gpu: sessions as those of webgpu, but never on SwiftShader, which computes attention wrongly."""

from __future__ import annotations

import os
from pathlib import Path
from runpy import run_path
from typing import Any

_HERE = Path(__file__)
_SOFTWARE = ("swiftshader", "lvp_icd")
"""Parts of the names of Vulkan drivers that compute on the processor, of SwiftShader and Mesa."""

WRONG = (
    "webgpu-gpu is for GPUs, and here Vulkan is on the processor, where MultiHeadAttention and GroupQueryAttention of 32 queries "
    "and more are known to be wrong: verify on a machine with a GPU, or make and verify a result for the target webgpu"
)


def session_class(base: Any) -> Any:
    """Return the class of sessions (`ortfuse.runtime.session_subprocess.session_class`)."""
    of_webgpu = run_path(str(_HERE.with_name("runner.py")))
    node_sessions = run_path(str(_HERE.parents[2] / "runtime" / "load_node_sessions.py"))["node_sessions"]()
    made: Any = of_webgpu["session_class"](base)
    drivers = (of_webgpu["environment"]() or os.environ).get("VK_ICD_FILENAMES", "")

    class OnGPU(made):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if any(name in drivers.lower() for name in _SOFTWARE):
                raise node_sessions.NodeError(WRONG)
            super().__init__(*args, **kwargs)

    return OnGPU
