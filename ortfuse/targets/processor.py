"""The kind of processor that this machine has, as far as the runtime's kernels tell processors apart.

The runtime has kernels of their own for each of a few instruction sets, and what is fast with one may be slow with another: a
cost measured on one kind of processor says little about the next.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path

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


@functools.cache
def processor_name() -> str:
    """The processor's own name where the system tells, and its instruction set."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(named, platform.processor() or platform.machine())} ({processor_kind()})"


def _instruction_sets() -> dict[str, bool]:
    """The instruction sets that numpy found when it was loaded: it is the one dependency that looks on every platform."""
    try:
        module = importlib.import_module("numpy._core._multiarray_umath")
    except ImportError:
        return {}
    return dict(getattr(module, "__cpu_features__", {}))


def granted_processors(groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """How many processors the system grants this process; `None` if all that the machine has.

    The runtime starts a thread for each core of the machine, and does not look at what a container may use.

    Args:
        groups: Where the system shows the limits of a container, of either version of control groups.
    """
    limits = [*_quotas(groups)]
    if hasattr(os, "sched_getaffinity"):
        limits.append(len(os.sched_getaffinity(0)))
    granted = min(limits, default=None)
    return granted if granted is not None and granted < (os.cpu_count() or 1) else None


def _quotas(groups: Path) -> Iterator[int]:
    """The processor time that the process may use, in whole processors, at least one."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((groups / name).read_text() for name in names).split()
            if quota not in ("max", "-1"):
                yield max(1, math.floor(int(quota) / int(period)))
        except (OSError, ValueError, ZeroDivisionError):
            continue
