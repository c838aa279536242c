"""The shapes of an instance's values, as far as the pattern states them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ortfuse.errors import RuleError
from ortfuse.rewrite import Rule
from ortfuse.rewrite.pattern.axis_names import Axes, Axis
from ortfuse.rewrite.pattern.language import Part, Pattern, Var
from ortfuse.rewrite.pattern.rearrangement import Rearrange

Dims = Sequence["int | str"]

NUMBERS = (2, 4, 3, 5, 6, 7)
"""Sizes of dimensions that are factors of products, in the order in which the pattern names them."""


class Sizes:
    """Sizes for named dimensions: as the rule test says, numbers for those in products and of constants, otherwise the name.

    Attributes:
        rule: The rule.
        axes: The shapes that the pattern states, by the names of values.
        of_constants: The dimensions of constants, which have numbers wherever they stand.
        numbers: The sizes that are numbers.
        same: The dimensions that the rule test says to equal another.
    """

    def __init__(self, rule: Rule, declared: Any) -> None:
        self.rule = rule
        self.axes: dict[str, Axes] = {}
        for part in rule.pattern.walk():
            if isinstance(part, Var) and part.axes is not None:
                known = self.axes.setdefault(part.name, part.axes)
                self.axes[part.name] = max(known, part.axes, key=lambda axes: len(axes.axes))
        needed = dict.fromkeys(name for part in rule.pattern.walk() for name in _in_products(part))
        of_constants = _of_constants(rule, declared)
        self.of_constants = frozenset(of_constants)
        needed |= dict.fromkeys(of_constants)
        self.numbers: dict[str, int] = dict(zip(needed, itertools.cycle(NUMBERS), strict=False))
        self.numbers |= {name: size for name, size in of_constants.items() if size is not None}
        self.numbers |= {name: size for name, size in declared.items() if isinstance(size, int)}
        self.same = {name: other for name, other in declared.items() if isinstance(other, str) and other.isidentifier()}

    def size(self, name: str) -> int | str:
        """The size of a dimension: a number or a symbol."""
        name = self.same.get(name, name)
        return self.numbers.get(name, name)

    def of(self, name: str) -> list[Dims]:
        """The shapes that a captured value can have, the fullest first; none if the pattern does not state its shape."""
        axes = self.axes.get(name)
        return [] if axes is None else self.shapes(axes)

    def shapes(self, axes: Axes) -> list[Dims]:
        """The shapes that a description allows: full, with each 1 that broadcasts, and without axes that may be missing."""
        leading: list[int | str] = []
        if axes.leading is not None:
            leading = [self.size(axes.leading or "leading")]
        full = [*leading, *(self._dim(axis) for axis in axes.axes)]
        found: list[Dims] = [full]
        for place, axis in enumerate(axes.axes, start=len(leading)):
            if axis.may_be_one:
                found.append([*full[:place], 1, *full[place + 1 :]])
        missing = sum(axis.may_be_missing for axis in axes.axes)
        found += [full[count:] for count in range(1, missing + 1)]
        return found

    def _dim(self, axis: Axis) -> int | str:
        sizes = [factor if isinstance(factor, int) else self.size(factor) for factor in axis.factors]
        if len(sizes) == 1:
            return sizes[0]
        if any(isinstance(size, str) for size in sizes):
            raise RuleError(f"rule {self.rule.name}: its rule test must give numbers for the dimensions of {axis}")
        return math.prod(size for size in sizes if isinstance(size, int))


def _of_constants(rule: Rule, declared: Any) -> dict[str, int | None]:
    """The named dimensions of values that are constants, with the sizes of those whose numbers the rule test gives."""
    found: dict[str, int | None] = {}
    for part in rule.pattern.walk():
        if isinstance(part, Var) and (part.constant or part.name in rule.test.constants):
            given, names = rule.test.constants.get(part.name), _named(part, declared)
            shape = () if given is None or isinstance(given, str) else np.shape(given)
            known = shape if len(shape) == len(names) else (None,) * len(names)
            sizes = {name: size for name, size in zip(names, known, strict=True) if name.isidentifier() and name != "_"}
            found |= {name: size for name, size in sizes.items() if size is not None or name not in found}
    return found


def _named(part: Var, declared: Any) -> list[str]:
    """The dimensions of a value, as the rule test or the pattern states them; empty for those of several factors."""
    text = declared.get(part.name)
    if isinstance(text, str):
        return text.split()
    if part.axes is None:
        return []
    leading = [] if part.axes.leading is None else [part.axes.leading or "leading"]
    return [*leading, *(str(axis.factors[0]) if len(axis.factors) == 1 else "" for axis in part.axes.axes)]


def _in_products(part: Pattern) -> list[str]:
    shapes = [part.axes] if part.axes is not None else []
    if isinstance(part, Rearrange):
        shapes += [part.before, part.after]
    found = [
        factor for shape in shapes for axis in shape.axes if len(axis.factors) > 1 for factor in axis.factors
        if isinstance(factor, str)
    ]  # fmt: skip
    if isinstance(part, Part):
        found += [bound for bound in (part.start, part.stop) if isinstance(bound, str)]
    return found
