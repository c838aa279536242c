"""Modules that are loaded when something of them is asked for, not when they are imported.

onnx_ir imports sympy for arithmetic on symbolic dimensions, which ortfuse has its own way of doing. Loading it takes longer
than optimising a small model. Only the command line does this: a program that uses ortfuse decides for itself.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Collection, Sequence
from types import ModuleType

MODULES = frozenset({"sympy", "onnx_ir._symbolic_shapes"})


class Deferring:
    """Finds some modules as those around it do, but lets them be loaded at their first use."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """What the import system asks."""
        if name not in self._names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def defer(names: Collection[str] = MODULES) -> None:
    """Let modules be loaded at their first use, those left out that are loaded already."""
    sys.meta_path.insert(0, Deferring(frozenset(names) - sys.modules.keys()))
