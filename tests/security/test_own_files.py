"""No file that a command writes may be one that it reads, or that it writes under another name."""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import platformdirs
import pytest

import ortfuse
from ortfuse.cli.app import main
from ortfuse.io.list_external_data_files import locations

TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[n,600] x) => (float[n,600] y) { y = Add(x, w) }'

REPORTS: dict[str, tuple[list[str], list[str]]] = {
    "optimize": (["m.onnx"], ["--json", "--report"]),
    "quantize": (["m.onnx", "--max-error", "0.1"], ["--json", "--report", "--curve", "--store"]),
    "convert": (["m.onnx"], ["--json"]),
    "tune": (["m.onnx"], ["--json", "--report", "--study"]),
    "substitute": (["m.onnx", "--find", "other/m.onnx", "--replace", "other/m.onnx"], ["--json"]),
    "verify": (["other/m.onnx", "m.onnx"], ["--json"]),
    "diff": (["other/m.onnx", "m.onnx"], ["--report"]),
    "bisect": (["m.onnx"], ["--json"]),
    "explain": (["m.onnx"], ["--json"]),
    "inspect": (["m.onnx"], ["--json"]),
    "bench": (["other/m.onnx", "m.onnx"], ["--json", "--report"]),
    "profile": (["m.onnx"], ["--json", "--report", "--csv", "--png"]),
    "calibrate": (["--session", "m.onnx"], ["--json"]),
    "sweep": ([".", "-o", "out"], ["--json", "--report", "--store"]),
    "test-rules": (["rules"], ["--json"]),
}
"""The commands that write, with the arguments that they need and the options that name files to write."""

MAKING = ("optimize", "quantize", "convert", "tune", "substitute")
OF_MODELS = sorted(set(REPORTS) - {"test-rules"})


def model() -> onnx.ModelProto:
    made = onnx.parser.parse_model(TEXT)
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(600, dtype=np.float32), "w"))
    return made


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with models that have external weights, and everything that a command may read."""
    for name in ("other", "in", "rules", "lists", "links"):
        (tmp_path / name).mkdir()
    for place in (tmp_path, tmp_path / "other"):
        onnx.save(model(), place / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    np.savez(tmp_path / "in" / "a.npz", x=np.zeros((2, 600), np.float32))
    (tmp_path / "m.onnx.session.json").write_text('{"schema": 1, "settings": []}')
    (tmp_path / "rules" / "mine.py").write_text("RULES = []\n")
    (tmp_path / "lists" / "mine.toml").write_text('passes = ["dce"]\n')
    (tmp_path / "o.toml").write_text("seed = 1\n")
    (tmp_path / "old.json").write_text("{}")
    (tmp_path / "links" / "symbolic").symlink_to("../w.bin")
    os.link(tmp_path / "w.bin", tmp_path / "links" / "hard")
    (tmp_path / "links" / "folder").symlink_to("..")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def contents() -> dict[Path, bytes]:
    found = (path for path in Path().rglob("*") if path.is_file() and path.parts[0] != "cache")
    return {path: path.read_bytes() for path in found}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line that refuses a command; nothing was touched."""
    before = contents()
    with pytest.raises(SystemExit) as end:
        main(arguments)
    said = capsys.readouterr()
    assert end.value.code == 2, said
    (line,) = said.err.strip().splitlines()
    assert contents() == before
    return line


CASES = [(command, option) for command, (_, options) in REPORTS.items() for option in options]
WEIGHTS = ["w.bin", "other/../w.bin", "links/symbolic", "links/hard", "links/folder/w.bin"]


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize(("command", "option"), [case for case in CASES if case[0] in OF_MODELS])
def test_no_report_replaces_weights(command: str, option: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if option == "--curve":
        onnx.save(model(), "m.onnx", save_as_external_data=True, location="w.csv", size_threshold=0)
        name = "w.csv"
    said = refused(capsys, command, *REPORTS[command][0], option, name)
    assert f"'{option}': {name} is a file with weights of " in said


@pytest.mark.parametrize("option", ["--json", "--report", "--study"])
@pytest.mark.parametrize("name", ["m.onnx", "m.onnx.session.json", "r.onnx", "r.onnx.data", "R.onnx.DATA", "r.onnx.data.1", "r.onnx.session.json",
                                  "r.onnx.options.toml", "links/folder/r.onnx.data", "new/w.bin", "o.toml", "in/a.npz", "rules/mine.py"])  # fmt: skip
def test_no_report_replaces_what_is_read_or_written(name: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("new").mkdir()
    result = "new/r.onnx" if name.startswith("new") else "r.onnx"
    inputs = ["--inputs", "in", "--patterns", "rules", "--config", "o.toml", "-o", result]
    assert " too; write two names" in refused(capsys, "tune", "m.onnx", *inputs, option, name)


@pytest.mark.parametrize("command", MAKING)
@pytest.mark.parametrize("name", ["w.bin", "links/symbolic", "other/w.bin", "m.onnx.session.json"])
def test_no_result_replaces_weights(command: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "other/w.bin" and command != "substitute":
        pytest.skip("that model is not read")
    refused(capsys, command, *REPORTS[command][0], "-o", name)


@pytest.mark.parametrize(("given", "result"), [("o.toml", "o.toml"), ("in/a.npz", "in/a.npz"), ("in", "in/a.npz"), ("rules", "rules/mine.py"),
                                               ("lists", "lists/mine.toml"), ("old.json", "old.json"), ("r.onnx.session.json", "r.onnx"),
                                               ("r.onnx.data", "r.onnx")])  # fmt: skip
def test_no_result_and_no_file_beside_it_replaces_what_is_read(
    given: str, result: str, capsys: pytest.CaptureFixture[str]
) -> None:
    option = {"o": "--config", "i": "--inputs", "r": "--patterns", "l": "--lists"}[given[0]]
    option = {"old.json": "--check", "r.onnx.session.json": "--check", "r.onnx.data": "--inputs"}.get(given, option)
    if not Path(given).exists():
        Path(given).write_text("{}")
    assert "write " in refused(capsys, "optimize", "m.onnx", option, given, "-o", result)


def test_a_file_of_options_counts_like_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("o.toml").write_text('output = "r.onnx"\ninputs = "in"\npatterns = ["rules"]\ntarget = "old.json"\n')
    for name in ("r.onnx", "r.onnx.data", "in/a.npz", "rules/mine.py", "old.json"):
        assert "write two names" in refused(capsys, "optimize", "m.onnx", "--config", "o.toml", "--json", name)
    Path("o.toml").write_text('output = "w.bin"\n')
    assert "weights of MODEL" in refused(capsys, "optimize", "m.onnx", "--config", "o.toml")
    assert "write two names" in refused(
        capsys, "optimize", "m.onnx", "--passes", "lists/mine.toml", "--json", "lists/mine.toml"
    )


@pytest.mark.parametrize("option", ["--json", "--report", "--store"])
@pytest.mark.parametrize("name", ["m.onnx", "other/w.bin", "out/other/m.onnx", "out/m.onnx.data", "out/other/w.bin", "out/sweep.jsonl", "models.txt"])  # fmt: skip
def test_no_report_of_a_sweep_replaces_models_or_results(
    name: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("models.txt").write_text("m.onnx\nother/m.onnx\n")
    if (name, option) == ("out/sweep.jsonl", "--store"):
        return
    assert "write two names" in refused(capsys, "sweep", "models.txt", "-o", "out", option, name)


def test_no_report_replaces_a_counterexample(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--counterexamples" in refused(capsys, "test-rules", "rules", "--json", "counterexamples/x.onnx")


@pytest.mark.parametrize(("command", "option"), CASES)
def test_no_report_is_written_into_the_cache(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = str(Path(platformdirs.user_cache_dir("ortfuse")) / "calibration.json")
    assert "the cache of ortfuse" in refused(capsys, command, *REPORTS[command][0], option, name)


def test_two_new_files_differ_in_more_than_case_and_form(capsys: pytest.CaptureFixture[str]) -> None:
    composed, decomposed = (unicodedata.normalize(form, "é.json") for form in ("NFC", "NFD"))
    for one, other in (("a.json", "A.JSON"), (composed, decomposed)):
        assert "--json too" in refused(capsys, "optimize", "m.onnx", "--json", one, "--report", other)


def test_a_file_of_a_database_is_no_report(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("s", "s-journal", "s-wal"):
        assert "--store too" in refused(
            capsys, "quantize", "m.onnx", "--max-error", "0.1", "--json", name, "--store", "s"
        )


def runs(*arguments: str) -> None:
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--no-load"])
    assert end.value.code == 0


def test_the_result_may_replace_its_model_and_its_own_files() -> None:
    runs("optimize", "m.onnx", "-o", "r.onnx", "--link", "--json", "r.json")
    runs("optimize", "m.onnx", "-o", "r.onnx", "--json", "r.json", "--no-bench")
    assert Path("r.onnx.data").samefile("w.bin") is False
    runs("optimize", "r.onnx", "-o", "r.onnx", "--json", "r.json")
    os.link("m.onnx", "same.onnx")
    runs("optimize", "m.onnx", "-o", "same.onnx")
    runs("optimize", "m.onnx", "-o", "m.onnx")
    assert ortfuse.verify("m.onnx", "r.onnx").ok


def test_reports_may_lie_among_inputs_and_results() -> None:
    for _ in range(2):
        runs("optimize", "m.onnx", "-o", "r.onnx", "--inputs", "in", "--verify", "--json", "in/report.json")


def test_data_of_somebody_else_with_the_name_of_a_result_stay() -> None:
    """The result takes the next name; before, the weights of a model that is not part of the command were lost."""
    onnx.save(model(), "s.onnx", save_as_external_data=True, location="r.onnx.data", size_threshold=0)
    Path("r.onnx.data.2").write_text("mine")
    expected = Path("r.onnx.data").read_bytes()
    for _ in range(2):
        runs("optimize", "m.onnx", "-o", "r.onnx")
        assert locations("r.onnx") == ["r.onnx.data.1"]
        assert Path("r.onnx.data").read_bytes() == expected
        assert Path("r.onnx.data.2").read_text() == "mine"
    runs("optimize", "r.onnx", "-o", "r.onnx")
    assert locations("r.onnx") == ["r.onnx.data.1"]


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b""), lambda path: path.write_text("no model"),
                                    lambda path: (path.unlink(), os.mkfifo(path)), lambda path: (path.unlink(), path.symlink_to(path.name))])  # fmt: skip
def test_a_model_that_cannot_be_read_is_said_to_be_so(
    damage: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    damage(Path("m.onnx"))
    with pytest.raises(SystemExit) as end:
        main(["optimize", "m.onnx", "-o", "r.onnx", "--json", "r.json"])
    assert end.value.code == 2
    assert "m.onnx" in capsys.readouterr().err
    assert not Path("r.json").exists()


def test_what_is_stored_for_a_check_and_is_damaged_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    good = json.dumps({"schema": "ortfuse.bench/2", "versions": {}, "latency": []})
    for text in (
        "{}",
        "[]",
        good.replace("[]", "3"),
        good.replace("[]", '[{"name": 1}]'),
        good.replace("{}", "[]"),
        "[" * 9999,
    ):
        Path("old.json").write_text(text)
        assert "--check" in refused(capsys, "bench", "m.onnx", "--rounds", "1", "--check", "old.json")
