"""Demand that some build of ONNX Runtime is installed: ortfuse requires none by itself, so that it never replaces the user's."""

from __future__ import annotations

import functools
import importlib.util
from importlib.metadata import PackageNotFoundError, packages_distributions, version

from ortfuse.errors import TargetError

MISSING = (
    "no ONNX Runtime is installed; install the build that runs your models: `pip install 'ortfuse[cpu]'` (onnxruntime), "
    "`pip install 'ortfuse[gpu]'` (onnxruntime-gpu), or another one"
)


@functools.cache
def demand_runtime() -> None:
    """Raise unless the Python package of ONNX Runtime, in any build, is installed.

    Raises:
        TargetError: It is not; the message names the commands that install one.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise TargetError(MISSING)


@functools.cache
def installed_version(package: str) -> str:
    """Return the version of an imported package, by whichever distribution brings it; `none` if there is none.

    ONNX Runtime is brought by `onnxruntime`, `onnxruntime-gpu` and others.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        brought = packages_distributions().get(package, [])
        return version(brought[0]) if brought else "none"
