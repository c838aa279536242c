"""Check that files and models fit into memory before any is allocated."""

from __future__ import annotations

from ortfuse.errors import VerificationError
from ortfuse.io.machine_memory import total_bytes

_SHARE = 2
"""One in so many bytes of the memory may be taken by what is read or drawn: the model needs the rest."""


def room() -> int:
    """The bytes that inputs may take: a part of the memory that this machine, or the container, has."""
    return total_bytes() // _SHARE


def demand_room(needed: int, what: str, advice: str) -> None:
    """Check that something fits into memory.

    Args:
        needed: The bytes that it takes.
        what: What it is.
        advice: What to do if it does not.

    Raises:
        VerificationError: It does not.
    """
    if needed > room():
        raise VerificationError(f"{what} takes {needed:,} bytes, and there is room for {room():,}; {advice}")
