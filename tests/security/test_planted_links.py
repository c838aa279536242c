"""Links in a folder that came with a model: files that the user did not name are never written through them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from rule_files import HEAD

import ortfuse
from ortfuse.cli.app import main
from ortfuse.errors import OutputError
from ortfuse.io.atomic_write import write_bytes, write_text
from ortfuse.runtime.session_settings import SessionConfig, Setting, write_beside

TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[n,4] x) => (float[n,4] y) { y = Add(x, w) }'


def model(**more: Any) -> onnx.ModelProto:
    made = onnx.parser.parse_model(TEXT.replace("n,4", "n,400"))
    made.graph.initializer.append(numpy_helper.from_array(np.ones(400, np.float32), "w"))
    return made


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the user's, outside of the folder that came with a model."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    onnx.save(model(), "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "profile").write_text("mine")
    return tmp_path / "profile"


def test_settings_beside_a_model_replace_a_link(mine: Path) -> None:
    Path("r.onnx.session.json").symlink_to(mine)
    config = SessionConfig((Setting("enable_mem_reuse", False),))
    write_beside("r.onnx", config)
    assert mine.read_text() == "mine"
    assert not Path("r.onnx.session.json").is_symlink()
    Path("s.onnx.session.json").symlink_to("../new")
    write_beside("s.onnx", SessionConfig())
    assert not Path("../new").exists()


@pytest.mark.parametrize("ending", [".data", ".session.json"])
def test_a_result_writes_through_no_link_beside_it(ending: str, mine: Path) -> None:
    Path(f"r.onnx{ending}").symlink_to(mine)
    ortfuse.optimize("m.onnx", output="r.onnx", loaded=False)
    assert mine.read_text() == "mine"
    assert ortfuse.verify("m.onnx", "r.onnx").ok


@pytest.mark.parametrize("name", ["sweep.jsonl", "m.onnx"])
def test_a_sweep_writes_through_no_link_in_its_folder(name: str, mine: Path) -> None:
    Path("out").mkdir()
    Path("out", name).symlink_to(mine)
    with pytest.raises(OutputError, match="is a symbolic link"):
        ortfuse.sweep("m.onnx", output="out", measured=False)
    assert mine.read_text() == "mine"


def test_a_study_beside_a_result_is_no_link(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    for target in (mine, Path("../new")):
        Path("r.onnx.tune.sqlite").unlink(missing_ok=True)
        Path("r.onnx.tune.sqlite").symlink_to(target)
        with pytest.raises(SystemExit) as end:
            main(["tune", "m.onnx", "-o", "r.onnx", "--budget", "1s"])
        assert end.value.code == 2
        assert "is a symbolic link" in capsys.readouterr().err
    assert mine.read_text() == "mine"
    assert not Path("../new").exists()


def left_alone(location: str) -> None:
    """A model that no graph can represent, whose external data stand under a name."""
    made = onnx.load("m.onnx", load_external_data=False)
    for entry in made.graph.initializer[0].external_data:
        entry.value = location if entry.key == "location" else entry.value
    for number in (1, 2):
        made.graph.initializer.append(numpy_helper.from_array(np.array([number], np.float32), "d"))
    made.graph.node.append(helper.make_node("Add", ["y", "d"], ["z"]))
    made.graph.output[0].name = "z"
    onnx.save(made, "left.onnx")


@pytest.mark.parametrize("location", ["../here/w.bin", "sub/../w.bin", "sub/w.bin", "linked/w.bin", "link"])
def test_what_is_copied_with_a_model_stays_in_the_folder_of_the_result(location: str, mine: Path) -> None:
    Path("sub").mkdir()
    Path("sub", "w.bin").write_bytes(Path("w.bin").read_bytes())
    Path("linked").symlink_to("sub")
    Path("link").symlink_to("w.bin")
    left_alone(location)
    Path("out").mkdir()
    Path("out", "linked").symlink_to(mine.parent)
    Path("out", "link").symlink_to(mine.parent / "new")
    before = sorted(mine.parent.iterdir())
    if location == "sub/w.bin":
        assert ortfuse.optimize("left.onnx", output="out/r.onnx").unchanged
        assert Path("out/sub/w.bin").read_bytes() == Path("w.bin").read_bytes()
    else:
        with pytest.raises(ortfuse.OrtfuseError):
            ortfuse.optimize("left.onnx", output="out/r.onnx")
        assert not Path("out/r.onnx").exists()
    assert sorted(mine.parent.iterdir()) == before
    assert mine.read_text() == "mine"


def test_a_counterexample_is_written_through_no_link(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(HEAD + "RULES = [rule('mine.wrong', op.Abs(x), x)]\n")
    Path("counterexamples").mkdir()
    Path("counterexamples/mine.wrong.onnx").symlink_to(mine)
    with pytest.raises(SystemExit) as end:
        main(["test-rules", "mine.py"])
    said = capsys.readouterr()
    assert end.value.code == 2, said
    assert "is a symbolic link" in said.err, said
    assert mine.read_text() == "mine"


def test_a_link_that_the_user_names_is_followed(mine: Path) -> None:
    Path("named.json").symlink_to(mine)
    write_text(Path("named.json"), "{}")
    assert mine.read_text() == "{}"
    write_bytes(Path("named.json"), b"[]", follow=False)
    assert mine.read_text() == "{}"
    assert Path("named.json").read_text() == "[]"


def test_nothing_but_a_file_is_replaced(tmp_path: Path) -> None:
    import os

    os.mkfifo("pipe")
    Path("link").symlink_to("pipe")
    Path("folder").mkdir()
    for name in ("pipe", "link", "folder"):
        with pytest.raises(OutputError, match="a folder, a device or a pipe"):
            write_bytes(Path(name), b"")
    assert sorted(path.name for path in Path().iterdir()) == ["folder", "link", "m.onnx", "pipe", "w.bin"]
