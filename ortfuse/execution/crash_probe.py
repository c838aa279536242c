"""Whether the runtime lives through a model: tried in a process of its own, since a crash takes its process along."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx_ir as ir

from ortfuse.errors import OutputError, VerificationError
from ortfuse.execution.session import weight_bytes
from ortfuse.model.io import save

_LOAD = """
import sys, onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.intra_op_num_threads = 1
options.add_session_config_entry("session.disable_prepacking", "1")
onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
"""
LARGEST = 1 << 30
"""Bytes of weights above which nothing is tried: writing and reading the copy would take too much room and time."""

_REFUSED = 1
"""Python's exit code after an exception: what is wrong is told in words when the model is loaded here."""


def demand_survival(model: ir.Model | Path) -> None:
    """Load `model`, or the file at a path, in another process with the runtime's own optimisations.

    A model is copied to the temporary folder, which takes a few tenths of a second, and for hundreds of megabytes of weights a
    few seconds. Nothing is tried if there are more than `LARGEST` bytes of them or the folder has no room.

    Raises:
        VerificationError: The process died.
    """
    if isinstance(model, Path):
        _demand_loading(model)
        return
    if weight_bytes(model) > LARGEST:
        return
    with tempfile.TemporaryDirectory(prefix="ortfuse-") as folder:
        path = Path(folder) / "model.onnx"
        try:
            save(model, path)
        except OutputError:
            return
        _demand_loading(path)


def _demand_loading(path: Path) -> None:
    code = subprocess.run([sys.executable, "-P", "-c", _LOAD, str(path)], capture_output=True, check=False).returncode
    if code not in (0, _REFUSED):
        raise VerificationError(f"ONNX Runtime crashes when it creates a session of the model ({_cause(code)})")


def _cause(code: int) -> str:
    return f"signal {-code}, {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
