"""Registry of targets: find their folders, and a target by its short name or its provider.

Three places are looked through, in this order:

- the folders in `ortfuse/targets/`;
- packages with an entry point in the group `ortfuse.targets`, which names a module with `TARGET`;
- folders that the user names (`Options(target="path/of/folder")`, `--target path/of/folder`).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from ortfuse.errors import TargetError
from ortfuse.targets.target_spec import TargetSpec

ENTRY_POINTS = "ortfuse.targets"
"""The entry point group under which an installed package offers a target."""

_START = "__init__.py"
_numbers = itertools.count()
_loaded: dict[str, TargetSpec] = {}
"""The targets of folders that users named, by short name."""
_read: dict[Path, tuple[tuple[tuple[str, int], ...], TargetSpec]] = {}


@functools.cache
def built_in() -> tuple[TargetSpec, ...]:
    """Return the targets whose folders come with ortfuse."""
    folders = sorted(file.parent.name for file in Path(__file__).parent.glob(f"*/{_START}"))
    return tuple(_spec_in(importlib.import_module(f"ortfuse.targets.{name}")) for name in folders)


@functools.cache
def default_spec() -> TargetSpec:
    """Return the target of models that name none."""
    return next(spec for spec in built_in() if spec.is_default)


def known_targets() -> tuple[TargetSpec, ...]:
    """Return every target: built-in ones, those of installed packages, those of folders that were named.

    Raises:
        TargetError: A package offers something else.
    """
    return (*built_in(), *_from_packages(), *_loaded.values())


def spec_of(target: str | TargetSpec | None) -> TargetSpec:
    """Return a target by its short name or its provider; `None` stands for the default.

    A provider without a folder is a target of which only its installed kernels are known.

    Raises:
        TargetError: A package offers a target that is none.
    """
    if isinstance(target, TargetSpec):
        return target
    if target is None:
        return default_spec()
    found = _named(target, built_in()) or _named(target, tuple(_loaded.values())) or _named(target, _from_packages())
    return found or TargetSpec(name=target, provider=target)


def load_target(folder: str | Path) -> TargetSpec:
    """Read the folder of a target; from then on its short name and its provider stand for it.

    Raises:
        TargetError: The folder is not one of a target, or has a name or provider of a target that comes with ortfuse.
    """
    place = Path(folder).resolve()
    file, stamp = place / _START, _stamp(place)
    if place in _read and _read[place][0] == stamp:
        return _read[place][1]
    if not file.is_file():
        found = f"it has no {_START} with `TARGET = TargetSpec(...)`" if place.is_dir() else "there is no such folder"
        raise TargetError(f"{folder} is no folder of a target: {found}")
    name = f"ortfuse_target_{next(_numbers)}"
    made = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(place)])
    assert made is not None
    assert made.loader is not None
    module = importlib.util.module_from_spec(made)
    sys.modules[name] = module
    importlib.invalidate_caches()
    try:
        made.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise TargetError(f"{file}: {type(error).__name__}: {error}") from error
    spec = _spec_in(module)
    for other in built_in():
        if spec.name == other.name or spec.provider == other.provider:
            raise TargetError(
                f"{file}: {spec.name} ({spec.provider}) is the name or provider of {other.name}; choose others"
            )
    _loaded[spec.name] = spec
    _read[place] = (stamp, spec)
    return spec


def _stamp(folder: Path) -> tuple[tuple[str, int], ...]:
    """When the files of a folder were last written: one that changed is read again."""
    return tuple(
        (str(file), file.stat().st_mtime_ns)
        for file in sorted(folder.rglob("*"))
        if file.suffix != ".pyc" and file.is_file()
    )


def _named(target: str, specs: tuple[TargetSpec, ...]) -> TargetSpec | None:
    return next((spec for spec in specs if target in (spec.name, spec.provider)), None)


@functools.cache
def _from_packages() -> tuple[TargetSpec, ...]:
    found = []
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            module = entry.load()
        except Exception as error:
            raise TargetError(
                f"the target at {entry.value} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(module, ModuleType):
            raise TargetError(f"the entry point {entry.name} must name a module with `TARGET`, not {entry.value}")
        found.append(_spec_in(module))
    return tuple(found)


def _spec_in(module: ModuleType) -> TargetSpec:
    spec = getattr(module, "TARGET", None)
    if not isinstance(spec, TargetSpec):
        raise TargetError(f"{module.__file__}: declares no target: write `TARGET = TargetSpec(...)`")
    return spec
