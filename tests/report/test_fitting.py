"""Tables of measurements fit into the terminal."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from ortfuse.report.documents.bench import bench_document
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
