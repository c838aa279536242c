"""Processes that are started import nothing from the current folder, and what they send back runs no code."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from ortfuse.errors import CrashError, TargetError
from ortfuse.io import python_subprocess
from ortfuse.io.load_and_save import load
from ortfuse.runtime import session_subprocess, worker
from ortfuse.runtime.decode_plain_data import of_plain_data
from ortfuse.runtime.memory_footprint import footprint
from ortfuse.runtime.worker import Worker
from ortfuse.targets import resolve_target

TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[n,600] x) => (float[n,600] y) { y = MatMul(x, w) }'
MODULES = (
    "onnxruntime",
    "numpy",
    "onnx",
    "onnx_ir",
    "scipy",
    "rich",
    "typer",
    "runtime",
    "platformdirs",
    "optuna",
    "ml_dtypes",
)


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that came with a model: whoever imports one of its modules leaves a file `ran`."""
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\nraise ImportError('planted')\n"
        )
    made = onnx.parser.parse_model(TEXT)
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((600, 600), np.float32), "w"))
    (tmp_path / "models").mkdir()
    onnx.save(made, tmp_path / "m.onnx")
    onnx.save(made, tmp_path / "models" / "m.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMANDS = {
    "sweep": "sweep models --no-bench",
    "bench": "bench m.onnx --rounds 1 --size n=2",
    "optimize": "optimize m.onnx -o r.onnx --verify",
}


@pytest.mark.parametrize("start", [["-P", "-m", "ortfuse"], ["-m", "ortfuse"]], ids=["command", "module"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_imports_from_the_current_folder(command: str, start: list[str], planted: Path) -> None:
    if command != "optimize" and start[0] == "-m":
        pytest.skip("one command says it for all")
    done = subprocess.run(
        [sys.executable, *start, *COMMANDS[command].split()], capture_output=True, text=True, check=False
    )
    assert not (planted / "ran").exists()
    assert done.returncode == 0, done.stderr


def test_what_measures_memory_imports_nothing_from_the_current_folder(planted: Path) -> None:
    assert footprint(load(planted / "m.onnx"), {"x": np.ones((1, 600), np.float32)}) > 0
    assert not (planted / "ran").exists()


def test_places_are_absolute_and_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", ".", "here", "/a", "/b:c", "/d"])
    assert python_subprocess.places() == ["/a", "/d"]
    assert python_subprocess.environment()["PYTHONPATH"] == f"/a{os.pathsep}/d"


def test_a_place_that_the_user_names_is_one_for_children_too(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (planted / "own").mkdir()
    (planted / "own" / "helper.py").write_text("print('found')\n")
    monkeypatch.syspath_prepend(planted / "own")
    (planted / "p.py").write_text("import helper, json\n")
    with python_subprocess.start([str(planted / "p.py")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"found\n"


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


@pytest.mark.parametrize(
    "content", [Evil(), [Evil()], np.array([Evil()], object), {"x": Evil()}, print, Path("x"), Worker]
)
def test_what_is_no_plain_data_is_not_made(content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EOFError):
        of_plain_data(pickle.dumps(content, 5))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x05.", b"garbage", b"\x80\x05K\x01", b"cos\nsystem\n(S'touch ran'\ntR."]
)
def test_damaged_bytes_are_an_end(content: bytes) -> None:
    with pytest.raises(EOFError):
        of_plain_data(content)


def test_arrays_of_every_kind_are_plain_data() -> None:
    arrays = [
        np.array(["a", "é"], object),
        np.array(["a"]),
        np.float32(1.5),
        np.zeros((0, 3)),
        np.array(3),
        np.arange(4)[::2],
        np.array([b"x"]),
    ]
    arrays += [
        np.ones(3, kind)
        for kind in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.complex64, bool, np.uint8)
    ]
    arrays += [np.ones(3, ">i4"), np.asfortranarray(np.ones((2, 3)))]
    for array in arrays:
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps((True, [{"a": [array]}, "text", 1, None]), 5, buffer_callback=buffers.append)
        found = of_plain_data(data, buffers=[bytearray(one.raw()) for one in buffers])[1][0]["a"][0]
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype


def test_a_process_that_answers_nonsense_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys\nsys.path.append({str(Path(session_subprocess.__file__).parent)!r})\nimport session_subprocess\nout = sys.stdout.buffer\n"
        "session_subprocess.send(out, None)\nsession_subprocess.receive(sys.stdin.buffer)\nimport pathlib\nsession_subprocess.send(out, pathlib.Path('x'))\n"
        "import time\ntime.sleep(600)\n"
    )
    monkeypatch.setattr(worker, "PROGRAM", program)
    monkeypatch.setattr(worker, "_PARTING", 0.1)
    one = Worker()
    with pytest.raises(CrashError):
        one.request("open", 1, (), "does something")


@pytest.mark.parametrize("name", ["cpu", "CPUExecutionProvider", "toy"])
def test_the_name_of_a_target_runs_no_folder_of_that_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise SystemExit('this code was run')")
    monkeypatch.chdir(tmp_path)
    if name == "toy":
        with pytest.raises(TargetError, match="has no kernels for 'toy'"):
            resolve_target(name)
    else:
        assert resolve_target(name).provider == "CPUExecutionProvider"
    with pytest.raises(SystemExit, match="this code was run"):
        resolve_target(f"./{name}")
