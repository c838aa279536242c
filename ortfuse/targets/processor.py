"""Identify the kind of processor, as far as the runtime's kernels depend on it.

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
from typing import Any

from ortfuse.errors import OptionError
from ortfuse.errors.escape_control_characters import brief

MOST_THREADS = max(64, 4 * (os.cpu_count() or 1))
"""The most threads that an operator can have: tens of thousands never get to run."""

_SETS = ("AVX512F", "AVX2", "AVX", "SVE", "ASIMD", "VSX", "VX", "LSX", "RVV")
"""Instruction sets, the one that the runtime prefers first."""

_FORMATS = {
    "amx_int8": "AMX_INT8", "amx_bf16": "AMX_BF16", "amx_fp16": "AMX_FP16", "avx512_vnni": "AVX512_VNNI", "avx_vnni": "AVX_VNNI",
    "avx512_bf16": "AVX512_BF16", "avx512_fp16": "AVX512_FP16", "asimddp": "DOTPROD", "i8mm": "I8MM", "bf16": "BF16",
    "asimdhp": "FP16",
}  # fmt: skip
"""Instructions for numbers other than float32, by the system's names."""

_OF_NUMPY = {"AVX512_CLX": "AVX512_VNNI", "AVX512_SPR": "AVX512_FP16", "ASIMDDP": "DOTPROD", "ASIMDHP": "FP16"}
"""Those that numpy knows of, where the system does not tell; AVX512_CLX and AVX512_SPR are the generations that brought them."""

_SAME = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


def demand_threads(number: Any, name: str = "threads") -> int:
    """Return a number of threads if a session can have so many; 0 leaves the choice to the runtime.

    Args:
        number: The number.
        name: The option or the setting that it is the value of.

    Raises:
        OptionError: It is no whole number from 0 to `MOST_THREADS`.
    """
    if isinstance(number, bool) or not hasattr(number, "__index__") or number.__index__() < 0:
        raise OptionError(name, f"write a whole number, 0 or more, not {brief(number)}; 0 leaves it to the runtime")
    if number.__index__() > MOST_THREADS:
        raise OptionError(name, f"write a whole number, {MOST_THREADS:,} at most, not {brief(number)}")
    return int(number.__index__())


@functools.cache
def processor_kind() -> str:
    """The architecture and the widest of its instruction sets, such as `"x86_64 AVX512F"`; the former alone if nothing tells."""
    machine = platform.machine().lower()
    present = _instruction_sets()
    widest = next((name for name in _SETS if present.get(name)), "")
    return f"{_SAME.get(machine, machine)} {widest}".strip()


@functools.cache
def number_formats() -> str:
    """The types that the processor multiplies besides float32, such as `"AMX_BF16 AMX_INT8 AVX512_VNNI"`; empty if nothing tells.

    The runtime's kernels for integers and for half precision differ by these; those for float32 do not.
    """
    flags = f"{_told('flags')} {_told('Features')}".split()
    found = {_FORMATS[flag] for flag in flags if flag in _FORMATS}
    if not flags:
        found = {name for feature, name in _OF_NUMPY.items() if _instruction_sets().get(feature)}
    return " ".join(sorted(found))


def processor_in_full() -> str:
    """The kind of processor and its number formats: what measurements in any type of numbers depend on."""
    return f"{processor_kind()} {number_formats()}".strip()


@functools.cache
def processor_name() -> str:
    """The processor's own name where the system tells, and its instruction sets: a virtual machine may hide some of them."""
    return f"{_told('model name') or platform.processor() or platform.machine()} ({processor_in_full()})"


@functools.cache
def _told(what: str) -> str:
    """The entry of the first processor on Linux; empty on other systems, and if there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(what)), "")


def _instruction_sets() -> dict[str, bool]:
    """The instruction sets that numpy found when it was loaded: it is the one dependency that looks on every platform."""
    try:
        module = importlib.import_module("numpy._core._multiarray_umath")
    except ImportError:
        return {}
    return dict(getattr(module, "__cpu_features__", {}))


def granted_processors(groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The number of processors that the system grants this process; `None` if all that the machine has.

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
