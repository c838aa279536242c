"""Import certain modules of other libraries on first use, instead of along with the library.

onnx_ir imports sympy for arithmetic on symbolic dimensions, for which ortfuse has its own code. Loading sympy takes as long as
optimising a small model. onnx imports its hub, its composition of models, and its other file formats.

While such a library is imported, stand-ins take the place of these modules; each imports its module when it is asked for
something. Nobody else meets them: `import sympy` anywhere else gives sympy.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

ON_USE: Mapping[str, Sequence[str]] = {
    "onnx": ("onnx.hub", "onnx.compose", "onnx.serialization"),
    "onnx_ir": ("sympy", "onnx_ir._symbolic_shapes"),
}
"""The libraries, each with the modules that it imports and seldom uses."""


class StandIn(ModuleType):
    """A module that is imported when it is asked for something."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


class Finder(importlib.abc.MetaPathFinder):
    """Find the libraries like the usual finder, and have them loaded with stand-ins."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Called by the import system; finds nothing but the libraries."""
        if fullname not in ON_USE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, ON_USE[fullname])
        return spec


class _Loader(importlib.abc.Loader):
    """Load a library with its own loader, while stand-ins take the place of modules that are not loaded."""

    def __init__(self, own: importlib.abc.Loader, modules: Sequence[str]) -> None:
        self._own, self._modules = own, modules

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Make the module as its own loader does."""
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load the library; afterwards it is as if its own loader had loaded it."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._own
        inside = getattr(module, "__path__", None)
        stand_ins = {
            name: StandIn(name)
            for name in self._modules
            if name not in sys.modules
            and importlib.machinery.PathFinder.find_spec(name, inside if "." in name else None) is not None
        }
        sys.modules.update(stand_ins)
        try:
            self._own.exec_module(module)
        finally:
            for name, stand_in in stand_ins.items():
                if sys.modules.get(name) is stand_in:
                    del sys.modules[name]


def install() -> None:
    """Import these modules on use, unless the libraries are already imported."""
    sys.meta_path.insert(0, Finder())
