"""Runner of the target webgpu: sessions of the npm package onnxruntime-node.

Where there is no GPU, Vulkan on the processor takes its place: SwiftShader, as Debian's package chromium has it. Its results are
right, and its latencies say nothing about a GPU.
"""

from __future__ import annotations

import os
from pathlib import Path
from runpy import run_path
from typing import Any

SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
"""The Vulkan driver that computes on the processor."""

DEVICES = Path("/dev")
"""The folder of devices."""

_DRIVERS = "VK_ICD_FILENAMES"
_LOADER = Path(__file__).parents[2] / "runtime" / "load_node_sessions.py"


def session_class(base: Any) -> Any:
    """Return the class of sessions (`ortfuse.runtime.session_subprocess.session_class`)."""
    node_sessions = run_path(str(_LOADER))["node_sessions"]()
    return node_sessions.class_for(base, "onnxruntime-node", "webgpu", environment())


def environment() -> dict[str, str]:
    """Return the variables with which Node.js finds a driver, where there is no GPU."""
    gpu = any(DEVICES.glob("dri/renderD*")) or any(DEVICES.glob("nvidia[0-9]"))
    if gpu or _DRIVERS in os.environ or not SWIFTSHADER.is_file():
        return {}
    return {_DRIVERS: str(SWIFTSHADER)}
