"""Print documents on the terminal: their tables and notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ortfuse.errors.escape_control_characters import visible
from ortfuse.report.document import Document, Items, Notes, Rows
from ortfuse.report.terminal.break_long_names import Names

LEAST = 12
"""The letters of a column of words that stand in one line at least, if it has so many."""

NAMES = 24
"""The letters of the first column that stand in one line, if it has so many and there are columns to leave out instead."""

LEAST_NAMES = 8
"""The letters that stand in one line at least of the first column, and of the others of a table that does not fit."""

GAP = 3
"""The letters that separate two columns."""


def show_document(console: Console, document: Document) -> None:
    """Print the tables and notes of a document, in order."""
    for block in document.blocks:
        if isinstance(block, Rows) and block.on != "page" and block.rows:
            console.print(_table(block, console.width))
        elif isinstance(block, Notes) and block.on != "page":
            _say(console, [f"{block.prefix}{line}" for line in block.lines[: block.most or None]], block.style)
            _say(console, _more(block.lines, block.most))
        elif isinstance(block, Items) and block.on != "page":
            for item in block.items[: block.most or None]:
                _say(console, [item.name], block.style)
                _say(console, [f"  {_short(line, block.longest)}" for line in item.lines])
            _say(console, _more(block.items, block.most))


def _say(console: Console, lines: Iterable[str], style: str = "") -> None:
    for line in lines:
        console.print(line, style=style or None, markup=False, highlight=False)


def _more(found: Sequence[object], most: int) -> list[str]:
    """The note on what is not printed, if the most that is printed is less than there is."""
    return [f"and {len(found) - most} more; --json has them all"] if 0 < most < len(found) else []


def _short(line: str, longest: int) -> str:
    return f"{line[:longest]}..." if 0 < longest < len(line) else line


def _table(block: Rows, width: int) -> Table:
    columns = [column for column in block.columns if column not in block.page_only]
    spare = [block.headings.index(heading) for heading in block.spare]
    dropped = []
    while _width(block, columns) > width and (out := next((one for one in spare if one in columns), None)) is not None:
        columns.remove(out)
        dropped.append(block.headings[out])
    rows = block.rows[: block.most or None]
    more = len(block.rows) - len(rows)
    captions = [
        *([block.caption] if block.caption else []),
        *([f"and {more} more; --json has them all"] if more else []),
        *([f"too narrow for: {', '.join(dropped)}"] if dropped else []),
    ]
    made = Table(
        title=Text(block.title), title_justify="left", caption="; ".join(captions) or None, caption_justify="left"
    )
    least = LEAST if _width(block, columns) <= width else LEAST_NAMES
    for column in columns:
        is_whole = column in block.numbers | block.whole
        made.add_column(
            block.headings[column], justify="right" if column in block.numbers else "left", no_wrap=is_whole,
            overflow="fold", min_width=None if is_whole else min(least if column else LEAST_NAMES, _widest(block, column)),
        )  # fmt: skip
    for number, row in enumerate(rows):
        made.add_row(*(Names(row[column]) for column in columns), style=block.styles[number] if block.styles else None)
    return made


def _width(block: Rows, columns: list[int]) -> int:
    widths = [_widest(block, column) for column in columns]
    shown = (
        wide if column in block.numbers | block.whole else min(wide, LEAST if column else NAMES)
        for column, wide in zip(columns, widths, strict=True)
    )
    return sum(shown) + GAP * len(columns) + 1


def _widest(block: Rows, column: int) -> int:
    return max(cell_len(visible(text)) for text in (block.headings[column], *(row[column] for row in block.rows)))
