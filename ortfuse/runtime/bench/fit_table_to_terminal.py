"""Tables of numbers that fit into the terminal: where it is too narrow, columns are left out, and never the names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from ortfuse.errors.printable import visible

LONGEST = 24
"""The letters of a name that stand in one line at least, if it has so many."""

GAP = 2
"""The separator of two columns."""


@dataclass(frozen=True)
class Fitting:
    """A table of names and numbers, as something that `rich` prints.

    Attributes:
        title: What is measured.
        headings: What the columns are; the first has names.
        rows: Their cells.
        spare: The columns that can be left out, the first of them first. What is empty in all rows is left out too.
        words: The columns, besides the first, that have words instead of numbers.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    spare: Sequence[str] = ()
    words: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        known = [column for column in range(len(self.headings)) if column == 0 or any(self._cells(column))]
        shown, spare = (
            list(known),
            [column for heading in self.spare if (column := self.headings.index(heading)) in known],
        )
        while spare and self._width(shown) > options.max_width:
            shown.remove(spare.pop(0))
        left_out = ", ".join(self.headings[column] for column in known if column not in shown)
        made = Table(
            title=Text(self.title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False,
            caption=f"too narrow for: {left_out}" if left_out else None, caption_justify="left",
        )  # fmt: skip
        for column in shown:
            heading = self.headings[column]
            if column == 0:
                made.add_column(heading, overflow="fold", min_width=8)
            else:
                made.add_column(heading, justify="left" if heading in self.words else "right", no_wrap=True)
        for cells in zip(*(self._cells(column) for column in shown), strict=True):
            made.add_row(*map(Text, cells))
        yield made

    def _cells(self, column: int) -> list[str]:
        return [visible(row[column]) if column < len(row) else "" for row in self.rows]

    def _width(self, shown: Sequence[int]) -> int:
        """The letters that these columns need."""
        widths = [max(map(cell_len, (self.headings[column], *self._cells(column)))) for column in shown]
        return min(widths[0], LONGEST) + sum(width + GAP for width in widths[1:]) + GAP
