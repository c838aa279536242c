"""`{target}` in the name of the output makes one result for each target and release of a list."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.errors import OptionError, TargetError
from ortfuse.targets.resolve import members

GELU = """<ir_version: 10, opset_import: ["": 20]> g (float[8, 16] x) => (float[8, 16] y)
    <float two = {1.4142135}, float one = {1.0}, float half = {0.5}> {
    s = Div(x, two)  e = Erf(s)  p = Add(e, one)  m = Mul(x, p)  y = Mul(m, half) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    ir.save(ir.from_onnx_text(GELU), path)
    return path


def test_members_are_named_by_target_and_release() -> None:
    assert [one.label for one in members("cpu, portable")] == ["cpu", "portable"]
    assert [one.label for one in members(None, "1.20,1.24")] == ["cpu-1.20", "cpu-1.24"]
    assert [one.label for one in members("path/of/toy")] == ["toy"]


def test_each_target_has_a_result_of_its_own(model: Path, tmp_path: Path) -> None:
    results = ortfuse.optimize_for_targets(model, runtime="1.19,1.24", output=tmp_path / "r.{target}.onnx")
    assert list(results) == ["cpu-1.19", "cpu-1.24"]
    opsets = [onnx.load(tmp_path / f"r.{label}.onnx").opset_import[0].version for label in results]
    assert opsets == [20, 20]
    assert {label: one.written for label, one in results.items()} == {
        label: tmp_path / f"r.{label}.onnx" for label in results
    }
    both = ortfuse.optimize(model, runtime="1.19,1.24", output=tmp_path / "both.onnx")
    assert both.written == tmp_path / "both.onnx"


def test_one_target_has_its_name_in_the_file(model: Path, tmp_path: Path) -> None:
    assert ortfuse.optimize(model, target="portable", output=tmp_path / "{target}.onnx").written == (
        tmp_path / "portable.onnx"
    )


def test_a_file_for_all_is_no_file_for_each(model: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"has no \{target\}"):
        ortfuse.optimize_for_targets(model, target="cpu,portable", output=tmp_path / "r.onnx")
    with pytest.raises(OptionError, match="optimize_for_targets"):
        ortfuse.optimize(model, target="cpu,portable", output=tmp_path / "{target}.onnx")
    assert list(ortfuse.optimize_for_targets(model, target="cpu,portable")) == ["cpu", "portable"]


def test_a_target_that_there_is_not_is_told_before_anything_is_written(model: Path, tmp_path: Path) -> None:
    for wrong in ({"target": "cpu,nowhere"}, {"runtime": "1.24,1.5"}):
        with pytest.raises(TargetError, match=r"nowhere|1\.5"):
            ortfuse.optimize_for_targets(model, output=tmp_path / "r.{target}.onnx", **wrong)  # type: ignore[arg-type]
    assert not list(tmp_path.glob("r.*"))


def test_the_command_writes_a_file_and_a_report_for_each(model: Path, tmp_path: Path) -> None:
    arguments = ["optimize", str(model), "--target", "cpu,portable", "-o", str(tmp_path / "r.{target}.onnx")]
    done = CliRunner().invoke(app, [*arguments, "--json", str(tmp_path / "r.{target}.json")])
    assert done.exit_code == 0, done.output
    assert "target portable" in done.output
    for label in ("cpu", "portable"):
        assert (tmp_path / f"r.{label}.onnx").is_file()
        assert json.loads((tmp_path / f"r.{label}.json").read_text())["options"]["target"] == label
    for refused in (["--json", str(tmp_path / "r.json")], ["--check", str(tmp_path / "r.cpu.json")]):
        assert CliRunner().invoke(app, [*arguments, *refused]).exit_code != 0


def test_commands_that_make_one_result_refuse_the_place_of_a_target(model: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["convert", str(model), "-o", str(tmp_path / "r.{target}.onnx"), "--to", "float16"]
    )
    assert result.exit_code == 2
    assert "optimize alone makes a result for each target" in " ".join(result.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
