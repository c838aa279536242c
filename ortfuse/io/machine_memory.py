"""Query the total and the available memory of this machine or container."""

from __future__ import annotations

import functools
import os
from contextlib import suppress
from pathlib import Path

_ADDRESSES = 1 << 47

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files in which the system shows the limit of a container, in either version of control groups."""


@functools.cache
def total_bytes() -> int:
    """The bytes of memory that this machine or container has; if the system does not tell, as many as there are addresses."""
    found = [_ADDRESSES]
    with suppress(AttributeError, ValueError, OSError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for name in _LIMITS:
        with suppress(OSError, ValueError):
            found.append(int(Path(name).read_text()))
    return min(one for one in found if one > 0)


def available_bytes() -> int:
    """The bytes that can be taken without swapping; if the system does not tell, half of all."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return total_bytes() // 2
