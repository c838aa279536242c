"""Shapes as rules write them: `"b h s d"`, one word for each axis.

b            a named dimension: the same wherever the name occurs in the pattern
4            a number
(h d)        the product of dimensions and numbers
_            any dimension
b|1          the dimension b, or 1 that broadcasts to it
b?           the same, and the axis may be missing if all axes before it are
...  ...x    any leading axes; named ones are the same wherever the name occurs
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ortfuse.errors import PatternError

_WORD = re.compile(r"\s*(\.\.\.[a-z]\w*|\.\.\.|\([^()]*\)|[a-z]\w*(?:\|1|\?)?|\d+|_)(?=\s|$)", re.IGNORECASE)

Factor = str | int


@dataclass(frozen=True)
class Axis:
    """One axis: its size is the product of `factors`; no factors if it may have any size."""

    factors: tuple[Factor, ...]
    may_be_one: bool = False
    may_be_missing: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the axis is unconstrained."""
        return self.factors == ("_",)

    def __str__(self) -> str:
        text = " ".join(map(str, self.factors))
        text = text if len(self.factors) == 1 else f"({text})"
        return text + ("?" if self.may_be_missing else "|1" if self.may_be_one else "")


@dataclass(frozen=True)
class Axes:
    """A shape; `leading` is the name of the leading axes (`""`: any), or `None` if there are none."""

    axes: tuple[Axis, ...]
    leading: str | None = None

    @property
    def least(self) -> int:
        """The smallest rank."""
        return sum(not axis.may_be_missing for axis in self.axes)

    def names(self) -> Iterator[str]:
        """The names of dimensions in this shape, repeated as often as they occur."""
        if self.leading:
            yield f"...{self.leading}"
        for axis in self.axes:
            yield from (factor for factor in axis.factors if isinstance(factor, str) and factor != "_")

    def renamed(self, names: dict[str, str]) -> Axes:
        """A copy with dimensions renamed."""
        leading = self.leading and names.get(f"...{self.leading}", f"...{self.leading}").removeprefix("...")
        axes = tuple(
            replace(axis, factors=tuple(names.get(factor, factor) if isinstance(factor, str) else factor
                                        for factor in axis.factors))
            for axis in self.axes
        )  # fmt: skip
        return Axes(axes, leading)

    def __str__(self) -> str:
        leading = [] if self.leading is None else [f"...{self.leading}"]
        return " ".join([*leading, *map(str, self.axes)])


@functools.cache
def axes_of(text: str) -> Axes:
    """The shape that a text such as `"b h s d"` describes.

    Raises:
        PatternError: The text is not a valid shape.
    """
    words, position = [], 0
    while text[position:].strip():
        found = _WORD.match(text, position)
        if found is None:
            raise PatternError(f"the shape {text!r} cannot be read from {text[position:].strip()!r} on")
        words.append(found[1])
        position = found.end()
    leading = words.pop(0)[3:] if words and words[0].startswith("...") else None
    axes = tuple(map(_axis, words))
    if any(word.startswith("...") for word in words):
        raise PatternError(f"the shape {text!r} has its `...` not in front")
    if leading is not None and any(axis.may_be_missing for axis in axes):
        raise PatternError(f"the shape {text!r} has axes that may be missing behind `...`")
    missing = [axis.may_be_missing for axis in axes]
    if missing != sorted(missing, reverse=True):
        raise PatternError(f"the shape {text!r} has an axis that may be missing behind one that may not")
    return Axes(axes, leading)


def _axis(word: str) -> Axis:
    if word.endswith("?"):
        return Axis((word[:-1],), True, True)
    if word.endswith("|1"):
        return Axis((word[:-2],), True)
    factors = word[1:-1].split() if word.startswith("(") else [word]
    return Axis(tuple(int(factor) if factor.isdigit() else factor for factor in factors))
