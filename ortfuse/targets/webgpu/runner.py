"""Runner of the target webgpu: sessions of the npm package onnxruntime-node.

Where there is no GPU, Vulkan on the processor takes its place: SwiftShader, as Debian's package chromium has it. Its results are
right, and its latencies say nothing about a GPU.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from runpy import run_path
from typing import Any

SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
"""The Vulkan driver that computes on the processor."""

DEVICES = Path("/dev")
"""The folder of devices."""

MANIFESTS = "vulkan/icd.d"
"""The folder of drivers in each folder of data or configuration that Vulkan's loader searches."""

_DRIVERS = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
"""Variables that name drivers in the place of those of the folders; the first one that is set counts."""

_SOFTWARE = ("swiftshader", "lvp_icd")
"""Parts of the names of drivers that compute on the processor, of SwiftShader and of Mesa's lavapipe."""

_LOADER = Path(__file__).parents[2] / "runtime" / "load_node_sessions.py"


def session_class(base: Any) -> Any:
    """Return the class of sessions (`ortfuse.runtime.session_subprocess.session_class`)."""
    node_sessions = run_path(str(_LOADER))["node_sessions"]()
    return node_sessions.class_for(base, "onnxruntime-node", "webgpu", environment())


def environment() -> dict[str, str]:
    """Return the variables with which Node.js finds a driver, where there is no GPU."""
    if _has_device() or any(name in os.environ for name in _DRIVERS) or not SWIFTSHADER.is_file():
        return {}
    return {_DRIVERS[-1]: str(SWIFTSHADER)}


def has_gpu() -> bool:
    """Tell whether sessions are on a GPU, as far as devices and names of drivers tell: the package names no adapter.

    Systems other than Linux have drivers of their own, and count as having a GPU.
    """
    if not sys.platform.startswith("linux"):
        return True
    named = next((os.environ[name] for name in _DRIVERS if os.environ.get(name)), "")
    drivers = [Path(one) for one in named.split(os.pathsep) if one] or _installed_drivers()
    is_software = [any(part in driver.name.lower() for part in _SOFTWARE) for driver in drivers]
    return _has_device() and not (drivers and all(is_software))


def _has_device() -> bool:
    return any(DEVICES.glob("dri/renderD*")) or any(DEVICES.glob("nvidia[0-9]"))


def _installed_drivers() -> list[Path]:
    """The drivers in the folders that Vulkan's loader searches."""
    given = os.environ
    homes = [given.get("XDG_CONFIG_HOME") or "~/.config", given.get("XDG_DATA_HOME") or "~/.local/share"]
    system = [given.get("XDG_CONFIG_DIRS") or "/etc/xdg", given.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"]
    folders = [*homes, *":".join(system).split(":"), "/etc"]
    return [driver for folder in folders for driver in (Path(folder).expanduser() / MANIFESTS).glob("*.json")]
