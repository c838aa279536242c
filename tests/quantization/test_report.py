"""What `ortfuse quantize` writes besides the model: the report as data, and the curve as a plot."""

from __future__ import annotations

import io
from pathlib import Path

import onnx_ir as ir
import pytest
from rich.console import Console

from ortfuse.api.quantize import Quantized
from ortfuse.errors import OptionError
from ortfuse.quantization.outcome import Outcome, Point, SiteReport, Tried
from ortfuse.quantization.output_effects import Spread
from ortfuse.report.curve_files import check_curve, write_curve
from ortfuse.report.documents.quantization import quantization_document
from ortfuse.report.terminal.document import show_document
from ortfuse.runtime.bench import Latency


def outcome() -> Outcome:
    tried = Tried("fast", 1e-3, 1e-3, 100, 0.01, float("inf"))
    site = SiteReport("y", "MatMul", "[1, 8]", "fast", 2e-3, Spread(-1.0, 2.0, 1.5), (tried,), {"other": "no"})
    points = [
        Point("all", {"y": "fast"}, 0.01, 0.01, 2.0, 0.012, 0.02, 1.9, 100),
        Point("float32", {}, 0.0, 0.0, 1.0),
    ]
    rows = [Latency(name, 1.0, 1.0, 1.0, 0.0, 1.9, None, 1.0, 1, 1, 1.0) for name in ("float32", "all")]
    model = ir.from_onnx_text('<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }')
    return Outcome(
        model, "l2", 0.05, "latency", "8 sets", points[0], 0.012, None, rows, 400, [site], points, ["a note"]
    )


def test_the_curve_can_be_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    check_curve(tmp_path / "curve.png")
    write_curve(tmp_path / "curve.png", outcome())
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_sites_and_choices_are_told_in_a_narrow_terminal() -> None:
    found, console = outcome(), Console(file=io.StringIO(), width=70)
    show_document(console, quantization_document("m.onnx", Quantized(None, found, None)))  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    for text in ("fast", "saved µs", "* all", "1.90", "predicted speedup"):
        assert text in said
    assert "…" not in said and max(map(len, said.splitlines())) <= 70


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"pip install 'ortfuse\[plot\]'"):
        check_curve(Path("curve.png"))
