"""`benchmarks.targets.table`: cells of models that are right, wrong, refused or that crash, and the figures over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import typer

from benchmarks.targets import table
from benchmarks.targets.cells import Request, answer

_MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[n, 4] x) => (float[n, 4] y) {{ a = Relu(x) y = {0}(a) }}"""


def _model(path: Path, operator: str) -> str:
    ir.save(ir.from_onnx_text(_MODEL.format(operator)), path)
    return str(path)


def _found(tmp_path: Path, **results: str) -> dict[str, Any]:
    kept: list[Any] = []
    original = _model(tmp_path / "original.onnx", "Sigmoid")
    request = Request("", original, results, {}, rounds=2, seconds=0.0, threads=1, budget=20.0)
    answer(request, kept.append)
    return dict(kept[-1])


def test_equal_results_are_measured_and_others_say_why_not(tmp_path: Path) -> None:
    refused = tmp_path / "refused.onnx"
    onnx.save(onnx.parser.parse_model(_MODEL.format("Absent")), refused)
    found = _found(
        tmp_path,
        equal=_model(tmp_path / "equal.onnx", "Sigmoid"),
        wrong=_model(tmp_path / "wrong.onnx", "Tanh"),
        refused=str(refused),
    )
    tools = found["tools"]
    assert tools["equal"]["equal"] and tools["equal"]["speedup"][0] > 0
    assert tools["wrong"]["equal"] is False and "speedup" not in tools["wrong"]
    assert "Absent" in tools["refused"]["error"]
    assert found["original"]["executed"] == 2
    assert set(found["seconds"]) == {"checking", "placing", "measuring"}


def test_an_original_that_does_not_run_is_an_error_of_the_cell(tmp_path: Path) -> None:
    original = tmp_path / "original.onnx"
    onnx.save(onnx.parser.parse_model(_MODEL.format("Absent")), original)
    kept: list[Any] = []
    answer(Request("", str(original), {}, {}, 2, 0.0, 1, 20.0), kept.append)
    assert kept[-1]["error"].startswith("checking: ")


def test_a_process_that_fails_is_told_in_a_line() -> None:
    said = table._run(["benchmarks.targets.cells", "absent.json", "found.json"], str(table.ROOT), 60.0)
    assert said.startswith("ended with exit code 1: FileNotFoundError")


def _cell(ours: dict[str, Any], peer: dict[str, Any]) -> dict[str, Any]:
    return {
        "original": {"ms": 2.0, "executed": 9, "partitions": 2, "off": 3},
        "tools": {"ortfuse": ours, "onnxslim": peer},
        "seconds": {"making": 1.0, "measuring": 2.5},
    }


def test_figures_are_by_target_and_name_what_is_slower_than_the_original() -> None:
    fast = {"equal": True, "speedup": [2.0, 1.9, 2.1], "executed": 4, "partitions": 1, "off": 0}
    slow = {"equal": True, "speedup": [0.5, 0.4, 0.6]}
    cells = {
        "cpu/golden/a": _cell(fast, slow),
        "cpu/golden/b": _cell(slow, {"error": "failed: crashed"}),
        "wasm/golden/a": {"tools": {}, "seconds": {}, "error": "ended with exit code -11: "},
    }
    found = table.figures(cells)
    assert found["cpu"]["geometric_mean"] == {"ortfuse": 1.0, "onnxslim": 0.5}
    assert found["cpu"]["slower than the original"] == ["golden/b"]
    assert found["cpu"]["seconds"]["measuring"] == 5.0
    assert found["cpu"]["cells"]["golden/a"]["partitions, nodes off"] == [[2, 3], [1, 0]]
    assert found["cpu"]["cells"]["golden/b"]["tools"]["onnxslim"] == "failed: crashed"
    assert found["wasm"]["equal"]["ortfuse"] == 0
    assert found["wasm"]["cells"]["golden/a"]["error"].startswith("ended")


def test_a_place_is_a_target_or_a_release_of_it() -> None:
    assert table.Place.of("cpu@1.20") == table.Place("cpu@1.20", "cpu", "1.20")
    with pytest.raises(typer.BadParameter, match="no release"):
        table.Place.of("cpu@1.2")
