"""The equation of an Einsum in its parts."""

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
    """The equation, `None` if it has an ellipsis, a label twice in one place, or an implicit result of capital letters."""
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
    """Where each wanted label stands among `labels`."""
    return [labels.index(label) for label in wanted]
