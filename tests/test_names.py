"""Names in the columns of tables."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from ortfuse.report.terminal.break_long_names import Names


def _lines(text: str, width: int) -> list[str]:
    made = Table(box=None, show_header=False, padding=0, pad_edge=False)
    made.add_column(overflow="fold")
    made.add_row(Names(text))
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(made)
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("attention.key_bias 2", 20, ["attention.key_bias 2"]),
        ("attention.key_bias 2", 14, ["attention.key_", "bias 2"]),
        ("noop.cast 4, shapes.target 8", 12, ["noop.cast 4,", "shapes.", "target 8"]),
        ("com.microsoft::Gelu", 15, ["com.microsoft::", "Gelu"]),
        ("abcdefgh", 4, ["abcd", "efgh"]),
        ("[red].name", 30, ["[red].name"]),
    ],
)
def test_a_name_that_is_wider_than_its_column_is_broken_where_its_parts_meet(
    text: str, width: int, lines: list[str]
) -> None:
    assert _lines(text, width) == lines


def test_a_column_is_as_narrow_as_the_widest_part_rather_than_the_widest_name() -> None:
    console = Console(width=80)
    assert console.measure(Names("attention.key_bias 2")).minimum == len("attention.")
    assert console.measure(Names("attention.key_bias 2")).maximum == len("attention.key_bias 2")
