"""Measure rule costs with the ONNX Runtime of a virtual environment, such as an older release, in a process of its own.

The process is this Python with the packages of the environment before all others, and this ortfuse. Its program is the module
`calibration_process`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortfuse.errors import OptionError, TargetError
from ortfuse.io.python_subprocess import start
from ortfuse.targets.calibrated_speedups import costs_here
from ortfuse.tuning.rule_costs.calibration import Calibration, Decision, Step

RUNTIME = "onnxruntime"
PROGRAM = "ortfuse.tuning.rule_costs.calibration_process"


def packages_of(environment: str | os.PathLike[str]) -> Path:
    """Return the folder of packages of a virtual environment that has ONNX Runtime for this Python.

    Raises:
        OptionError: The folder is no environment of this Python, or has no ONNX Runtime.
    """
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    folders = (
        Path(environment) / "lib" / f"python{version}" / "site-packages",
        Path(environment) / "Lib" / "site-packages",
    )
    found = next((folder for folder in folders if folder.is_dir()), None)
    if found is None:
        raise OptionError(
            "environment",
            f"{os.fspath(environment)} is no virtual environment of Python {version}, which runs ortfuse here",
        )
    if not (found / RUNTIME / "__init__.py").is_file():
        raise OptionError(
            "environment", f"{os.fspath(environment)} has no {RUNTIME}; install the release to measure there"
        )
    return found.resolve()


def calibrate_in(environment: str | os.PathLike[str], *, step: Step | None = None, **options: Any) -> Calibration:
    """Measure rule costs with the runtime of an environment; for the options see `calibrate`.

    Raises:
        OptionError: The environment cannot be used.
        TargetError: An option is refused there, Python loads another runtime there, or the process ended before it was done.
    """
    packages = str(packages_of(environment))
    arguments = ["-m", PROGRAM, json.dumps(options, default=_plain), packages]
    process = start(arguments, stdout=subprocess.PIPE, first=[packages])
    found: Mapping[str, Any] = {}
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            message = _message(line)
            if step is not None and "step" in message:
                step(*message["step"])
            if "found" in message or "error" in message:
                found = message
    code = process.wait()
    costs_here.cache_clear()
    if "found" not in found:
        raise TargetError(
            found.get("error") or f"measuring with {os.fspath(environment)} ended early (exit code {code})"
        )
    made = found["found"]
    return Calibration(
        **{
            **made,
            **{name: tuple(made[name]) for name in ("inconclusive", "unmeasurable", "table")},
            "changed": tuple(Decision(**one) for one in made["changed"]),
            "file": Path(made["file"]),
        }
    )


def _plain(value: object) -> str:
    """A path as text.

    Raises:
        OptionError: Another object cannot be told to another process.
    """
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    raise OptionError("environment", f"give targets and rules by name or path, not as {type(value).__name__}")


def _message(line: bytes) -> Mapping[str, Any]:
    """A line of the process; empty if something else printed it."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
