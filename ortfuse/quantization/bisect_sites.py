"""Find the site whose error exceeds its prediction most, by halving the choice.

The errors of sites were measured one by one and are taken to add up. If the error of the whole is much larger, there are two
possible causes: single sites whose errors grow with those of others, or errors that are not independent at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ortfuse.quantization.scheme_set_protocol import Choice

CONCENTRATED = 1.5
"""A half is searched further only if it exceeds the prediction by this factor more than the other one."""


def offender(choice: Choice, excess: Callable[[Choice], float]) -> tuple[str, float] | None:
    """The site to blame for an error that is larger than predicted.

    Args:
        choice: The schemes by site, in the order of the graph.
        excess: How many times larger the error of a choice is than predicted.

    Returns:
        The site and its excess; `None` if no half of the sites stands out.
    """
    sites: Sequence[str] = list(choice)
    known = 0.0
    while len(sites) > 1:
        middle = len(sites) // 2
        halves = (sites[:middle], sites[middle:])
        found = [excess({site: choice[site] for site in half}) for half in halves]
        worse = 0 if found[0] >= found[1] else 1
        if found[worse] < CONCENTRATED * found[1 - worse] and len(sites) > 2:
            return None
        sites, known = halves[worse], found[worse]
    return (sites[0], known) if sites and known > 1.0 else None
