"""Classes of documents and their blocks, which the terminal and pages render: cards, charts, tables, pictures, notes.

A page draws a block by the part of its template that has the `kind` of the block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

Medium = Literal["both", "page", "terminal"]
"""The renderings that a table or note is part of."""


@dataclass(frozen=True)
class Card:
    """A number that matters: its name, the number, and what belongs to it in small print."""

    name: str
    value: str
    note: str = ""
    good: bool | None = None


@dataclass(frozen=True)
class Cards:
    """The numbers that matter most."""

    cards: Sequence[Card]
    kind: ClassVar[str] = "cards"
    title: str = ""

    @property
    def columns(self) -> int:
        """How many stand in a row of a wide window, so that no row has much fewer than the others."""
        rows = math.ceil(len(self.cards) / 6) or 1
        return math.ceil(len(self.cards) / rows) or 1


@dataclass(frozen=True)
class Bar:
    """A bar beside a row of a table.

    Attributes:
        value: Its length.
        low: The least that it may as well be, if that is known.
        high: The most that it may as well be.
        start: The place where it begins.
        was: Its length before, if it had one.
        strong: Whether it stands out.
    """

    value: float
    low: float | None = None
    high: float | None = None
    start: float = 0.0
    was: float | None = None
    strong: bool = False


@dataclass(frozen=True)
class Chart:
    """A bar for each row of a table, on a page.

    Attributes:
        bars: The bars.
        mark: A value with a line through all of them.
        key: The words for bars now and before.
    """

    bars: Sequence[Bar]
    mark: float | None = None
    key: tuple[str, str] | None = None

    @property
    def largest(self) -> float:
        """The end of the longest bar."""
        longest = [bar.start + max(bar.value, bar.was or 0.0) for bar in self.bars]
        ends = [end if bar.high is None else bar.high for bar, end in zip(self.bars, longest, strict=True)]
        return max(min(max(ends, default=1.0), 1.5 * max(longest, default=1.0)), self.mark or 0.0) or 1.0

    def share(self, value: float) -> float:
        """The position of a value, in percent of the longest bar."""
        return round(100 * min(1.0, max(0.0, value / self.largest)), 2)


@dataclass(frozen=True)
class Rows:
    """A table.

    Attributes:
        title: Its title.
        headings: The columns.
        rows: The cells of each row.
        about: A remark on the table, for a page.
        numbers: The positions of columns of numbers.
        whole: The positions of columns of words that are not broken on the terminal, such as names to search for.
        folded: Whether a page folds it.
        on: The renderings that it is part of.
        page_only: The positions of columns that the terminal leaves out.
        spare: The headings of columns that a narrow terminal leaves out, the first of them first.
        styles: The style of each row on the terminal; empty if none has one.
        most: The most rows on the terminal; 0 if it prints all.
        caption: The line below it.
        chart: A bar for each row, for a page.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    about: str = ""
    numbers: frozenset[int] = frozenset()
    folded: bool = False
    on: Medium = "both"
    whole: frozenset[int] = frozenset()
    page_only: frozenset[int] = frozenset()
    spare: Sequence[str] = ()
    styles: Sequence[str] = ()
    most: int = 0
    caption: str = ""
    chart: Chart | None = None
    kind: ClassVar[str] = "rows"

    @property
    def columns(self) -> list[int]:
        """The numbers of the columns that have something in them in any row."""
        return [number for number in range(len(self.headings)) if any(row[number] for row in self.rows)]


@dataclass(frozen=True)
class Site:
    """A part of the model before and after, each under a caption; `was` is empty where the title says what changed."""

    title: str
    about: str
    before: str
    after: str
    was: str
    became: str
    count: int = 1
    places: Sequence[str] = ()
    captions: tuple[str, str] = ("before", "after")


@dataclass(frozen=True)
class Sites:
    """Parts of the model before and after, drawn."""

    title: str
    sites: Sequence[Site]
    about: str = ""
    kind: ClassVar[str] = "sites"


@dataclass(frozen=True)
class Dot:
    """A point of a plane, with its name; `strong` if it was taken, `hollow` if it is a guess, `weight` from 0 to 1 its area."""

    x: float
    y: float
    text: str
    strong: bool = False
    weight: float | None = None
    hollow: bool = False


@dataclass(frozen=True)
class Scatter:
    """Points in a plane with a logarithmic horizontal axis; `limit` is a vertical line with a name, `level` a horizontal one."""

    title: str
    x_name: str
    y_name: str
    dots: Sequence[Dot]
    about: str = ""
    limit: float | None = None
    limit_name: str = ""
    level: float | None = None
    kind: ClassVar[str] = "scatter"

    WIDTH: ClassVar[float] = 1000.0
    HEIGHT: ClassVar[float] = 340.0

    def _span(self) -> tuple[float, float]:
        found = [math.log10(dot.x) for dot in self.dots if dot.x > 0] + ([math.log10(self.limit)] if self.limit else [])
        low, high = (math.floor(min(found)), math.ceil(max(found))) if found else (-3, 0)
        return low, max(high, low + 1)

    def across(self, x: float) -> float:
        """The position of a number on the horizontal axis; zero is at its left end."""
        low, high = self._span()
        share = (math.log10(x) - low) / (high - low) if x > 0 else 0.0
        return round(50 + (self.WIDTH - 70) * share, 1)

    def up(self, y: float) -> float:
        """The position of a number on the vertical axis."""
        return round(self.HEIGHT - 40 - (self.HEIGHT - 60) * y / self.top, 1)

    @property
    def top(self) -> float:
        """The end of the vertical axis."""
        return 1.1 * max([dot.y for dot in self.dots] + ([self.level] if self.level else []), default=1.0)

    @property
    def drawn(self) -> list[Dot]:
        """The points, those with the largest area first, so that they hide none."""
        return sorted(self.dots, key=lambda dot: -self.radius(dot))

    def radius(self, dot: Dot) -> float:
        """The radius of a point."""
        return (7.0 if dot.strong else 4.5) if dot.weight is None else round(2.5 + 13.5 * math.sqrt(dot.weight), 1)

    @property
    def anchor(self) -> str:
        """The end of the limit's name that stands at its line, so that it lies within the plane."""
        return "start" if self.limit is None or self.across(self.limit) < self.WIDTH / 2 else "end"

    @property
    def steps(self) -> list[float]:
        """The numbers that the vertical axis names, 1 among them."""
        step = next(size for size in (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, self.top) if self.top / size <= 6)
        return [step * number for number in range(1, int(self.top / step) + 1)]

    @property
    def ticks(self) -> list[float]:
        """The numbers that the horizontal axis names."""
        low, high = self._span()
        return [10.0**power for power in range(int(low), int(high) + 1)]


@dataclass(frozen=True)
class Notes:
    """Remarks, one a line.

    Attributes:
        title: Their title, on a page.
        lines: The remarks.
        prefix: The words before each of them on the terminal.
        style: Their style on the terminal.
        on: The renderings that they are part of.
        most: The most lines on the terminal; 0 if it prints all.
    """

    title: str
    lines: Sequence[str]
    prefix: str = ""
    style: str = ""
    on: Medium = "both"
    most: int = 0
    kind: ClassVar[str] = "notes"


@dataclass(frozen=True)
class Item:
    """A finding: its name, what is to be said of it line by line, and the sites that it is about, which a page folds."""

    name: str
    lines: Sequence[str] = ()
    places: Sequence[str] = ()


@dataclass(frozen=True)
class Items:
    """Findings, each with lines of its own.

    Attributes:
        title: Their title, on a page.
        items: The findings.
        style: The style of their names on the terminal.
        most: The most findings on the terminal; 0 if it prints all.
        longest: The most letters of a line on the terminal; 0 if it prints all.
    """

    title: str
    items: Sequence[Item]
    style: str = ""
    most: int = 0
    longest: int = 0
    on: Medium = "both"
    kind: ClassVar[str] = "items"


Block: TypeAlias = Cards | Rows | Sites | Scatter | Notes | Items


@dataclass(frozen=True)
class Document:
    """The answer of a command.

    Attributes:
        title: What it is about.
        summary: The answer in a sentence.
        blocks: Its parts, in order.
        command: What repeats it; by default the command line of this process.
    """

    title: str
    summary: str
    blocks: Sequence[Block]
    command: str = ""

    @property
    def shown(self) -> list[Block]:
        """The blocks of a page that have something in them."""
        return [block for block in self.blocks if not _is_empty(block)]


def _is_empty(block: Block) -> bool:
    if isinstance(block, Rows | Notes | Items) and block.on == "terminal":
        return True
    contents = {Rows: "rows", Notes: "lines", Items: "items", Scatter: "dots", Sites: "sites"}
    return type(block) in contents and not getattr(block, contents[type(block)])
