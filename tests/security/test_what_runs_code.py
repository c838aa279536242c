"""Code runs if the user names the file that holds or names it, and not because it lies beside a model or a model names it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import ortfuse
from ortfuse.cli.app import main
from ortfuse.errors import OrtfuseError

TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[n,4] x) => (float[n,4] y) { y = Relu(x) }'
NAMES = (
    "m.onnx.options.toml",
    "options.toml",
    "ortfuse.toml",
    "models.toml",
    "m.toml",
    ".ortfuse.toml",
    "r.onnx.options.toml",
)
CODE = 'open("ran", "w").close()\nRULES = []\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that came with a model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    onnx.save(onnx.parser.parse_model(TEXT), "m.onnx")
    for name in ("patterns", "rules", "lists", "in"):
        Path(name).mkdir()
    for name in ("evil.py", "m.py", "patterns/evil.py", "rules/evil.py", "conftest.py", "sitecustomize.py", "in/x.py"):
        Path(name).write_text(CODE)
    Path("evil.so").write_bytes(b"\x7fELF")
    options = 'patterns = ["evil.py"]\ncustom_ops = ["evil.so"]\nmetric = "evil.py:error"\n'
    for name in NAMES:
        Path(name).write_text(options)
    np.savez("in/x.npz", x=np.ones((2, 4), np.float32))


@pytest.mark.parametrize(
    "command",
    [
        "optimize m.onnx -o r.onnx --verify --inputs in",
        "verify m.onnx m.onnx",
        "bench m.onnx --rounds 1",
        "passes",
        "explain m.onnx",
    ],
)
def test_no_command_runs_what_lies_beside_a_model(command: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(command.split())
    assert end.value.code == 0
    assert not Path("ran").exists()


@pytest.mark.parametrize("domain", ["evil", "evil.py", "./evil.so", "/evil.so", "file://evil.so", "os"])
def test_a_domain_is_no_module_and_no_library(domain: str) -> None:
    made = onnx.parser.parse_model(TEXT)
    made.graph.node.insert(0, helper.make_node("run", ["x"], ["z"], domain=domain))
    made.graph.node[1].input[0] = "z"
    made.opset_import.append(helper.make_opsetid(domain, 1))
    for action in (lambda: ortfuse.optimize(made, output="r.onnx"), lambda: ortfuse.verify(made, made)):
        try:
            action()
        except OrtfuseError:
            continue
    assert not Path("ran").exists()


@pytest.mark.parametrize("key", ["patterns", "custom_ops", "rules", "lists", "output", "import"])
def test_a_pass_list_names_passes_alone(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("lists/mine.toml").write_text(f'description = "mine"\nreason = "mine"\npasses = ["dce"]\n{key} = "evil.py"\n')
    with pytest.raises(SystemExit) as end:
        main(["optimize", "m.onnx", "--lists", "lists", "--passes", "mine"])
    assert end.value.code == 2
    assert f"has no '{key}'" in capsys.readouterr().err
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", ["evil.py", "./evil.py", "evil:error", "fuse.evil", "../evil", "patterns/evil.py"])
def test_a_pass_is_no_file(name: str) -> None:
    with pytest.raises(OrtfuseError):
        ortfuse.optimize("m.onnx", passes=name)
    assert not Path("ran").exists()


def test_a_stored_report_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.json").write_text(
        json.dumps({"schema": "ortfuse.verify/1", "metric": "evil.py:error", "patterns": ["evil.py"]})
    )
    with pytest.raises(SystemExit) as end:
        main(["verify", "m.onnx", "m.onnx", "--check", "s.json"])
    assert end.value.code in (0, 2, 3)
    assert not Path("ran").exists()


def test_a_file_that_the_user_names_runs() -> None:
    with pytest.raises(SystemExit):
        main(["optimize", "m.onnx", "--patterns", "evil.py"])
    assert Path("ran").exists()
