"""Many models in one go."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from crashing import runtime_that

import ortfuse
from ortfuse.cli.app import main
from ortfuse.errors import ModelFileError, OutputError
from ortfuse.report.documents.sweep import summary
from ortfuse.runtime import machine_lock
from ortfuse.runtime.bench import Latency
from ortfuse.sweeping import Row, find_models, measurement_lock
from ortfuse.sweeping.run_sweep import Processes, Sweep, in_process
from ortfuse.sweeping.sweep_one_model import _measured, run

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[2,8] x) => (float[2,8] y)
<float half = {0.5}, float one = {1}, float root = {1.4142135}> {
    d = Div(x, root) e = Erf(d) a = Add(e, one) h = Mul(x, a) y = Mul(h, half) }"""

ENDLESS = """<ir_version: 10, opset_import: ["": 21]> g (float[64] x) => (float[64] y) <bool go = {1}, int64 times = {1000000000000}> {
    y = Loop <body = b (int64 i, bool more, float[64] s) => (bool on, float[64] t) { on = Identity(more) t = Sin(s) }> (times, go, x) }"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "models"
    (place / "inner").mkdir(parents=True)
    onnx.save(onnx.parser.parse_model(TEXT), place / "a.onnx")
    onnx.save(onnx.parser.parse_model(TEXT.replace("0.5", "0.25")), place / "inner" / "a.onnx")
    (place / "broken.onnx").write_bytes(b"\x08\x0a\xff")
    return place


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are optimised in this process: what is tested is what a sweep makes of their rows."""

    def in_this_process(asked: Mapping[str, Any], limit: float, processes: Processes) -> Row:
        return run(**asked)

    monkeypatch.setattr("ortfuse.sweeping.run_sweep.in_process", in_this_process)


def test_models_are_found_in_folders_and_lists(folder: Path, tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text("# those that matter\nmodels/a.onnx\n\n")
    assert [path.name for path in find_models([folder])] == ["a.onnx", "broken.onnx", "a.onnx"]
    assert find_models([listed, folder / "a.onnx"]) == [folder / "a.onnx"]
    (tmp_path / "empty").mkdir()
    for place, text in ((tmp_path / "empty", "no model"), (tmp_path / "none", "no such file")):
        with pytest.raises(ModelFileError, match=text):
            find_models([place])
    (tmp_path / "binary.dat").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ModelFileError, match="neither a model"):
        find_models([tmp_path / "binary.dat"])


@pytest.mark.usefixtures("here")
def test_every_model_is_a_row_and_a_second_run_knows_them(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    seen: list[str] = []
    found = ortfuse.sweep(
        folder, output=out, jobs=2, measured=False, progress=lambda row, done, total: seen.append(row.status)
    )
    assert [row.status for row in found.rows] == ["ok", "refused", "ok"]
    assert not found.ok
    assert "broken.onnx" in found.rows[1].reason
    assert found.rows[0].nodes_before == 5
    assert found.rows[0].nodes_after < 5
    assert (out / "inner" / "a.onnx").is_file()
    assert sorted(seen) == ["ok", "ok", "refused"]
    with (out / "sweep.jsonl").open("a") as file:
        file.write('{"key": "cut o')  # the process was killed while it wrote
    again = ortfuse.sweep(folder, output=out, measured=False)
    assert again.resumed == 3
    assert again.rows == found.rows
    other = ortfuse.Options(passes="disabled")
    assert ortfuse.sweep(folder / "a.onnx", other, output=out, measured=False).resumed == 0


@pytest.mark.usefixtures("here")
def test_a_known_row_counts_only_while_its_result_is_there(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    for name in ("one.onnx", "same.onnx"):
        onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "models" / name)
    out, other = tmp_path / "models" / "out", tmp_path / "other"
    ortfuse.sweep(tmp_path / "models", output=out, measured=False)
    (out / "one.onnx").unlink()
    again = ortfuse.sweep(tmp_path / "models", output=out, measured=False)
    assert [Path(row.model).name for row in again.rows] == ["one.onnx", "same.onnx"]  # and no results of the first
    assert (out / "one.onnx").is_file()
    assert (
        ortfuse.sweep(tmp_path / "models" / "one.onnx", store=out / "sweep.jsonl", output=other, measured=False).resumed
        == 0
    )
    assert (other / "one.onnx").is_file()


@pytest.mark.usefixtures("here")
def test_other_weights_beside_a_model_are_another_model(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[2,8] x) => (float[2,8] y) { y = Mul(x, w) }"""
    out, place = tmp_path / "out", tmp_path / "models" / "m.onnx"
    place.parent.mkdir()
    for number, kept in ((0.5, 0), (0.5, 1), (0.25, 0)):
        model = onnx.parser.parse_model(text)
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.full((2, 8), number, np.float32), "w"))
        place.with_name("w.bin").unlink(missing_ok=True)
        onnx.save(model, place, save_as_external_data=True, location="w.bin", size_threshold=0)
        assert ortfuse.sweep(place, output=out, measured=False).resumed == kept
        result = onnx.load(out / "m.onnx").graph.initializer[0]
        assert onnx.numpy_helper.to_array(result, str(out)).flat[0] == number


@pytest.mark.usefixtures("here")
def test_missing_weights_that_are_there_again_are_taken(folder: Path, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(TEXT)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, folder / "a.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (folder / "w.bin").rename(tmp_path / "w.bin")
    statuses = []
    for back in (False, True):
        if back:
            (tmp_path / "w.bin").rename(folder / "w.bin")
        statuses.append(ortfuse.sweep(folder / "a.onnx", output=tmp_path / "out", measured=False).rows[0].status)
    assert statuses == ["refused", "ok"]


@pytest.mark.usefixtures("here")
def test_a_file_of_rules_that_has_changed_is_another_option(folder: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.py"
    kept = []
    for text in ("RULES = []\n", "RULES = []\n", "# other\nRULES = []\n"):
        rules.write_text(text)
        options = ortfuse.Options(patterns=str(rules))
        kept.append(ortfuse.sweep(folder / "a.onnx", options, output=tmp_path / "out", measured=False).resumed)
    assert kept == [0, 1, 0]


@pytest.mark.usefixtures("here")
def test_a_row_behind_one_that_was_cut_off_is_kept(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "rows.jsonl"
    store.write_bytes(b'{"key": "cut o\xff')
    kept = [ortfuse.sweep(folder / "a.onnx", store=store, measured=False).resumed for _ in range(2)]
    assert kept == [0, 1]


def test_who_interrupts_a_sweep_does_not_wait_for_the_rest(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun, program = tmp_path / "begun", tmp_path / "python"
    program.write_text(f"""#!/bin/sh\necho >> {begun}; sleep 0.5; echo '{{"model": "a", "status": "ok"}}'\n""")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    def interrupted(row: Row, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ortfuse.sweep(folder, measured=False, progress=interrupted)
    assert len(begun.read_text().splitlines()) < 3


def test_results_never_replace_the_models(folder: Path) -> None:
    before = (folder / "a.onnx").read_bytes()
    with pytest.raises(OutputError, match="give another folder"):
        ortfuse.sweep(folder, output=folder, measured=False)
    assert (folder / "a.onnx").read_bytes() == before


@pytest.mark.usefixtures("here")
def test_without_a_folder_no_row_names_a_file_that_is_gone(folder: Path) -> None:
    assert ortfuse.sweep(folder / "a.onnx", measured=False).rows[0].written == ""


def test_a_result_is_measured_beside_its_original(folder: Path, tmp_path: Path) -> None:
    row = run(str(folder / "a.onnx"), str(tmp_path / "b.onnx"), {"rounds": 6, "bench": True}, True)
    assert row.status == "ok"
    assert row.speedup > 0
    assert row.speedup_bounds is not None
    assert all(row.median_ms)
    assert Row.from_dict(json.loads(json.dumps(row.to_dict()))) == row


def test_a_process_that_dies_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "dies"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    row = in_process({"model": "m.onnx"}, 30)
    assert (row.model, row.status, row.reason) == ("m.onnx", "crashed", "ended by signal 9 (SIGKILL)")


def test_a_model_that_never_ends_is_a_row_and_nothing_of_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(onnx.parser.parse_model(ENDLESS), tmp_path / "endless.onnx")
    asked = {"model": str(tmp_path / "endless.onnx"), "output": str(tmp_path / "b.onnx"), "options": {}}
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    row = in_process({**asked, "measured": False}, 4)
    assert (row.status, row.reason) == ("hung", "not done after 4 s")
    assert not (tmp_path / "b.onnx").exists()
    assert not list(folder.iterdir())


def test_what_a_model_has_in_the_folder_for_temporary_files_is_removed_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "leaves"
    program.write_text(f"""#!{sys.executable}
import json, os, pathlib, sys
folder = pathlib.Path(json.load(sys.stdin)["temporary"])
(folder / "file").touch()
os.kill(os.getpid(), 9)
""")
    program.chmod(0o755)
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(sys, "executable", str(program))
    assert in_process({"model": "m.onnx"}, 30).status == "crashed"
    assert not list(folder.iterdir())


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no such signal")
def test_waiting_for_a_turn_takes_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_lock, "FOLDER", tmp_path)
    program = f"""
import sys, time
sys.path[:0] = {sys.path!r}
from pathlib import Path
from ortfuse.runtime import machine_lock
from ortfuse.sweeping import measurement_lock as turn
machine_lock.FOLDER = Path({str(tmp_path)!r})
turn.allow(0.5)
print("waits", flush=True)
with turn.working():
    print("works", flush=True)
    time.sleep(60)
"""
    with measurement_lock.measuring():
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        time.sleep(0.8)
        assert process.poll() is None
    assert process.communicate(timeout=30)[0] == "works\n"
    assert process.returncode == -signal.SIGALRM


def test_a_model_that_kills_its_process_costs_no_other_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "python"
    program.write_text(
        """#!/bin/sh\ncase "$(cat)" in *broken*) kill -SEGV $$;; *) echo '{"model": "a", "status": "ok"}';; esac\n"""
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    found = ortfuse.sweep(folder, jobs=2)
    assert [row.status for row in found.rows] == ["ok", "crashed", "ok"]
    assert found.rows[1].reason == "ended by signal 11 (SIGSEGV)" and found.rows[1].model.endswith("broken.onnx")


def test_a_model_on_which_the_runtime_dies_is_a_row_that_crashed(folder: Path, tmp_path: Path) -> None:
    with runtime_that("run", "Erf"):
        row = run(str(folder / "a.onnx"), str(tmp_path / "b.onnx"), {}, False)
    assert row.status == "crashed" and "SIGSEGV" in row.reason


def test_where_the_original_crashes_the_result_has_nothing_to_be_compared_with() -> None:
    good = Latency("result", 1.0, 1.0, 1.0, 0.0, 1.0, None, 1.0, 1, 1, 1.0)
    row = _measured(Row("m", "ok"), replace(good, crash="the runtime crashes"), good)
    assert (
        row.status == "ok" and row.median_ms == (0.0, 0.0) and row.reason.endswith("the original: the runtime crashes")
    )


def test_a_sweep_is_said_to_be_as_fast_as_its_models_are_beyond_noise() -> None:
    noise = Row("a", "ok", speedup=0.5, speedup_bounds=(0.2, 3.0))
    faster, fastest = (
        replace(noise, speedup=2.0, speedup_bounds=(1.9, 2.1)),
        replace(noise, speedup=8.0, speedup_bounds=(7.0, 9.0)),
    )
    said = (
        "3 of 3 models are ok; speedup 2.00 as the geometric mean, 2.00 to 8.00, no difference beyond noise for 1 of 3"
    )
    assert summary(Sweep([noise, faster, fastest], 0)) == said
    assert summary(Sweep([noise], 0)) == "1 of 1 models is ok; no difference beyond noise in speed"


def test_who_measures_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fcntl")
    monkeypatch.setattr(machine_lock, "FOLDER", tmp_path)
    events: list[str] = []

    def measure() -> None:
        with measurement_lock.measuring():
            events.append("measured")

    with measurement_lock.working(), measurement_lock.working():
        waiting = threading.Thread(target=measure)
        waiting.start()
        time.sleep(0.1)
        events.append("worked")
    waiting.join(10)
    assert events == ["worked", "measured"]


def test_the_command_prints_a_table_and_ends_with_1_if_one_is_not_ok(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(
            [
                "sweep",
                str(folder / "a.onnx"),
                str(folder / "broken.onnx"),
                "--no-bench",
                "--json",
                str(tmp_path / "s.json"),
                "--report",
                str(tmp_path / "s.html"),
            ]
        )
    assert end.value.code == 1
    assert "1 of 2 models is ok" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "s.json").read_text())["rows"]) == 2
    assert "broken.onnx" in (tmp_path / "s.html").read_text().replace("<wbr>", "")


def test_a_sweep_that_is_interrupted_ends_the_models_that_run_and_those_that_start(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(ENDLESS), tmp_path / "endless.onnx")
    asked = {"model": str(tmp_path / "endless.onnx"), "output": str(tmp_path / "o.onnx"), "options": {}}
    processes, rows = Processes(), list[Row]()

    def work() -> None:
        rows.append(in_process({**asked, "measured": False}, 600, processes))

    running = threading.Thread(target=work)
    running.start()
    while not processes._running:
        time.sleep(0.01)
    processes.end()
    running.join()
    work()
    assert [row.status for row in rows] == ["crashed", "crashed"]
    assert not processes._running
