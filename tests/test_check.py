"""`--check`: exit code 3 where something is worse than what was stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from rich.console import Console
from typer import Exit
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.cli.json_output import as_data
from ortfuse.cli.regression_check import demand_no_regression
from ortfuse.runtime.bench import Latencies, Latency
from ortfuse.sweeping import Row, Sweep

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[2,8] x) => (float[2,8] y)
<float half = {0.5}, float one = {1}, float root = {1.4142135}> {
    d = Div(x, root) e = Erf(d) a = Add(e, one) h = Mul(x, a) y = Mul(h, half) }"""


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(TEXT), "m.onnx")
    assert run("optimize", "m.onnx", "--verify", "--json", "stored.json")[0] == 0
    return tmp_path / "stored.json"


def test_the_same_result_is_not_worse(stored: Path) -> None:
    code, said = run("optimize", "m.onnx", "--verify", "--check", "stored.json")
    assert code == 0 and "not worse than what is stored" in said


def test_what_version_1_stored_is_read(stored: Path) -> None:
    data = json.loads(stored.read_text())
    data["schema"] = "ortfuse.optimize/1"
    data["left_alone"] = data.pop("unchanged")
    data["after"]["nodes"] = 0
    stored.write_text(json.dumps(data))
    code, said = run("optimize", "m.onnx", "--verify", "--check", "stored.json")
    assert code == 3 and "WORSE: nodes: 0 became 1" in said


def test_more_nodes_fewer_sites_and_a_larger_error_are_worse(stored: Path) -> None:
    data = json.loads(stored.read_text())
    data["after"]["nodes"] = 0
    data["families"]["attention"] = 2
    data["versions"]["onnxruntime"] = "0.1"
    stored.write_text(json.dumps(data))
    code, said = run("optimize", "m.onnx", "--verify", "--check", "stored.json")
    assert code == 3
    assert "WORSE: nodes: 0 became 1" in said and "WORSE: sites of attention: 2 became 0" in said
    assert "stored with onnxruntime 0.1, and this is" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(schema="ortfuse.optimize/0"), "is ortfuse.optimize/0, and not ortfuse.optimize/2"),
        (lambda data: data.pop("schema"), "does not say what it is"),
        (
            lambda data: data["before"].update(nodes=9, operators={"Mul": 9}),
            "of another model, of 9 nodes, 9 of them Mul; this one has 5, 2 of them Mul",
        ),
    ],
)
def test_a_file_of_another_form_or_model_cannot_be_used(stored: Path, change: Callable[[Any], Any], said: str) -> None:
    data = json.loads(stored.read_text())
    change(data)
    stored.write_text(json.dumps(data))
    code, text = run("optimize", "m.onnx", "--check", "stored.json")
    assert code == 2 and said in text


def test_another_model_is_noticed_before_anything_is_optimised_or_measured(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def works(*given: Any, **more: Any) -> None:
        pytest.fail("it began to work")

    onnx.save(onnx.parser.parse_model(TEXT.replace("e = Erf(d)", "e = Tanh(d)")), "other.onnx")
    rows = as_data("bench", latencies(1.0, None))
    (stored.parent / "bench.json").write_text(json.dumps(rows))
    monkeypatch.setattr(ortfuse, "optimize", works)
    monkeypatch.setattr(ortfuse, "benchmark", works)
    code, said = run("optimize", "other.onnx", "--check", "stored.json")
    assert code == 2 and "of another model, of 5 nodes, 1 of them Erf; this one has 5, 0 of them Erf" in said
    code, said = run("bench", "m.onnx", "--check", "bench.json")
    assert code == 2 and "a is stored and would not be measured" in said


def test_what_is_checked_is_not_overwritten_and_must_be_there(stored: Path) -> None:
    assert run("optimize", "m.onnx", "--check", "stored.json", "--json", "stored.json")[0] == 2
    assert run("bench", "m.onnx", "--check", "none.json")[0] == 2


def worse(command: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    console = Console(width=300, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    try:
        demand_no_regression(console, command, as_data(command, before), now)
    except Exit as ended:
        assert ended.exit_code == 3
    return [line.removeprefix("WORSE: ") for line in console.export_text().splitlines() if line.startswith("WORSE")]


def latencies(speedup: float, bounds: tuple[float, float] | None, executed: int = 5, crash: str = "") -> dict[str, Any]:
    first = Latency("a", 1.0, 1.0, 1.0, 0.0, 1.0, None, 1.0, 9, 9, 1.0)
    return Latencies(
        "", (first, Latency("b", 1.0, 1.0, 1.0, 0.0, speedup, bounds, 1.0, 5, executed, 1.0, crash))
    ).to_dict()


@pytest.mark.parametrize(
    ("before", "now", "lines"),
    [
        ((1.5, (1.4, 1.6)), (1.3, (1.2, 1.39)), ["b: speedup 1.500 (1.400 to 1.600) became 1.300 (1.200 to 1.390)"]),
        ((1.5, (1.4, 1.6)), (1.3, (1.2, 1.41)), []),  # the bounds meet
        ((1.5, (1.499, 1.501)), (1.49, (1.489, 1.491)), []),  # lower, but by nothing worth speaking of
        ((1.5, (1.4, 1.6)), (1.0, None), []),  # too few rounds to tell
        ((1.5, None, 5), (1.5, None, 6), ["b: executed operators: 5 became 6"]),
        ((1.5, None, 5), (1.5, None, 5, "ended by signal 11"), ["b: ended by signal 11"]),
    ],
)
def test_a_speedup_is_worse_only_beyond_the_bounds_of_both(before: Any, now: Any, lines: list[str]) -> None:
    assert worse("bench", latencies(*before), latencies(*now)) == lines


def test_a_model_of_a_sweep_that_was_ok_and_is_not_is_worse() -> None:
    rows = [Row("a", "ok", 9, 3, executed=(9, 3)), Row("b", "ok"), Row("c", "wrong"), Row("d", "ok")]
    later = [Row("a", "ok", 9, 4, executed=(9, 4)), Row("b", "crashed", reason="why"), Row("c", "wrong")]
    assert worse("sweep", Sweep(rows).to_dict(), Sweep(later).to_dict()) == [
        "a: nodes: 3 became 4", "a: executed operators: 3 became 4", "b: crashed: why", "d: is not there any more",
    ]  # fmt: skip
