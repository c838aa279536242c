"""A model that is written over itself takes the data files along that nothing needs any more, and no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.errors import OutputError

X = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)


def write(path: Path, location: str = "weights.bin") -> np.ndarray:
    """Write a model with external data; returns its output on `X`."""
    made = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
    g (float[n,64] x) => (float[n,64] y) { h = MatMul(x, w)  y = Tanh(h) }""")
    weight = np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32) / 8
    made.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / location).parent.mkdir(exist_ok=True)
    onnx.save(made, path, save_as_external_data=True, location=location, size_threshold=100)
    return run(path)


def run(path: Path) -> np.ndarray:
    found: np.ndarray = ort.InferenceSession(path).run(None, {"x": X})[0]
    return found


def names(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and "session" not in path.name
    }


COMMANDS = [["convert", "--keep-io"], ["quantize", "--scheme", "weight_int8"], ["optimize"]]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("location", ["weights.bin", "m.onnx_data", "parts/w.bin"])
def test_old_data_files_are_removed(tmp_path: Path, command: list[str], location: str) -> None:
    model = tmp_path / "m.onnx"
    expected = write(model, location)
    done = CliRunner().invoke(app, [command[0], str(model), "-o", str(model), *command[1:]])
    assert done.exit_code == 0, done.output
    assert names(tmp_path) <= {"m.onnx", "m.onnx.data"}
    assert np.abs(run(model) - expected).max() < 0.05


@pytest.mark.parametrize("place", ["models/other.onnx", "above.onnx", "models/broken.onnx"])
def test_data_files_of_others_stay(tmp_path: Path, place: str) -> None:
    model, other = tmp_path / "models" / "m.onnx", tmp_path / place
    write(model)
    if "broken" in place:
        other.write_bytes(b"\x08no model")
    else:
        proto = onnx.load(model, load_external_data=False)
        location = str((model.parent / "weights.bin").relative_to(other.parent))
        for entry in proto.graph.initializer[0].external_data:
            entry.value = location if entry.key == "location" else entry.value
        other.write_bytes(proto.SerializeToString())
    ortfuse.convert(model, keep_io=True, output=model)
    assert (model.parent / "weights.bin").is_file()
    if "broken" not in place:
        run(other)


def test_a_result_with_another_name_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    expected = write(model)
    ortfuse.convert(model, keep_io=True, output=tmp_path / "h.onnx")
    assert names(tmp_path) == {"m.onnx", "weights.bin", "h.onnx"}
    assert np.array_equal(run(model), expected)


def test_a_failure_leaves_the_model_and_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "m.onnx"
    expected = write(model)

    def fail(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OutputError):
        ortfuse.convert(model, keep_io=True, output=model)
    monkeypatch.undo()
    assert names(tmp_path) == {"m.onnx", "weights.bin"}
    assert np.array_equal(run(model), expected)


def test_the_result_in_memory_can_still_be_used(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    write(model)
    done = ortfuse.convert(model, keep_io=True, output=model)
    ortfuse.save(done.model, tmp_path / "again.onnx")
    assert np.array_equal(run(tmp_path / "again.onnx"), run(model))
