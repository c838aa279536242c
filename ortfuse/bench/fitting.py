"""Tables of numbers that fit into the terminal: where it is too narrow, columns are left out, and never the names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions
from rich.table import Table

LONGEST = 24
"""The letters of a name that stand in one line at least, if it has so many."""

GAP = 2
"""What separates two columns."""


@dataclass(frozen=True)
class Fitting:
    """A table of names and numbers, as something that `rich` prints.

    Attributes:
        title: What is measured.
        headings: What the columns are; the first has names.
        rows: Their cells.
        spare: The columns that can be left out, the first of them first.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    spare: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        shown, spare = list(range(len(self.headings))), [self.headings.index(heading) for heading in self.spare]
        while spare and self._width(shown) > options.max_width:
            shown.remove(spare.pop(0))
        made = Table(
            title=self.title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False,
            caption=self._left_out(shown), caption_justify="left",
        )  # fmt: skip
        for column in shown:
            if column == 0:
                made.add_column(self.headings[0], overflow="fold", min_width=8)
            else:
                made.add_column(self.headings[column], justify="right", no_wrap=True)
        for row in self.rows:
            made.add_row(*(row[column] if column < len(row) else "" for column in shown))
        yield made

    def _width(self, shown: Sequence[int]) -> int:
        """The letters that these columns need."""
        cells = [[self.headings[column], *(row[column] for row in self.rows if column < len(row))] for column in shown]
        widths = [max(map(len, some)) for some in cells]
        return min(widths[0], LONGEST) + sum(width + GAP for width in widths[1:]) + GAP

    def _left_out(self, shown: Sequence[int]) -> str | None:
        left_out = [heading for column, heading in enumerate(self.headings) if column not in shown]
        return f"too narrow for: {', '.join(left_out)}" if left_out else None
