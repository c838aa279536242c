"""Reproduction details: command line, versions and machine."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import sys

from ortfuse.io.installed_runtime import installed_version
from ortfuse.targets.processor import processor_name
from ortfuse.version import __version__

_PACKAGES = ("onnx", "onnxruntime", "onnx_ir", "numpy")


def environment() -> list[tuple[str, str]]:
    """The conditions on which results depend, by name."""
    cores = os.cpu_count() or 1
    return [
        ("ortfuse", __version__),
        *((name, installed_version(name)) for name in _PACKAGES),
        ("Python", platform.python_version()),
        ("processor", f"{processor_name()}, {cores} logical core{'s' * (cores != 1)}"),
        ("system", platform.platform(terse=True)),
        ("made", datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="minutes")),
    ]


def command() -> str:
    """The command line of this process, as it can be given again."""
    return shlex.join(["ortfuse", *sys.argv[1:]])
