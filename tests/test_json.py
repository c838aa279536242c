"""What commands write with `--json` is what the schemas say that come with ortfuse."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import onnx
import pytest
from json_schema import problems
from typer.testing import CliRunner

import ortfuse
from docs import schemas
from ortfuse.cli.app import app
from ortfuse.cli.json_output import as_data
from ortfuse.cli.parsing import COMMANDS
from ortfuse.errors import BoundError, ConstraintError
from ortfuse.options import Options
from ortfuse.quantization.outcome import Outcome, SiteReport, Tried
from ortfuse.quantization.outcome import Point as PrecisionPoint
from ortfuse.quantization.output_effects import Spread
from ortfuse.runtime.bench import Latencies, Latency
from ortfuse.runtime.session_settings import SessionConfig, Setting
from ortfuse.sweeping import Row, Sweep
from ortfuse.sweeping.result_row import Status
from ortfuse.tuning.outcome import Point, TuningOutcome
from ortfuse.tuning.rule_costs import Effect, MeasuredSettings
from ortfuse.tuning.tune import Tuned

WEIGHTS = ", ".join(str(number % 7 - 3) for number in range(32))
GELU = (
    """<ir_version: 10, opset_import: ["": 21]> g (float[2,8] x) => (float[2,4] z)
<float half = {0.5}, float one = {1}, float root = {1.4142135}, float[8,4] w = {WEIGHTS}> {
    d = Div(x, root) e = Erf(d) a = Add(e, one) h = Mul(x, a) y = Mul(h, half) z = MatMul(y, w) }"""
).replace("WEIGHTS", WEIGHTS)

DECODER = """<ir_version: 10, opset_import: ["": 23]>
g (float[b,s,16] q, float[b,s,16] k, float[b,s,16] v, float[b,2,p,8] past_k, float[b,2,p,8] past_v)
    => (float[b,s,16] y, float[b,2,t,8] present_k, float[b,2,t,8] present_v)
{ y, present_k, present_v = Attention<q_num_heads=2, kv_num_heads=2, is_causal=1>(q, k, v, , past_k, past_v) }"""
RULE = """
from ortfuse.rewrite.pattern import op, var
from ortfuse.rewrite import Exactness, RuleTest, Rule

x = var("x")
RULES = [Rule(name="own.abs", pattern=op.Abs(op.Abs(x)), replace=op.Abs(x), exactness=Exactness.EXACT, source="none",
              test=RuleTest(shapes={"x": "b 3"}))]
"""
WRONG = RULE.replace("own.abs", "own.erf").replace("op.Abs(op.Abs(x))", "op.Erf(x)").replace("op.Abs(x)", "op.Sign(x)")


def schema(command: str) -> Any:
    return json.loads((resources.files("ortfuse") / "schemas" / f"{command}.schema.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("json")
    onnx.save(onnx.parser.parse_model(GELU), place / "m.onnx")
    onnx.save(onnx.parser.parse_model(GELU.replace("y = Mul(h, half)", "y = Mul(half, h)")), place / "n.onnx")
    onnx.save(onnx.parser.parse_model(GELU.replace("1.4142135", "1.7")), place / "other.onnx")
    no_graph = onnx.parser.parse_model(GELU)
    no_graph.ir_version = 0  # only the runtime understands it
    onnx.save(no_graph, place / "only.onnx")
    onnx.save(onnx.parser.parse_model(DECODER), place / "decoder.onnx")
    for operator in ("Relu", "Abs"):
        (place / f"{operator.lower()}.onnx").write_bytes(_one(operator).SerializeToString())
    (place / "rule.py").write_text(RULE)
    (place / "wrong.py").write_text(WRONG)
    return place


def _one(operator: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[n] x) => (float[n] y) {{ y = {operator}(x) }}'
    )


def found(written: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Any, list[str]]:
    """The exit code of a command, the data that it wrote, and what is wrong with these."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    (folder / "found.json").unlink(missing_ok=True)
    result = CliRunner().invoke(app, [*written.split(), "--json", "found.json"])
    assert (folder / "found.json").is_file(), result.output
    data = json.loads((folder / "found.json").read_text(), parse_constant=pytest.fail)
    command = written.split()[0]
    assert data["schema"] == f"ortfuse.{command}/2"
    return result.exit_code, data, problems(data, schema(command))


@pytest.mark.parametrize(
    ("code", "written"),
    [
        (0, "optimize m.onnx --verify=sites --explain --force gelu=none"),
        (0, "optimize n.onnx --verify"),
        (0, "optimize only.onnx"),
        (0, "optimize m.onnx --passes disabled"),
        (1, "optimize m.onnx --passes user --patterns wrong.py --verify"),
        (0, "verify m.onnx n.onnx"),
        (1, "verify m.onnx other.onnx"),
        (0, "verify m.onnx n.onnx --max-error 0.1"),
        (1, "verify m.onnx other.onnx --max-error 1e-9"),
        (0, "diff m.onnx other.onnx --run"),
        (0, "explain m.onnx"),
        (0, "inspect m.onnx --no-measure"),
        (0, "bench m.onnx n.onnx --rounds 6"),
        (0, "bisect m.onnx"),
        (1, "bisect m.onnx --passes user --patterns wrong.py"),
        (0, "bisect m.onnx --runtime"),
        (0, "profile m.onnx --rounds 3 --no-remedies"),
        (0, "calibrate --budget 0 --only gelu.from_erf_form"),
        (0, "passes"),
        (0, "passes loops"),
        (0, "targets --no-run"),
        (0, "targets cpu"),
        (0, "test-rules rule.py --spellings 0"),
        (1, "test-rules wrong.py --spellings 0"),
        (0, "convert m.onnx"),
        (0, "convert decoder.onnx --to int8-caches"),
        (0, "quantize m.onnx --scheme dynamic_int8"),
        (1, "substitute m.onnx --find relu.onnx --replace relu.onnx --untested --verify"),
        (1, "substitute m.onnx --find relu.onnx --replace abs.onnx"),
    ],
)
def test_commands_write_what_their_schema_says(
    code: int, written: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, _, wrong = found(written, folder, monkeypatch)
    assert (ended, wrong) == (code, [])


@pytest.mark.parametrize(
    ("command", "error"),
    [("tune", ConstraintError("max-memory is missed")), ("quantize", BoundError("the error is 0.2"))],
)
def test_what_cannot_be_kept_is_written_with_the_reason(
    command: str, error: Exception, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*given: Any, **more: Any) -> None:
        raise error

    monkeypatch.setattr(ortfuse, command, refuses)
    ended, data, wrong = found(f"{command} m.onnx --max-error 0.1", folder, monkeypatch)
    assert (ended, wrong) == (1, []) and data["reason"] == str(error) and data["ok"] is False


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
    [
        Row("m", "ok", 8, 1, {"gelu": 1}, 1.0, "equal", (2.0, 1.0), 2.0, (1.9, 2.1)),
        *(Row("n", status, reason="why") for status in get_args(Status) if status != "ok"),
    ]
)
SETTINGS = MeasuredSettings(
    "m", "8 rows", 2, (Effect({"enable_mem_reuse": False}, 1.1, (1.0, 1.2)), Effect({}, reason="the runtime crashes")), None,
    SessionConfig((Setting("enable_mem_reuse", False, "measured"),)), Path("a.json"), "cannot be written",
)  # fmt: skip
CRASHED = Latency("n", *[float("nan")] * 4, 0.0, None, float("nan"), 1, 0, float("inf"), "ended by signal 11")


@pytest.mark.parametrize(
    ("command", "content"),
    [
        ("quantize", {"model": "m", **QUANTISED.to_dict(), "written": None}),
        ("tune", {"model": "m", **TUNED.to_dict()}),
        ("sweep", SWEPT.to_dict()),
        ("sweep", Sweep([]).to_dict()),
        ("calibrate", SETTINGS.to_dict()),
        ("bench", Latencies("8 rows", (LATENCY, CRASHED)).to_dict()),
    ],
)
def test_results_of_searches_and_crashes_are_what_their_schema_says(command: str, content: dict[str, Any]) -> None:
    data = as_data(command, content)
    json.dumps(data, allow_nan=False)
    assert problems(data, schema(command)) == []


def test_a_field_that_goes_is_added_or_is_of_another_type_is_noticed() -> None:
    data = as_data("sweep", SWEPT.to_dict())
    data["rows"][0]["nodes_after"] = "1"
    del data["rows"][1]["seconds"]
    assert problems(data, schema("sweep")) == [
        "$.rows[0].nodes_after: '1' is not of type 'integer'",
        "$.rows[1]: 'seconds' is a required property",
    ]
    for place in ((), ("rows", 0)):
        data = as_data("sweep", SWEPT.to_dict())
        inner = data
        for name in place:
            inner = inner[name]
        inner["new"] = 1
        assert any("'new' was unexpected" in line for line in problems(data, schema("sweep")))


def test_every_command_has_a_schema_made_from_the_code() -> None:
    for path, text in schemas.documents().items():
        assert path.read_text() == text, "run python docs/schemas.py"
    assert {path.name.partition(".")[0] for path in schemas.FOLDER.iterdir()} == set(COMMANDS)
