"""The minimum number of nodes of a pattern, against which the size of a partial match is measured."""

from __future__ import annotations

from ortfuse.pattern.language import Alt, Chain, Op, Opt, Part, Pattern
from ortfuse.pattern.rearrangement import Rearrange


def least_nodes(pattern: Pattern) -> int:
    """The number of nodes in the smallest graph that `pattern` can match. Shared parts count once."""
    return _count(pattern, set())


def _count(pattern: Pattern, seen: set[int]) -> int:
    if id(pattern) in seen or isinstance(pattern, Opt):
        return 0
    seen.add(id(pattern))
    if isinstance(pattern, Alt):
        counts = [(_count(option, branch := set(seen)), branch) for option in pattern.options]
        least, branch = min(counts, key=lambda pair: pair[0])
        seen |= branch
        return least
    own = 1 if isinstance(pattern, (Op, Rearrange, Part)) else 0
    if isinstance(pattern, Chain):
        parts = sum(not isinstance(part, Opt) for _, part in pattern.parts)
        own = max(parts - 1, 0) + (pattern.scalar != pattern.neutral)
    return own + sum(_count(child, seen) for child in pattern.children())
