"""List the measurements: each rule that is chosen by cost, at each of its typical sizes and in each element type."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ortfuse.errors import RuleError
from ortfuse.naming import name_today
from ortfuse.rewrite import Rule
from ortfuse.targets import CostTable
from ortfuse.targets.rule_speedups import sizes_text

DTYPES = ("float32", "float16")
"""The element types that are measured; few rules make what has a kernel in the second."""


@dataclass(frozen=True)
class Candidate:
    """A rule at one of its typical sizes.

    Attributes:
        rule: The rule.
        number: The index of the sizes in its rule test.
        dtype: The element type.
    """

    rule: Rule
    number: int
    dtype: str

    @property
    def sizes(self) -> str:
        """The sizes and the type, as tables of costs have them."""
        return sizes_text(telling(self.rule.test.typical[self.number]), self.dtype)


def candidates(rules: Iterable[Rule], only: Collection[str], costs: CostTable) -> list[Candidate]:
    """Everything that can be measured, the closest decisions first, as far as they are known.

    Args:
        rules: The rules.
        only: Families and rules to measure; by default all.
        costs: The table by which decisions are close.

    Raises:
        RuleError: A name in `only` is none of a family or rule that is chosen by cost.
    """
    measured = [rule for rule in rules if rule.test.typical]
    known = {name for rule in measured for name in (rule.name, rule.family)}
    only = [name_today(name, ("rules", "families"), known) for name in only]
    for name in only:
        if not any(name in (rule.name, rule.family) for rule in measured):
            families = ", ".join(dict.fromkeys(rule.family for rule in measured))
            raise RuleError(f"no rule or family {name!r} is chosen by cost; families are {families}")
    chosen = [rule for rule in measured if not only or rule.name in only or rule.family in only]
    found = [one for rule in chosen for one in _of(rule)]
    return sorted(found, key=lambda one: (one.dtype != DTYPES[0], _closeness(one.rule, costs)))


def telling(typical: Mapping[str, str | int]) -> dict[str, tuple[int, ...]]:
    """The shapes by which a site is compared with a typical one: the first, and others that are more than vectors."""
    shapes = {name: tuple(int(dim) for dim in text.split()) for name, text in typical.items() if isinstance(text, str)}
    first = next(iter(shapes))
    return {name: shape for name, shape in shapes.items() if name == first or sum(dim > 1 for dim in shape) > 1}


def _of(rule: Rule) -> Iterator[Candidate]:
    for dtype in DTYPES:
        yield from (Candidate(rule, number, dtype) for number in range(len(rule.test.typical)))


def _closeness(rule: Rule, costs: CostTable) -> float:
    """How far the speedups of a rule are from 1 at least; rules that nobody has measured come first."""
    rows = costs.speedups.get(rule.name, ())
    return min((abs(math.log(max(row.speedup, 1e-3))) for row in rows), default=-1.0)
