"""Tables of measurements fit into the terminal."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from ortfuse.report.document import Bar, Chart, Document, Item, Items, Notes, Rows
from ortfuse.report.documents.bench import bench_document
from ortfuse.report.html.write_page import html
from ortfuse.report.terminal.document import show_document
from ortfuse.runtime.bench import Latencies, Latency


def printed(width: int, *names: str) -> str:
    rows = [
        Latency(name, 1810.4, 900.0, 2000.0, 0.1, 1.5, (1.25, 1.75), 120.0, 285, 144, 438.5)
        for name in names or ("original", "after fuse.fused_convolution (2)")
    ]
    console = Console(file=io.StringIO(), width=width)
    show_document(console, bench_document(Latencies("batch=1", tuple(rows))))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_names_and_speeds_are_there_at_any_width(width: int) -> None:
    said = printed(width)
    assert max(map(len, said.splitlines())) <= width
    for text in ("original", "median ms", "1,810", "speedup", "1.50", "1.25..1.75"):
        assert text in said
    assert "…" not in said


def test_what_is_left_out_is_told() -> None:
    assert "file MB" in printed(140) and "too narrow" not in printed(140)
    assert "too narrow for: " in printed(80) and "438.50" not in printed(80)


def test_letters_of_two_cells_are_counted_as_two() -> None:
    name = "模型模型模型模型.onnx"
    for width in range(66, 100):
        said = printed(width, "a", name)
        assert name in said, "in one line"
        assert max(map(cell_len, said.splitlines())) <= width


def test_findings_and_remarks_beyond_the_most_are_counted() -> None:
    items = Items("t", [Item("a", ["x" * 30]), Item("b"), Item("c")], most=2, longest=10)
    console = Console(file=io.StringIO(), width=80)
    show_document(console, Document("t", "s", [items, Notes("", ["one", "two", "three"], "note: ", most=1)]))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "a", f"  {'x' * 10}...", "b", "and 1 more; --json has them all", "note: one", "and 2 more; --json has them all",
    ]  # fmt: skip
    page = html(Document("t", "s", [items]))
    assert "x" * 30 in page and "<dt>c</dt>" in page


def test_a_row_of_a_table_with_a_chart_has_its_bar() -> None:
    chart = Chart([Bar(1.0, start=1.0), Bar(4.0, 3.0, 4.0, strong=True)], mark=1.0)
    page = html(Document("t", "s", [Rows("t", ("a", "b"), [("one", "1"), ("two", "4")], chart=chart)]))
    assert page.count('class="chart"') == 2
    assert 'style="left:25.0%;width:25.0%"' in page and '<tr class="strong"><th scope="row">two</th>' in page
