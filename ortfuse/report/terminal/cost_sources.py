"""Name the sources of the costs that choices were made by, for the terminal and for pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortfuse.transforms import Choice


def sources_of_costs(choices: Iterable[Choice]) -> str:
    """The tables of costs that decided, each once; empty if every choice was forced."""
    sources = dict.fromkeys(choice.estimate.source for choice in choices if choice.estimate is not None)
    return f"Costs: {'; '.join(sources)}" if sources else ""
