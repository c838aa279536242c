"""Runner of the target wasm: sessions of the npm package onnxruntime-web in Node.js."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

_LOADER = Path(__file__).parents[2] / "runtime" / "load_node_sessions.py"


def session_class(base: Any) -> Any:
    """Return the class of sessions (`ortfuse.runtime.session_subprocess.session_class`)."""
    node_sessions = run_path(str(_LOADER))["node_sessions"]()
    return node_sessions.class_for(base, "onnxruntime-web", "wasm", writes_files=False)
