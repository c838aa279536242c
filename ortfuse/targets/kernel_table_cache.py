"""Cache the kernel tables of the installed ONNX Runtime, since reading them loads the runtime.

A cached table is valid for one build of the runtime (its version, and the path, size and modification time of its library)
and one version of onnx, which determines the opsets in a table. Unreadable cache files are ignored, and a failure to write
one is too.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import importlib.util
import warnings
from pathlib import Path

import onnx
import platformdirs

from ortfuse.errors import OrtfuseWarning, TargetError
from ortfuse.io.installed_runtime import installed_version
from ortfuse.io.read_kernel_registry import RegistryError
from ortfuse.targets.kernel_table import FORMAT, KernelTable
from ortfuse.targets.registry import spec_of
from ortfuse.targets.release_kernel_tables import newest_table, releases_of
from ortfuse.targets.target_spec import TargetSpec


def table_of(spec: TargetSpec) -> KernelTable:
    """Return the kernel table of a target: that of the installed runtime, or the one in its folder if that is stored.

    If the installed build lacks the provider, models are for another machine: the newest stored table says its kernels.

    Raises:
        TargetError: The installed build has no kernels for the provider, and the folder has no table.
    """
    if callable(spec.kernels):
        return _made(spec)
    if spec.kernels == "stored":
        return _stored(spec)
    elsewhere = not spec.is_default and spec.releases_file is not None and _lacks(spec.provider)
    newest = newest_table(spec) if elsewhere else None
    return newest if newest is not None and newest.provider == spec.provider else installed_table(spec.provider)


@functools.cache
def _lacks(provider: str) -> bool:
    """Whether no runtime is installed, or one without a provider, by what it says of itself: nothing is loaded for it."""
    if importlib.util.find_spec("onnxruntime") is None:
        return True
    import onnxruntime

    return provider not in onnxruntime.get_available_providers()


@functools.cache
def _made(spec: TargetSpec) -> KernelTable:
    assert callable(spec.kernels)
    table = spec.kernels(spec.provider)
    assert isinstance(table, KernelTable)
    return table


@functools.cache
def _stored(spec: TargetSpec) -> KernelTable:
    if spec.table_file is None and (newest := newest_table(spec)) is not None:
        return newest
    if spec.table_file is None:
        raise TargetError(f"target {spec.name}: {spec.folder} has no kernels.json, which its kernels are to come from")
    return _read(spec.table_file)


def _read(file: Path) -> KernelTable:
    if file.suffix != ".gz":
        return KernelTable.of_file(file)
    with gzip.open(file, "rt", encoding="utf-8") as content:
        return KernelTable.of_text(content.read(), str(file))


@functools.cache
def installed_table(provider: str) -> KernelTable:
    """The table of the installed runtime, from the cache if possible, else from the runtime; read only once per process.

    Raises:
        TargetError: The installed build has no kernels for `provider`.
    """
    file = cache_file(provider)
    if file is None:
        return KernelTable.of_runtime(provider)
    with contextlib.suppress(TargetError):
        table = KernelTable.of_file(file)
        if table.provider == provider:
            return table
    try:
        table = KernelTable.of_runtime(provider)
    except RegistryError as error:
        return _shipped(provider, error)
    _keep(table, file)
    return table


def _shipped(provider: str, error: RegistryError) -> KernelTable:
    """The table that comes with the provider's target, for builds that crash when they are asked for theirs.

    It is that of the installed release, or with a warning the newest one.

    Raises:
        RegistryError: There is none.
    """
    spec, installed = spec_of(provider), installed_version("onnxruntime").rpartition(".")[0]
    releases = releases_of(spec)
    if releases is not None and installed in releases.names:
        return releases.table(installed)
    table = newest_table(spec)
    if table is None:
        raise error
    table = table.for_installed()
    warnings.warn(f"{error}. Until then the kernels are those of {table.runtime}", OrtfuseWarning, stacklevel=2)
    return table


def cache_file(provider: str) -> Path | None:
    """The cache file of the installed runtime's table; `None` if the installed build cannot be identified."""
    build = _build()
    if build is None:
        return None
    key = hashlib.sha256(repr((FORMAT, provider, onnx.__version__, build)).encode()).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("ortfuse")) / "kernels" / f"{provider}-{key}.json"


def _build() -> tuple[object, ...] | None:
    """The identity of the installed build, determined without loading it."""
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    versions = sorted(path.name for path in package.parent.glob("onnxruntime*.dist-info"))
    libraries = [*package.glob("capi/onnxruntime_pybind11_state*"), *package.glob("capi/libonnxruntime*")]
    files = [Path(spec.origin), *sorted(path for path in libraries if path.is_file())]
    if len(files) < 2:
        return None
    return (*versions, *((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files))


def _keep(table: KernelTable, file: Path) -> None:
    with contextlib.suppress(OSError, TargetError):
        file.parent.mkdir(parents=True, exist_ok=True)
        table.write(file, follow=False)
