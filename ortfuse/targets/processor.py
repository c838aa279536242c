"""The kind of processor that this machine has, as far as the runtime's kernels tell processors apart.

The runtime has kernels of their own for each of a few instruction sets, and what is fast with one may be slow with another: a
cost measured on one kind of processor says little about the next.
"""

from __future__ import annotations

import functools
import importlib
import platform

_SETS = ("AVX512F", "AVX2", "AVX", "SVE", "ASIMD", "VSX", "VX", "LSX", "RVV")
"""Instruction sets, the one that the runtime prefers first."""

_SAME = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


@functools.cache
def processor_kind() -> str:
    """The architecture and the widest of its instruction sets, such as `"x86_64 AVX512F"`; the former alone if nothing tells."""
    machine = platform.machine().lower()
    present = _instruction_sets()
    widest = next((name for name in _SETS if present.get(name)), "")
    return f"{_SAME.get(machine, machine)} {widest}".strip()


def _instruction_sets() -> dict[str, bool]:
    """The instruction sets that numpy found when it was loaded: it is the one dependency that looks on every platform."""
    try:
        module = importlib.import_module("numpy._core._multiarray_umath")
    except ImportError:
        return {}
    return dict(getattr(module, "__cpu_features__", {}))
