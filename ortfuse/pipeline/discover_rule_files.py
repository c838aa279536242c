"""Discover rule files: the built-in catalogue, those of installed packages, and those that the user names.

A rule file is a Python module with `RULES`, a list of rules, and optionally `PASS`, the name of the pass that runs them
(`fuse.<module name>` if it is not given). Files that share a `PASS` are one pass. A folder of rule files holds one
module per family, or a package per family, whose files make up one pass: `fuse.<package name>`, or the `PASS` of its
`__init__.py`. Modules whose names start with an underscore are helpers, which the others import relatively.

Passes named `contrib.NAME` have rules that save nothing in any model that is known. No list of passes has them, and `fuse.*`
does not: a pipeline names them, or the user does in place of a file.

A file or folder with `TARGETS = ("cpu",)` has rules that only trade speed, as it was measured on these targets: they are not
applied for others. A target's own rules are the files of its folder `decompositions/`; they run in `target_decompositions`.

Files are tried in the order of `ORDER` in `__init__.py`: a tuple of names of files and folders, or of files in folders
(`"attention/masks"`), which come where they are named themselves. Those that are not named come last, by name.

The engine has no import statements for the catalogue. In an installed package it is the module `ortfuse.patterns`, in a
checkout the folder `patterns/` next to the package.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from ortfuse.errors import OrtfuseError, RuleError
from ortfuse.pipeline.rule_catalogue import CONTRIB, Catalogue, RuleFile, Source
from ortfuse.pipeline.rule_index import RuleIndex
from ortfuse.rewrite import Rule, demand_rule_test, missing_shapes
from ortfuse.targets import TargetSpec, default_spec

ENTRY_POINTS = "ortfuse.patterns"
"""The entry point group under which an installed package offers a rule module, or a package of them."""

BUILT_IN_PACKAGE = "ortfuse.patterns"

GIVEN = "fuse.given"
"""The pass of rules that are given as objects."""

_PASS_NAME = re.compile(r"[A-Za-z_][\w\-]*(\.[\w\-]+)*")
_numbers = itertools.count()


DECOMPOSITIONS = "target_decompositions"
"""The pass of rules that decompose operators for a target, which runs last."""


def load_catalogue(patterns: Iterable[str | Path | Rule] = (), target: TargetSpec | None = None) -> Catalogue:
    """Find all rules.

    Args:
        patterns: Files and folders that the user names, which are read again on each call, and rules given as objects. The
            name of a pass of `contrib` stands for it, and `contrib` for all of these.
        target: The target whose own rules are added; by default the default one.

    Raises:
        RuleError: A file cannot be loaded, declares no rules, or declares one that is invalid or whose name is already
            taken. The message names the file and the rule.
    """
    named = [patterns] if isinstance(patterns, str | Path) else patterns
    files = [*_built_in(), *_of_target(target or default_spec()), *_from_packages()]
    by_name = dict.fromkeys(file.pass_name for file in files if file.pass_name.startswith(f"{CONTRIB}."))
    asked: dict[str, None] = {}
    for path in (Path(one) for one in named if not isinstance(one, Rule)):
        found = [name for name in by_name if str(path) in (CONTRIB, name) and not path.exists()]
        asked |= dict.fromkeys(found)
        files += [] if found else _from_path(path)
    loose = tuple(one for one in named if isinstance(one, Rule))
    if loose:
        for rule in loose:
            _check_proof(rule, "the rules given as objects")
        files.append(RuleFile(GIVEN, loose, "the rules given as objects", "user"))
    _check_names(files)
    return Catalogue(tuple(files), tuple(asked))


def rules_in(paths: Iterable[Path]) -> tuple[Rule, ...]:
    """Collect the rules of files and folders.

    A file or folder of the built-in catalogue is not loaded a second time, under which its names would be taken.

    Raises:
        RuleError: See `load_catalogue`.
    """
    own: list[Rule] = []
    others: list[Path] = []
    catalogue = Path(str(_built_in_package().__file__)).resolve().parent
    for path in paths:
        if path.exists() and path.resolve().is_relative_to(catalogue):
            files = (file for file in _built_in() if Path(file.origin).resolve().is_relative_to(path.resolve()))
            own += [rule for file in files for rule in file.rules]
        else:
            others.append(path)
    return (*own, *load_catalogue(others).rules_from("user"))


def _check_names(files: Iterable[RuleFile]) -> None:
    origins: dict[str, str] = {}
    for file in files:
        for rule in file.entries:
            if rule.name in origins:
                raise RuleError(
                    f"{file.origin}: the rule name {rule.name!r} is taken by {origins[rule.name]}; rename one"
                )
            origins[rule.name] = file.origin


@functools.cache
def _built_in() -> tuple[RuleFile, ...]:
    package = _built_in_package()
    index = RuleIndex.of(Path(next(iter(package.__path__))))
    return tuple(file for _, file in _by_path(package, "built-in", index=index))


def _of_target(spec: TargetSpec) -> list[RuleFile]:
    """The rules in the folder of a target."""
    if spec.decompositions is None:
        return []
    package = _folder_as_package(spec.decompositions, f"ortfuse_target_patterns_{next(_numbers)}")
    return [replace(file, targets=(spec.name,)) for _, file in _by_path(package, "target", DECOMPOSITIONS)]


def _built_in_package() -> ModuleType:
    try:
        return importlib.import_module(BUILT_IN_PACKAGE)
    except ModuleNotFoundError as error:
        if error.name != BUILT_IN_PACKAGE:
            raise
    folder = Path(__file__).resolve().parents[2] / "patterns"
    if not folder.is_dir():
        raise RuleError(
            f"the built-in rules are missing: there is neither {BUILT_IN_PACKAGE} nor {folder}; install ortfuse again"
        )
    return _folder_as_package(folder, BUILT_IN_PACKAGE)


def _places() -> tuple[tuple[str, int], ...]:
    """The folders where packages are looked for, and when something was last installed there."""
    found = []
    for place in sys.path:
        try:
            found.append((place, os.stat(place or ".").st_mtime_ns))  # noqa: PTH116 - asked before every run
        except OSError:
            found.append((place, 0))
    return tuple(found)


@functools.lru_cache(maxsize=1)
def _offered(places: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """The rule files of installed packages; looking through all packages takes as long as optimising a small model."""
    return tuple(entry_points(group=ENTRY_POINTS))


def _from_packages() -> Iterator[RuleFile]:
    for entry in _offered(_places()):
        package = entry.dist.name if entry.dist is not None else entry.value
        try:
            module = entry.load()
        except Exception as error:
            raise RuleError(
                f"package {package}: the rules at {entry.value} cannot be loaded: {_where(error)}; install it again, or remove it"
            ) from error
        if not isinstance(module, ModuleType):
            raise RuleError(
                f"package {package}: the entry point {entry.name} must name a module or package, not {entry.value}"
            )
        yield from _rule_files(module, "package")


def _from_path(path: Path) -> list[RuleFile]:
    if not path.exists():
        raise RuleError(f"{path}: no such rule file or folder")
    # Each load gets a fresh module name: the file may have changed, or another of the same name may be loaded.
    name = f"ortfuse_user_patterns_{next(_numbers)}"
    folder = path if path.is_dir() else path.parent
    package = _folder_as_package(folder.resolve(), name)
    if path.is_dir():
        _demand_regular(path.rglob("*.py"))
        files = list(_rule_files(package, "user"))
        if not files:
            raise RuleError(f"{path}: the folder has no rule files (*.py whose name does not start with an underscore)")
        return files
    if path.suffix != ".py":
        raise RuleError(f"{path}: a rule file is a Python file (*.py)")
    _demand_regular([path])
    importlib.invalidate_caches()
    module = _module_of(path.resolve(), f"{name}.{path.stem}")
    setattr(package, path.stem, module)
    return [_rule_file(module, "user")]


def _demand_regular(files: Iterable[Path]) -> None:
    """Check that files are no pipes: Python would wait for what comes out of them.

    Raises:
        RuleError: One is a pipe, a device, a folder or a link that leads nowhere.
    """
    for file in files:
        if os.path.lexists(file) and not file.is_file():
            raise RuleError(f"{file}: is no regular file, and a rule file is one")


def _folder_as_package(folder: Path, name: str) -> ModuleType:
    """Make a folder importable as the package `name`, whether or not it has an `__init__.py`."""
    start = folder / "__init__.py"
    _demand_regular([start])
    importlib.invalidate_caches()
    if start.exists():
        return _module_of(start, name, folder)
    module = ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module
    return module


def _module_of(file: Path, name: str, folder: Path | None = None) -> ModuleType:
    """Load this very file, and no compiled module or folder of the same name beside it.

    Raises:
        RuleError: It fails.
    """
    places = None if folder is None else [str(folder)]
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=places)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise RuleError(f"{file}: {_where(error, str(file))}") from error
    return module


def _rule_files(module: ModuleType, source: Source) -> Iterator[RuleFile]:
    """The rule file of a module, or all those of a package in their order."""
    yield from (file for _, file in _by_path(module, source))


def _by_path(
    module: ModuleType,
    source: Source,
    default: str | None = None,
    targets: tuple[str, ...] = (),
    *,
    index: RuleIndex | None = None,
    inside: str = "",
) -> list[tuple[str, RuleFile]]:
    """The rule files by their paths in a package (`attention/masks`).

    `default` is the pass of the folder they are in, and `targets` are those that it is for. Files that the `index` of the whole
    package has are not loaded; `inside` is the path of the folder in it.
    """
    if not hasattr(module, "__path__"):
        return [("", _rule_file(module, source, default, targets))]
    targets = _targets_of(module, targets)
    files: list[tuple[str, RuleFile]] = []
    for found in sorted(pkgutil.iter_modules(module.__path__), key=lambda found: found.name):
        if not found.name.startswith("_"):
            name, own = f"{module.__name__}.{found.name}", f"{inside}{found.name}"
            if index is not None and not found.ispkg:
                known = _deferred_file(index, own, name, source, default, targets)
                if known is not None:
                    files.append((found.name, known))
                    continue
            inner = _import(name, _path_of(name))
            folder = getattr(inner, "PASS", f"fuse.{found.name}") if found.ispkg else default
            below = _by_path(inner, source, folder, targets, index=index, inside=f"{own}/")
            files += [(f"{found.name}/{path}".rstrip("/"), file) for path, file in below]
    order = {path: number for number, path in enumerate(getattr(module, "ORDER", ()))}
    return sorted(files, key=lambda file: _place(file[0], order))


def _deferred_file(
    index: RuleIndex, path: str, name: str, source: Source, default: str | None, targets: tuple[str, ...]
) -> RuleFile | None:
    """A rule file that is loaded when one of its rules is tried; it was checked when the index was written."""
    declared = index.declared(path, lambda: _import(name, _path_of(name)))
    if declared is None:
        return None
    pass_name = declared.pass_name or default or f"fuse.{name.rpartition('.')[2]}"
    own = targets if declared.targets is None else declared.targets
    return RuleFile(pass_name, declared.rules, declared.file, source, own)


def _place(path: str, order: Mapping[str, int]) -> int:
    """The number of a file in an order, or that of the innermost folder with one; behind all others if there is none."""
    while path and path not in order:
        path = path.rpartition("/")[0]
    return order.get(path, len(order))


def _path_of(name: str) -> str:
    spec = importlib.util.find_spec(name)
    return spec.origin if spec is not None and spec.origin is not None else name


def _import(name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise RuleError(f"{path}: {_where(error, path)}") from error


def _rule_file(
    module: ModuleType, source: Source, default: str | None = None, targets: tuple[str, ...] = ()
) -> RuleFile:
    origin = getattr(module, "__file__", None) or module.__name__
    stem = module.__name__.rpartition(".")[2]
    rules = getattr(module, "RULES", None)
    if not isinstance(rules, list | tuple):
        raise RuleError(f"{origin}: declares no RULES; a rule file has a list `RULES = [Rule(...), ...]`")
    for index, rule in enumerate(rules):
        if not isinstance(rule, Rule):
            raise RuleError(f"{origin}: RULES[{index}] is a {type(rule).__name__}, not a Rule")
        _check_proof(rule, origin)
    pass_name = getattr(module, "PASS", default or f"fuse.{stem}")
    if not isinstance(pass_name, str) or not _PASS_NAME.fullmatch(pass_name):
        raise RuleError(f"{origin}: PASS must be the name of a pass, such as 'fuse.{stem}', not {pass_name!r}")
    return RuleFile(pass_name, tuple(rules), origin, source, _targets_of(module, targets))


def _targets_of(module: ModuleType, targets: tuple[str, ...]) -> tuple[str, ...]:
    """The targets that a file or folder is for; by default those of the folder that it is in."""
    found = getattr(module, "TARGETS", targets)
    if not isinstance(found, tuple) or not all(isinstance(one, str) for one in found):
        raise RuleError(f"{module.__file__}: TARGETS must be a tuple of short names of targets, such as ('cpu',)")
    return found


def _check_proof(rule: Rule, origin: str) -> None:
    try:
        demand_rule_test(rule)
    except RuleError as error:
        raise RuleError(f"{origin}: {error}") from error
    if missing := missing_shapes(rule):
        names = ", ".join(missing)
        raise RuleError(
            f"{origin}: the rule test of rule {rule.name} gives no shape for {names}; write "
            f'`RuleTest(shapes={{"{missing[0]}": "..."}})`, or give the shape in the pattern'
        )


def _where(error: Exception, path: str = "") -> str:
    """The error in words, with the line of the file at `path` where it was raised."""
    kind = "" if isinstance(error, OrtfuseError) else f"{type(error).__name__}: "
    if isinstance(error, SyntaxError):
        place = "" if error.filename == path else f" of {error.filename}"
        return f"{kind}{error.msg} (line {error.lineno}{place})"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"{kind}{error}" + (f" (line {lines[0]})" if lines else "")
