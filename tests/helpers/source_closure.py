"""The source files that a file can reach by its imports, read from the text: nothing is imported, and in doubt a file belongs."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_FOR_TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t].*\n|\n)+", re.MULTILINE)
_FROM = re.compile(r"^[ \t]*from\s+(\.*[\w.]*)\s+import\s+(\([^)]*\)|[^\n#]*)", re.MULTILINE)
_IMPORT = re.compile(r"^[ \t]*import\s+([^\n#]*)", re.MULTILINE)
_QUOTED = re.compile(r"""["']([A-Za-z_]\w*(?:\.\w+)+)(?::\w+)?["']""")
_BEGUN = re.compile(r"""["']([A-Za-z_]\w*(?:\.\w+)+)\.\{""")
_PROGRAM = re.compile(r"""["'](\w+)\.py["']""")
_DOTTED = re.compile(r"[\w.]+")
_NAME = re.compile(r"\w+")
_SKIPPED = frozenset({"__pycache__", "rule_index.json"})
"""Folders and files that follow from others."""


class Sources:
    """The modules below some folders, with what each of them may import.

    An import counts wherever it stands, also in a function; so does the quoted name of a module, or of a program in the same
    folder. A quoted name whose end is computed stands for all modules that begin so. Imports for the type checker alone do not count. A data file counts for the modules of its folder and of those above it.

    Args:
        roots: Folders by the name of the package that they are; by `""` a folder of modules that no package holds.
        lazy: Packages whose quoted names of modules do not count: they are the homes of names that are imported on first use.
    """

    def __init__(self, roots: Mapping[str, Path], lazy: Iterable[str] = ()) -> None:
        self._lazy = frozenset(lazy)
        self._roots = dict(roots)
        self.files: dict[str, Path] = {}
        """Each module's file by the module's dotted name."""
        self._data: dict[Path, list[Path]] = {}
        for package, folder in self._roots.items():
            for path in sorted(folder.rglob("*")):
                if path.is_file() and _SKIPPED.isdisjoint(path.parts):
                    self._add(package, folder, path)
        self._names = {path: name for name, path in self.files.items()}

    def _add(self, package: str, folder: Path, path: Path) -> None:
        if path.suffix != ".py":
            self._data.setdefault(path.parent, []).append(path)
            return
        parts = [*filter(None, [package]), *path.relative_to(folder).with_suffix("").parts]
        self.files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path

    def module(self, path: Path) -> str:
        """The dotted name of the module in a file.

        Raises:
            KeyError: The file is below none of the folders.
        """
        return self._names[path.resolve()]

    @functools.cache  # noqa: B019 - one object a run
    def imports(self, name: str) -> frozenset[str]:
        """The modules that a module names, and the packages that hold them."""
        text = _FOR_TYPES.sub("", self.files[name].read_text(encoding="utf-8"))
        is_package = self.files[name].name == "__init__.py"
        named = {*(dotted for names in _IMPORT.findall(text) for dotted in _DOTTED.findall(names))}
        for source, names in _FROM.findall(text):
            full = _absolute(source, name, is_package)
            named |= {full, *(f"{full}.{one}" for one in _NAME.findall(names))}
        if name not in self._lazy:
            named |= {*_QUOTED.findall(text)}
            for begun in _BEGUN.findall(text):
                named |= {module for module in self.files if module.startswith(f"{begun}.")}
        package = name if is_package else name.rpartition(".")[0]
        named |= {f"{package}.{program}" for program in _PROGRAM.findall(text)}
        return frozenset(module for dotted in named for module in self._along(dotted)) - {name}

    def _along(self, dotted: str) -> Iterator[str]:
        """The modules that are imported when a dotted name is: it and the packages that hold it."""
        parts = dotted.split(".")
        yield from (module for end in range(1, len(parts) + 1) if (module := ".".join(parts[:end])) in self.files)

    def closure(self, *names: str) -> frozenset[str]:
        """The modules that modules reach, with themselves and the packages that hold them."""
        found: set[str] = set()
        left = [module for name in names for module in self._along(name)]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self.imports(name) - found
        return frozenset(found)

    @functools.cache  # noqa: B019 - one object a run
    def _digest(self, path: Path) -> bytes:
        return hashlib.sha256(path.read_bytes()).digest()

    @functools.cache  # noqa: B019 - one object a run
    def hash(self, *names: str) -> str:
        """A hash of all that modules reach: names and contents of the files, and of the data beside them."""
        total = hashlib.sha256()
        modules = sorted(self.closure(*names))
        folders = {self.files[name].parent for name in modules}
        for name in modules:
            total.update(name.encode() + b"\0" + self._digest(self.files[name]))
        for folder in sorted(folder for folder in self._data if folders & {folder, *folder.parents}):
            for path in self._data[folder]:
                total.update(path.name.encode() + b"\0" + self._digest(path))
        return total.hexdigest()


def _absolute(source: str, module: str, is_package: bool) -> str:
    """The package or module of a `from ... import`, without leading dots."""
    dots = len(source) - len(source.lstrip("."))
    if not dots:
        return source
    parts = module.split(".")
    kept = parts[: len(parts) - dots + is_package]
    return ".".join([*kept, *filter(None, [source[dots:]])])
