"""Find Node.js and npm packages on this machine.

Node.js is found by the variable `ORTFUSE_NODE` or on `PATH`. A package is found in the folder that `ORTFUSE_NODE_MODULES` names,
else among those that npm installed globally: never in a folder that happens to be the working directory, whose code would run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NODE, MODULES = "ORTFUSE_NODE", "ORTFUSE_NODE_MODULES"
"""Environment variables: the program of Node.js, and the folder `node_modules` with the package."""


class NodeError(RuntimeError):
    """Node.js or a package is missing, has ended, or refuses what it is asked."""


def find_node() -> str:
    """Return the program of Node.js.

    Raises:
        NodeError: There is none.
    """
    named = os.environ.get(NODE, "")
    found = shutil.which(named or "node")
    if found is None:
        told = f"{NODE}={named} is no program" if named else "it is not on PATH"
        raise NodeError(f"Node.js is missing: {told}; install it (version 20 or newer), or name its program by {NODE}")
    return found


def find_package(package: str) -> Path:
    """Return the folder of an npm package.

    Raises:
        NodeError: It is not installed.
    """
    for folder in _module_folders():
        if (folder / package / "package.json").is_file():
            return folder / package
    raise NodeError(
        f"the npm package {package} is missing: run `npm install --global --ignore-scripts {package}`, "
        f"or name the folder node_modules that has it by {MODULES}"
    )


def _module_folders() -> Iterator[Path]:
    if named := os.environ.get(MODULES):
        yield Path(named).absolute()
        yield Path(named).absolute() / "node_modules"
        return
    if (npm := shutil.which("npm")) is not None:
        found = subprocess.run([npm, "root", "-g"], capture_output=True, text=True, timeout=60, check=False)
        if found.returncode == 0 and found.stdout.strip():
            yield Path(found.stdout.strip())


if sys.platform == "win32":
    raise NodeError("sessions in Node.js need pipes of POSIX systems")
