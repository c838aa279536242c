"""Lazy imports: modules that are loaded on first use, not when they are imported.

onnx_ir imports sympy for arithmetic on symbolic dimensions, for which ortfuse has its own code. Loading sympy takes longer
than optimising a small model. onnx imports its hub, its composition of models, and its other file formats. Only the command
line does this: a program that uses ortfuse decides for itself.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Collection, Sequence
from types import ModuleType

MODULES = frozenset({"sympy", "onnx_ir._symbolic_shapes", "onnx.hub", "onnx.compose", "onnx.serialization"})


class Deferring:
    """An import finder that delegates to the other finders, but loads the given modules on first use."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Called by the import system."""
        if name not in self._names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def defer(names: Collection[str] = MODULES) -> None:
    """Load the given modules on first use, unless they are already loaded."""
    sys.meta_path.insert(0, Deferring(frozenset(names) - sys.modules.keys()))
