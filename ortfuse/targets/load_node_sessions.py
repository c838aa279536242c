"""Load the module that the runners of targets in Node.js share; they run this file, since they import nothing of ortfuse."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

_SHARED = "ortfuse_node_sessions"


def node_sessions() -> Any:
    """Return `node_sessions.py` as a module; it is loaded once, as its sessions share processes."""
    if _SHARED not in sys.modules:
        spec = importlib.util.spec_from_file_location(_SHARED, Path(__file__).with_name("node_sessions.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[_SHARED] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[_SHARED]
