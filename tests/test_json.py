"""What commands write with `--json` is what the schemas say that come with ortfuse."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import onnx
import pytest
from json_schema import problems
from typer.testing import CliRunner

from docs import schemas
from ortfuse.bench import Latency
from ortfuse.cli.app import app
from ortfuse.cli.output import COMMANDS, as_data
from ortfuse.fleet import Row, Sweep
from ortfuse.options import Options
from ortfuse.precision.effects import Spread
from ortfuse.precision.outcome import Outcome, SiteReport, Tried
from ortfuse.precision.outcome import Point as PrecisionPoint
from ortfuse.sessions import SessionConfig, Setting
from ortfuse.tuning.outcome import Point, TuningOutcome
from ortfuse.tuning.tune import Tuned

WEIGHTS = ", ".join(str(number % 7 - 3) for number in range(32))
GELU = (
    """<ir_version: 10, opset_import: ["": 21]> g (float[2,8] x) => (float[2,4] z)
<float half = {0.5}, float one = {1}, float root = {1.4142135}, float[8,4] w = {WEIGHTS}> {
    d = Div(x, root) e = Erf(d) a = Add(e, one) h = Mul(x, a) y = Mul(h, half) z = MatMul(y, w) }"""
).replace("WEIGHTS", WEIGHTS)

RULE = """
from ortfuse.pattern import op, var
from ortfuse.rewrite import Exactness, Proof, Rule

x = var("x")
RULES = [Rule(name="own.abs", pattern=op.Abs(op.Abs(x)), replace=op.Abs(x), exactness=Exactness.EXACT, source="none",
              proof=Proof(shapes={"x": "b 3"}))]
"""


def schema(command: str) -> Any:
    return json.loads((resources.files("ortfuse") / "schemas" / f"{command}.schema.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("json")
    onnx.save(onnx.parser.parse_model(GELU), place / "m.onnx")
    onnx.save(onnx.parser.parse_model(GELU.replace("y = Mul(h, half)", "y = Mul(half, h)")), place / "n.onnx")
    (place / "find.onnx").write_bytes(_relu("Relu").SerializeToString())
    (place / "rule.py").write_text(RULE)
    return place


def _relu(operator: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[n] x) => (float[n] y) {{ y = {operator}(x) }}'
    )


@pytest.mark.parametrize(
    "written",
    [
        "optimize m.onnx --verify=sites --explain --pin gelu=none",
        "optimize n.onnx --verify",
        "verify m.onnx n.onnx",
        "verify m.onnx n.onnx --max-error 0.1",
        "explain m.onnx",
        "inspect m.onnx --no-measure",
        "bench m.onnx n.onnx --rounds 6",
        "bisect m.onnx",
        "profile m.onnx --rounds 3 --no-remedies",
        "calibrate --budget 0 --only gelu.erf",
        "prove rule.py --spellings 0",
        "convert m.onnx",
        "quantize m.onnx --rung dynamic_int8",
        "substitute m.onnx --find find.onnx --replace find.onnx --unproved --verify",
    ],
)
def test_commands_write_what_their_schema_says(written: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    result = CliRunner().invoke(app, [*written.split(), "--json", "found.json"])
    assert result.exit_code in (0, 1), result.output
    data = json.loads((folder / "found.json").read_text())
    command = written.split()[0]
    assert data["schema"] == f"ortfuse.{command}/1"
    assert problems(data, schema(command)) == []


POINT = Point(1, {"passes": "all", "threads": 2}, 1.5, 1.0, 1.2, 3.0, 100.0)
LATENCY = Latency("m", 1.0, 1.0, 1.0, 0.0, 1.9, (1.8, 2.0), float("nan"), 1, 1, 1.0)
QUANTISED = Outcome(
    onnx.ModelProto(), "l2", 0.05, "latency", "8 sets", PrecisionPoint("all", {"y": "fast"}, 0.01, 0.01, 2.0, 0.012),
    0.012, None, [LATENCY], 400,
    [SiteReport("y", "MatMul", "[1, 8]", "fast", 2e-3, Spread(-1.0, 2.0, 1.5), (Tried("fast", 1e-3, 1e-3, 100, 0.01, float("inf")),))],
    [PrecisionPoint("float32", {}, 0.0, 0.0, 1.0)],
)  # fmt: skip
TUNED = Tuned(
    TuningOutcome(POINT, POINT, [POINT], [POINT], 2.0, ["a note"]), Options(passes="all"),
    SessionConfig((Setting("intra_op_num_threads", 2, "measured"),)), (Path("a.onnx"),),
)  # fmt: skip
SWEPT = Sweep(
    [Row("m", "ok", 8, 1, {"gelu": 1}, 1.0, "equal", (2.0, 1.0), 2.0, (1.9, 2.1)), Row("n", "crashed", reason="why")]
)


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("quantize", {"model": "m", **QUANTISED.to_dict(), "written": None}),
        ("tune", {"model": "m", **TUNED.to_dict()}),
        ("sweep", SWEPT.to_dict()),
    ],
)
def test_results_of_searches_are_what_their_schema_says(command: str, found: dict[str, Any]) -> None:
    assert problems(as_data(command, found), schema(command)) == []


def test_a_field_that_goes_or_is_of_another_type_is_noticed() -> None:
    data = as_data("sweep", SWEPT.to_dict())
    data["rows"][0]["nodes_after"] = "1"
    del data["rows"][1]["seconds"]
    assert problems(data, schema("sweep")) == [
        "data.rows.0.nodes_after: '1' is no ['integer']",
        "data.rows.1: lacks seconds",
    ]


def test_every_command_has_a_schema_made_from_the_code() -> None:
    for path, text in schemas.documents().items():
        assert path.read_text() == text, "run python docs/schemas.py"
    assert {path.name.partition(".")[0] for path in schemas.FOLDER.iterdir()} == set(COMMANDS)
