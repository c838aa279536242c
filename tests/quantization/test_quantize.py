"""`ortfuse.quantize` and its command, with the schemes that there are; times are told, not measured."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.cli import terminal
from ortfuse.cli.app import main
from ortfuse.errors import BoundError, OptionError, VerificationError
from ortfuse.quantization import final_measurement, input_sets, mixed_precision_search
from ortfuse.runtime.bench import Latency
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import Session

pytest.importorskip("scipy")

SIZE = 32


class Told:
    """A clock by which integers are twice as fast as float32."""

    def __init__(self, threads: int, weights: int) -> None:
        pass

    def seconds(self, models: Mapping[str, ir.Model], inputs: Inputs) -> dict[str, float]:
        return {name: sum(map(_seconds, model.graph)) for name, model in models.items()}


def _seconds(node: ir.Node) -> float:
    if node.op_type in ("MatMul", "Gemm", "FusedMatMul", "Conv", "FusedConv"):
        return 1e-3
    if node.op_type == "MatMulNBits":
        return 8e-4
    return 5e-4 if "Integer" in node.op_type or node.op_type.startswith("Q") else 1e-6


def told(models: Mapping[str, ir.Model], inputs: Inputs, **how: Any) -> list[Latency]:
    seconds = Told(0, 0).seconds(models, inputs)
    first = next(iter(seconds.values()))
    return [Latency(n, 1.0, 1.0, 1.0, 0.0, first / s, None, 1.0, 1, 1, 1.0) for n, s in seconds.items()]


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final_measurement, "measure", told)
    monkeypatch.setattr(input_sets, "FRESH", (8, 8))
    monkeypatch.setattr(mixed_precision_search, "Stopwatch", Told)
    monkeypatch.setattr(terminal, "EACH", 1e6)


def proto(seed: int = 0) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    weights = [(rng.normal(size=(SIZE, SIZE)) / SIZE**0.5).astype(np.float32) for _ in range(3)]
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[n, {SIZE}] x) => (float[n, {SIZE}] y) {{
      a = MatMul(x, w0)  b = Relu(a)  c = MatMul(b, w1)  d = Tanh(c)  y = MatMul(d, w2) }}""")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights))
    return model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(proto(), path)
    return path


def inputs(folder: Path, count: int = 8, **arrays: np.ndarray) -> Path:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(7)
    for number in range(count):
        given = arrays or {"x": rng.standard_normal((4, SIZE), np.float32)}
        np.savez(folder / f"{number}.npz", **given)
    return folder


def test_the_result_keeps_the_bound_on_other_inputs(model: Path, tmp_path: Path) -> None:
    found = ortfuse.quantize(
        model, max_error=0.03, inputs=inputs(tmp_path / "in"), output=tmp_path / "q.onnx", store=None
    )
    assert found.outcome.chosen.choice
    assert found.outcome.held_out_error is not None
    x = {"x": np.random.default_rng(9).standard_normal((64, SIZE), np.float32)}
    expected, other = Session(model).run(x)["y"], Session(tmp_path / "q.onnx").run(x)["y"]
    assert 0 < np.linalg.norm(other - expected) / np.linalg.norm(expected) < 0.03


@pytest.mark.parametrize("seed", range(3))
def test_it_keeps_it_for_every_seed(seed: int) -> None:
    given = proto(seed)
    found = ortfuse.quantize(given, max_error=0.02, seed=seed, sizes={"n": 16}, store=None)
    rng = np.random.default_rng(100 + seed)
    for _ in range(10):
        x = {"x": rng.standard_normal((16, SIZE), np.float32)}
        expected = Session(given.SerializeToString()).run(x)["y"]
        other = Session(found.model.SerializeToString()).run(x)["y"]
        assert np.linalg.norm(other - expected) <= 0.02 * np.linalg.norm(expected)


def test_what_comes_in_comes_out() -> None:
    given = proto()
    before = given.SerializeToString()
    found = ortfuse.quantize(given, max_error=0.03, sizes={"n": 4}, store=None)
    assert isinstance(found.model, onnx.ModelProto)
    assert given.SerializeToString() == before


def test_the_command_writes_model_report_and_curve(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, report, curve = tmp_path / "q.onnx", tmp_path / "q.json", tmp_path / "q.csv"
    code = command(
        model, "-o", out, "--inputs", inputs(tmp_path / "in"), "--max-error", 0.03, "--json", report, "--curve", curve,
        "--store", tmp_path / "store",
    )  # fmt: skip
    assert code == 0
    text = capsys.readouterr().out
    assert "sites lowered" in text
    assert "on inputs that the search never saw" in text
    assert ortfuse.verify(model, out, tolerance=0.5).ok
    data = json.loads(report.read_text())
    assert data["chosen"]["choice"]
    assert len(data["sites"]) == 3
    rows = list(csv.DictReader(curve.open()))
    assert len(rows) >= 2
    assert all(float(row["predicted_speedup"]) >= 1 for row in rows)


def test_size_is_a_goal() -> None:
    found = ortfuse.quantize(proto(), max_error=0.03, goal="size", sizes={"n": 4}, store=None)
    assert found.outcome.chosen.size is not None
    assert found.outcome.chosen.size < 0.5 * found.outcome.float_size


def test_schemes_that_win_in_company_alone_are_found() -> None:
    """A convolution by itself takes no less time (it quantises what comes in); in a chain integers are handed on."""
    rng = np.random.default_rng(0)
    body = "  ".join(f"h{n} = Conv<pads = [1, 1, 1, 1]>(a{n}, w{n})  a{n + 1} = Relu(h{n})" for n in range(4))
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[n, 8, 8, 8] a0) => (float[n, 8, 8, 8] y) {{ {body}  y = Identity(a4) }}""")
    weights = [(rng.normal(size=(8, 8, 3, 3)) / 6).astype(np.float32) for _ in range(4)]
    model.graph.initializer.extend(onnx.numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights))
    found = ortfuse.quantize(model, max_error=0.3, sizes={"n": 1}, store=None)
    assert any(one.output_error is not None for site in found.outcome.sites for one in site.schemes)
    assert len(found.outcome.chosen.choice) > 1
    assert any(node.op_type == "QLinearConv" for node in found.model.graph.node)


def command(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["quantize", *map(str, arguments)])
    return int(stopped.value.code or 0)


BAD = {
    "other names": ({"z": np.zeros((4, SIZE), np.float32)}, "'x'"),
    "another shape": ({"x": np.zeros((4, SIZE + 1), np.float32)}, f"float32[4, {SIZE + 1}]"),
    "another type": ({"x": np.zeros((4, SIZE), np.float64)}, "float64"),
    "NaN": ({"x": np.full((4, SIZE), np.nan, np.float32)}, "NaN"),
    "infinity": ({"x": np.full((4, SIZE), np.inf, np.float32)}, "infinite"),
    "nothing": ({"x": np.zeros((0, SIZE), np.float32)}, "empty"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_inputs_are_one_line_and_nothing_is_written(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    arrays, said = BAD[what]
    folder = inputs(tmp_path / "in", **arrays)
    code = command(model, "-o", tmp_path / "q.onnx", "--inputs", folder, "--max-error", 0.03, "--store", tmp_path / "s")
    error = capsys.readouterr().err.strip()
    assert code == 2
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("arguments", [(), ("--scheme", "dynamic_int8")])
def test_a_folder_without_inputs_is_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    (tmp_path / "in").mkdir()
    bound = () if arguments else ("--max-error", 0.03)
    code = command(model, "-o", tmp_path / "q.onnx", "--inputs", tmp_path / "in", *bound, *arguments)
    assert code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "q.onnx").exists()


def test_a_search_that_is_interrupted_writes_nothing_and_goes_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (model, "-o", tmp_path / "q.onnx", "--size", "n=4", "--max-error", 0.03, "--store", tmp_path / "s")

    def interrupted(*rest: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(final_measurement, "measure", interrupted)
    assert command(*arguments) == 130
    assert "no file is left half written" in capsys.readouterr().err
    assert not list(tmp_path.glob("*q.onnx*"))
    monkeypatch.setattr(final_measurement, "measure", told)
    assert command(*arguments) == 0
    assert (tmp_path / "q.onnx").exists()


def test_a_bound_that_cannot_be_kept_is_one_line_and_a_no(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = command(model, "-o", tmp_path / "q.onnx", "--size", "n=4", "--max-error", 1e-7, "--store", tmp_path / "s")
    error = capsys.readouterr().err.strip()
    assert code == 1
    assert "nothing was written" in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("bound", [0, -1.0, float("nan"), float("inf"), True, "small"])
def test_a_bound_is_a_number_above_zero(bound: Any) -> None:
    with pytest.raises(OptionError, match="max_error"):
        ortfuse.quantize(proto(), max_error=bound, store=None)


@pytest.mark.parametrize("arguments", [["--max-error", "-1"], ["--max-error", "x"], ["--max-error", "0.1", "--metric", "best"],
                                       ["--max-error", "0.1", "--goal", "speed"], ["--max-error", "0.1", "--store", __file__], ["--max-error", "0.1", "--curve", "a.txt"], []])  # fmt: skip
def test_bad_options_are_one_line(model: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert command(model, *arguments) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_budget_is_kept_and_said(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (model, "-o", tmp_path / "q.onnx", "--size", "n=4", "--max-error", 0.1, "--store", tmp_path / "s")
    assert command(*arguments, "--budget", 0.001) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "2 of 3 sites were not measured in the time given" in told
    assert "instead of 0 s, most of it for" in told
    with pytest.raises(OptionError, match="budget"):
        ortfuse.quantize(proto(), max_error=0.1, budget=-1.0, store=None)


def test_an_output_that_cannot_be_written_is_said_first(model: Path, tmp_path: Path) -> None:
    assert command(model, "-o", tmp_path / "none" / "q.onnx", "--max-error", 0.1) == 2


def test_without_the_solver_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"pip install 'ortfuse\[quantize\]'"):
        ortfuse.quantize(proto(), max_error=0.1, store=None)


def test_the_errors_are_those_of_ortfuse() -> None:
    assert issubclass(BoundError, ortfuse.OrtfuseError)
    with pytest.raises(VerificationError, match="no open dimension"):
        ortfuse.quantize(proto(), max_error=0.1, sizes={"rows": 3}, store=None)


def quantized(model: Path, folder: Path, bound: float = 0.03) -> Path:
    ortfuse.quantize(model, max_error=bound, inputs=inputs(folder / "in"), output=folder / "q.onnx", store=None)
    return folder / "q.onnx"


def test_a_result_is_compared_under_the_bound_that_it_states(model: Path, tmp_path: Path) -> None:
    result = quantized(model, tmp_path)
    verdict = ortfuse.verify(model, result)
    assert verdict.ok
    assert verdict.state == "within the bound"
    assert "the bound is 0.03" in verdict.summary()
    assert any("states this bound" in note for note in verdict.notes)
    assert ortfuse.verify(model, result, inputs=tmp_path / "in").ok
    assert ortfuse.verify(model, result, tolerance=1e-4).state == "not equal"
    assert ortfuse.verify(model, result, max_error=1e-6).state == "above the bound"


def test_what_is_made_of_a_result_is_compared_exactly(model: Path, tmp_path: Path) -> None:
    result = quantized(model, tmp_path)
    ortfuse.optimize(result, output=tmp_path / "o.onnx")
    assert ortfuse.verify(result, tmp_path / "o.onnx").state == "equal"
    assert ortfuse.verify(model, tmp_path / "o.onnx").state == "within the bound"


def test_the_command_verify_takes_a_bound(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = quantized(model, tmp_path)
    for bound, code, said in ((0.5, 0, "verified: max error"), (1e-6, 1, "ABOVE THE BOUND"), (0, 2, "above 0")):
        with pytest.raises(SystemExit) as stopped:
            main(["verify", str(model), str(result), "--max-error", str(bound), "--metric", "max"])
        assert stopped.value.code == code
        shown = capsys.readouterr()
        assert said in shown.out + shown.err


def test_the_schemes_to_choose_from_can_be_named() -> None:
    found = ortfuse.quantize(proto(), max_error=0.1, schemes=["weight_int8"], goal="size", sizes={"n": 4}, store=None)
    assert found.outcome.lowered
    assert all(scheme.startswith("weight_int8") for scheme in found.outcome.lowered)
    with pytest.raises(OptionError, match="no scheme is called 'int3'"):
        ortfuse.quantize(proto(), max_error=0.1, schemes=["int3"], store=None)


def test_memory_is_measured_where_it_is_the_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final_measurement, "footprint", lambda model, *rest: 1000 + 10 * len(model.graph.initializers))
    found = ortfuse.quantize(proto(), max_error=0.03, goal="memory", sizes={"n": 4}, store=None)
    assert "takes less memory" in found.outcome.reason, "lowered sites have more initializers here"
    monkeypatch.setattr(final_measurement, "footprint", lambda model, *rest: 5000 - 10 * len(model.graph.initializers))
    found = ortfuse.quantize(proto(), max_error=0.03, goal="memory", sizes={"n": 4}, store=None)
    assert found.outcome.memory is not None
    assert found.outcome.memory[1] < found.outcome.memory[0]
    assert tuple(found.to_dict()["memory"]) == found.outcome.memory


def test_progress_is_printed_now_and_then_where_there_is_no_terminal(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "EACH", 1e-3)
    assert command(model, "--size", "n=4", "--max-error", 0.1, "--store", tmp_path / "s") == 0
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert 1 < len(lines) < 100
    assert all("s: " in line for line in lines)
    assert len({line.partition(": ")[2] for line in lines}) == len(lines), "nothing is said twice"


def test_what_each_phase_takes_is_told() -> None:
    found = ortfuse.quantize(proto(), max_error=0.1, sizes={"n": 4}, store=None)
    phases = {phase["name"]: phase for phase in found.to_dict()["phases"]}
    assert phases["optimising in float32"]["seconds"] > 0
    assert phases["ranges of values"]["runs"] == 12, "one for each set that ranges are observed on"
    assert phases["ranges of values"]["sessions"] == 1
    assert phases["errors followed to the outputs"]["runs"] > 0
