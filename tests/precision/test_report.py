"""What `ortfuse quantize` writes besides the model: the report as data, and the curve as a plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from ortfuse.bench import Latency
from ortfuse.errors import OptionError
from ortfuse.precision.effects import Spread
from ortfuse.precision.outcome import Outcome, Point, SiteReport, Tried
from ortfuse.report.quantization import check_curve, write_curve

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "quantize.schema.json").read_text())
KINDS = {"string": str, "number": int | float, "integer": int, "object": dict, "array": list, "null": type(None)}


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


def problems(data: Any, schema: Any, where: str = "report") -> list[str]:
    """Where data are not what a schema says, as far as the schema of the report goes."""
    if "$ref" in schema:
        return problems(data, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], where)
    if "enum" in schema:
        return [] if data in schema["enum"] else [f"{where}: {data!r}"]
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if isinstance(data, bool) or not any(isinstance(data, KINDS[kind]) for kind in kinds):
        return [f"{where}: {data!r} is no {kinds}"]
    if isinstance(data, list):
        return [line for number, one in enumerate(data) for line in problems(one, schema["items"], f"{where}.{number}")]
    if not isinstance(data, dict):
        return []
    known, other = schema.get("properties", {}), schema.get("additionalProperties", True)
    found = [f"{where}: lacks {name}" for name in schema.get("required", ()) if name not in data]
    for name, one in data.items():
        if name not in known and other is False:
            found.append(f"{where}: {name} is not described")
        elif name in known or other is not True:
            found += problems(one, known.get(name, other), f"{where}.{name}")
    return found


def test_the_report_is_as_its_schema_says() -> None:
    data = json.loads(json.dumps({"model": "m.onnx", **outcome().to_dict(), "written": None}))
    assert problems(data, SCHEMA) == []
    assert problems({**data, "bound": "x", "other": 1}, SCHEMA) == [
        "report.bound: 'x' is no ['number']",
        "report: other is not described",
    ]


def test_the_curve_can_be_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    check_curve(tmp_path / "curve.png")
    write_curve(tmp_path / "curve.png", outcome())
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"pip install 'ortfuse\[plot\]'"):
        check_curve(Path("curve.png"))
