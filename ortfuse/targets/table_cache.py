"""Caches the kernel tables of the installed ONNX Runtime in the user's cache folder: reading them means loading the runtime.

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
from ortfuse.io.runtime_registry import RegistryError
from ortfuse.targets.kernel_table import FORMAT, KernelTable

SHIPPED_PROVIDER = "CPUExecutionProvider"
SHIPPED = Path(__file__).with_name(f"kernels_{SHIPPED_PROVIDER}.json.gz")
"""The kernel table of the CPU provider that comes with ortfuse, for builds that crash when they are asked for theirs."""


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
    """The table of the CPU provider that comes with ortfuse, with a warning.

    Raises:
        RegistryError: It is about another provider.
    """
    if provider != SHIPPED_PROVIDER:
        raise error
    with gzip.open(SHIPPED, "rt", encoding="utf-8") as content:
        table = KernelTable.of_text(content.read(), str(SHIPPED)).for_installed()
    warnings.warn(f"{error}. Until then the kernels are those of {table.runtime}", OrtfuseWarning, stacklevel=2)
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
    with contextlib.suppress(OSError, TargetError):
        file.parent.mkdir(parents=True, exist_ok=True)
        table.write(file, follow=False)
