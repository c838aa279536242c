"""Caches the kernel tables of the installed ONNX Runtime in the user's cache folder: reading them means loading the runtime.

A cached table is valid for one build of the runtime (its version, and the path, size and modification time of its library)
and one version of onnx, which determines the opsets in a table. Unreadable cache files are ignored, and a failure to write
one is too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
from pathlib import Path

import onnx
import platformdirs

from ortfuse.errors import TargetError
from ortfuse.targets.kernel_table import FORMAT, KernelTable


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
    table = KernelTable.of_runtime(provider)
    _keep(table, file)
    return table


def cache_file(provider: str) -> Path | None:
    """Where the table of the installed runtime is cached; `None` if the installed build cannot be identified."""
    build = _build()
    if build is None:
        return None
    key = hashlib.sha256(repr((FORMAT, provider, onnx.__version__, build)).encode()).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("ortfuse")) / "kernels" / f"{provider}-{key}.json"


def _build() -> tuple[object, ...] | None:
    """What identifies the installed build, determined without loading it."""
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
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    with contextlib.suppress(OSError, TargetError):
        file.parent.mkdir(parents=True, exist_ok=True)
        table.write(aside)
        aside.replace(file)
