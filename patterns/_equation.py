"""Parses the equation of an Einsum."""

from __future__ import annotations

import functools
from dataclasses import dataclass


@dataclass(frozen=True)
class Equation:
    """The labels of each operand and of the result."""

    operands: tuple[str, ...]
    result: str


@functools.cache
def parsed(equation: str) -> Equation | None:
    """The parsed equation; `None` if it has an ellipsis, a repeated label in one term, or an implicit result with capitals."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    operands = tuple(left.split(","))
    if not arrow:
        if not left.replace(",", "").islower():
            return None
        result = "".join(sorted(label for label in set(left) - {","} if left.count(label) == 1))
    parts = (*operands, result)
    if not all(part == "" or (part.isascii() and part.isalpha()) for part in parts) or "" in operands:
        return None
    if any(len(set(part)) < len(part) for part in parts) or not set(result) <= set("".join(operands)):
        return None
    return Equation(operands, result)


def positions(labels: str, wanted: str) -> list[int]:
    """The position of each wanted label in `labels`."""
    return [labels.index(label) for label in wanted]
