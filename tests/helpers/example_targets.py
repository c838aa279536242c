"""Targets for tests, to be handed to what is tested."""

from __future__ import annotations

from ortfuse.targets import Target


def without_quirks() -> Target:
    """The installed runtime, of whose deviations from the definitions of operators nothing is known."""
    made = Target()
    made.quirks = frozenset()
    return made
