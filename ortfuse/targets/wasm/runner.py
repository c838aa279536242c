"""Runner of the target wasm: sessions of the npm package onnxruntime-web in Node.js."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

_SHARED = "ortfuse_node_sessions"


def session_class(base: Any) -> Any:
    """Return the class of sessions (`ortfuse.runtime.session_subprocess.session_class`)."""
    return _node_sessions().class_for(base, "onnxruntime-web", "wasm")


def _node_sessions() -> Any:
    """The module that targets in Node.js share; it is loaded once, as its sessions share processes."""
    if _SHARED not in sys.modules:
        file = Path(__file__).parents[1] / "node_sessions.py"
        spec = importlib.util.spec_from_file_location(_SHARED, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[_SHARED] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[_SHARED]
