"""The minimum number of nodes of a pattern, against which the size of a partial match is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ortfuse.rewrite.pattern.language import Alt, Chain, Op, Opt, Part, Pattern
from ortfuse.rewrite.pattern.rearrangement import Rearrange


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


def least_operators(pattern: Pattern) -> list[frozenset[str]]:
    """The operators of the smallest graph that `pattern` can match: for each of its nodes those that may be there."""
    return _operators(pattern, set())


def _operators(pattern: Pattern, seen: set[int]) -> list[frozenset[str]]:
    if id(pattern) in seen or isinstance(pattern, Opt):
        return []
    seen.add(id(pattern))
    if isinstance(pattern, Alt):
        found = [(_operators(option, branch := set(seen)), branch) for option in pattern.options]
        least, branch = min(found, key=lambda pair: len(pair[0]))
        seen |= branch
        alike = [operators for operators, _ in found if len(operators) == len(least)]
        return [frozenset[str]().union(*kinds) for kinds in zip(*alike, strict=True)]
    own: list[frozenset[str]] = []
    if isinstance(pattern, Op):
        own = [frozenset({pattern.op_type})]
    elif isinstance(pattern, Chain):
        parts = sum(not isinstance(part, Opt) for _, part in pattern.parts)
        own = [pattern.ops] * (max(parts - 1, 0) + (pattern.scalar != pattern.neutral))
    return own + [one for child in pattern.children() for one in _operators(child, seen)]


def uncovered(needed: Iterable[frozenset[str]], operators: Iterable[str]) -> list[frozenset[str]]:
    """The nodes of `least_operators` for which none of these operators is there, each operator counting for one node."""
    left = Counter(operators)
    found = []
    for kinds in sorted(needed, key=len):
        kind = next((kind for kind in sorted(kinds) if left[kind]), None)
        if kind is None:
            found.append(kinds)
        else:
            left[kind] -= 1
    return found
