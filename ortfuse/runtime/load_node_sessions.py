"""Load the package that the runners of targets in Node.js share; they run this file, since they import nothing of ortfuse."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

_SHARED = "ortfuse_node_sessions"


def node_sessions() -> Any:
    """Return the package `node_sessions`, under a name of its own; it is loaded once, as its sessions share processes."""
    if _SHARED not in sys.modules:
        folder = Path(__file__).with_name("node_sessions")
        spec = importlib.util.spec_from_file_location(
            _SHARED, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[_SHARED] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[_SHARED]
