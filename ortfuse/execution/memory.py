"""How much memory this machine has, and has left."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_ADDRESSES = 1 << 47


def total_bytes() -> int:
    """The bytes of memory that this machine has; if the system does not tell, as many as there are addresses."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return _ADDRESSES


def available_bytes() -> int:
    """The bytes that can be taken without swapping; if the system does not tell, half of all."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return total_bytes() // 2
