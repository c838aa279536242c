"""Break long names in table columns after dots, slashes and underscores."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.containers import Lines
from rich.measure import Measurement
from rich.text import Text

from ortfuse.errors.escape_control_characters import visible

_PART = re.compile(r"[^\s./_:*]*[./_:*]*")
"""A part of a name, with what ends it."""


class Names(Text):
    """Text with names in it. One that is wider than its column goes on after a dot, a slash, an underscore, a colon or a `*`.

    It is no markup, and characters that control a terminal are shown as escapes.
    """

    def __init__(self, text: str = "", **how: Any) -> None:
        super().__init__(visible(text), **how)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """The widest part, and the whole."""
        parts = (cell_len(part) for word in self.plain.split() for part in _parts(word))
        return Measurement(max(parts, default=0), Text(self.plain).__rich_measure__(console, options).maximum)

    def wrap(self, console: Console, width: int, **how: Any) -> Lines:
        """The lines of a column of that width."""
        pieces = (piece for word in re.split(r"(\s+)", self.plain) for piece in _broken(word, width))
        return Text("".join(pieces), style=self.style).wrap(console, width, **how)


def _parts(word: str) -> list[str]:
    return [part for part in _PART.findall(word) if part]


def _broken(word: str, width: int) -> Iterator[str]:
    """A word that fits, or its parts with the ends of lines between them."""
    if cell_len(word) <= width or word.isspace():
        yield word
        return
    used = 0
    for part in _parts(word):
        if used and used + cell_len(part) > width:
            yield "\n"
            used = 0
        yield part
        used += cell_len(part)
