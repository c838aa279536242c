"""Kernel tables of the installed ONNX Runtime, kept in the user's cache folder: asking the runtime takes as long as loading it.

A table is kept for one build: its version, and the path, size and time of change of its library; and for one version of
onnx, which decides about the opsets of a table. What cannot be read is no table, and what cannot be written is not kept.
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
    """The table of the installed runtime, from the cache if it is there, else from the runtime; once in a process.

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
    """Where the table of the installed runtime is kept, `None` if it cannot be told which build is installed."""
    build = _build()
    if build is None:
        return None
    key = hashlib.sha256(repr((FORMAT, provider, onnx.__version__, build)).encode()).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("ortfuse")) / "kernels" / f"{provider}-{key}.json"


def _build() -> tuple[object, ...] | None:
    """What tells the installed build from others, found without loading it."""
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
