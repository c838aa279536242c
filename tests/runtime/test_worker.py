"""That a crash of the runtime is an answer, whoever asks: the process that dies is another one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from crashing import CRASHES, runtime_that
from small_graphs import model

from ortfuse.errors import CrashError, VerificationError
from ortfuse.io.load_and_save import load, save
from ortfuse.runtime import session as sessions
from ortfuse.runtime import worker
from ortfuse.runtime.session import Session
from ortfuse.runtime.worker import WORKER
from ortfuse.verification import verify

X = {"x": -np.ones((2, 3), np.float32)}


@pytest.fixture(autouse=True)
def fresh() -> None:
    WORKER.stop()


def test_a_model_that_really_crashes_the_installed_runtime() -> None:
    crashing = ir.from_onnx_text(CRASHES)
    Session(crashing, optimise=False)
    with pytest.raises(CrashError, match=r"crashes when it creates a session of the model .*SIGSEGV"):
        Session(crashing)


@pytest.mark.parametrize("when", ["load", "run"])
def test_the_death_of_the_worker_is_an_error_and_the_next_session_has_another(when: str) -> None:
    with runtime_that(when, "Softsign"):
        with pytest.raises(CrashError, match=f"signal {signal.SIGSEGV.value}, SIGSEGV"):
            Session(model("y = Softsign(x)")).run(X)
        assert Session(model("y = Relu(x)")).run(X)["y"].max() == 0


def test_sessions_that_were_open_when_another_one_crashed_go_on() -> None:
    with runtime_that("run", "Softsign"):
        relu = Session(model("y = Relu(x)"))
        with pytest.raises(CrashError):
            Session(model("y = Softsign(x)")).run(X)
        assert relu.run(X)["y"].max() == 0


def test_several_inputs_are_one_request_and_what_cannot_be_run_has_a_reason() -> None:
    session = Session(model("y = Relu(x)"))
    one, none, other = session.run_each([X, {"x": np.ones((2, 3), np.int64)}, {"x": np.ones((4, 3), np.float32)}])
    assert one["y"].max() == 0
    assert none.startswith("ONNX Runtime cannot execute the model: Unexpected input data type")
    assert other["y"].shape == (4, 3)


def test_each_of_several_inputs_on_which_the_runtime_crashes_has_a_reason() -> None:
    with runtime_that("run", "Softsign"):
        found = Session(model("y = Softsign(x)")).run_each([X, X])
        assert all("crashes when it executes the model" in reason for reason in found)


def test_a_process_that_is_killed_between_two_requests_is_replaced() -> None:
    relu = Session(model("y = Relu(x)"))
    process = WORKER._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert relu.run(X)["y"].max() == 0


def test_what_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with runtime_that("hang", "Softsign"):
        session = Session(model("y = Softsign(x)"))
        monkeypatch.setattr(worker, "LIMIT", 0.2)
        with pytest.raises(CrashError, match=r"hangs when it executes the model: no answer after 0 s"):
            session.run(X)


def test_a_fork_has_a_worker_of_its_own() -> None:
    relu = Session(model("y = Relu(x)"))
    pid = os.fork()
    if pid == 0:
        os._exit(0 if relu.run(X)["y"].max() == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert relu.run(X)["y"].max() == 0


def test_without_a_worker_sessions_run_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PROGRAM", Path("no such program"))
    assert Session(model("y = Relu(x)")).run(X)["y"].max() == 0
    assert WORKER._process is None


def test_weights_in_memory_that_are_too_large_to_copy_stay_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "LARGEST", 4)
    weighty = model("y = MatMul(x, w)", "float[n,32] x", "float[n,32] y", "<float w = {1.0}>")
    value = weighty.graph.initializers["w"]
    value.const_value, value.shape = ir.Tensor(np.eye(32, dtype=np.float32), name="w"), ir.Shape((32, 32))
    with runtime_that("load", "MatMul"):
        Session(weighty)


@pytest.mark.parametrize("external", [False, True])
def test_weights_in_a_file_are_read_there(tmp_path: Path, external: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    weighty = model("y = MatMul(x, w)", "float[n,256] x", "float[n,256] y", "<float w = {1.0}>")
    value = weighty.graph.initializers["w"]
    value.const_value, value.shape = ir.Tensor(weights, name="w"), ir.Shape((256, 256))
    path = tmp_path / "m.onnx"
    if external:
        ir.save(weighty, path, external_data="m.data", size_threshold_bytes=0)
    else:
        save(weighty, path)
    loaded = load(path)
    monkeypatch.setattr(sessions, "LARGEST", 4)
    with runtime_that("load", "MatMul"), pytest.raises(CrashError):
        Session(loaded)
    x = np.eye(256, dtype=np.float32)
    assert (Session(loaded).run({"x": x})["y"] == weights).all()
    path.write_bytes(b"another file")
    assert external or sessions._in_file(loaded.graph.initializers["w"].const_value) is None


def test_arrays_of_all_kinds_go_there_and_back() -> None:
    for kind in ("bfloat16", "float8e4m3fn", "float8e5m2", "float8e5m2fnuz"):
        text = f'<ir_version: 10, opset_import: ["": 21]> g ({kind}[n] x) => ({kind}[n] y) {{ y = Identity(x) }}'
        m = ir.from_onnx_text(text)
        array = np.arange(6).astype(ir.DataType[kind.upper()].numpy())[::2]
        found = Session(m).run({"x": array})["y"]
        assert found.dtype == array.dtype
        assert found.tolist() == [0, 2, 4]
    m = model("y = Identity(x)", "string[n] x", "string[n] y")
    assert Session(m).run({"x": np.array(["a", "b"], object)})["y"].tolist() == ["a", "b"]
    m = model("y = ConcatFromSequence<axis=0>(x)", "seq(float[n]) x", "float[m] y")
    assert Session(m).run({"x": [np.ones(2, np.float32), np.zeros(0, np.float32)]})["y"].tolist() == [1, 1]


def test_the_verdict_on_a_model_that_crashes_the_runtime_says_so() -> None:
    with runtime_that("load", "Pow"):
        verdict = verify(model("y = Mul(x, x)"), model("y = Pow(x, two)", initializers="<float two = {2.0}>"))
    assert not verdict.ok
    assert verdict.summary().startswith("ONNX Runtime crashes when it creates a session")
    assert all(trial.crashed for trial in verdict.trials)
    with runtime_that("run", "Mul"), pytest.raises(VerificationError, match="crashes when it executes the model"):
        verify(model("y = Mul(x, x)"), model("y = Mul(x, x)"))


def test_the_verdict_on_what_only_the_optimised_runtime_crashes_on() -> None:
    crashing = ir.from_onnx_text(CRASHES)
    verdict = verify(crashing, crashing.clone())
    assert verdict.only_optimised
    assert "is wrong on the original too" in verdict.notes[-1]


def test_the_process_ends_when_the_one_that_started_it_is_gone() -> None:
    started = f"subprocess.Popen([sys.executable, '-P', {str(worker.PROGRAM)!r}], stdout=subprocess.DEVNULL)"
    program = [
        sys.executable,
        "-c",
        f"import subprocess, sys, time, os; {started}; time.sleep(2); os.kill(os.getpid(), 9)",
    ]
    began = time.monotonic()
    with subprocess.Popen(program, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stderr is not None
        late = threading.Timer(30, process.stdin.close)  # its requests end, at which it ends in any case
        late.start()
        process.stderr.read()  # until nobody has it any more
        late.cancel()
    assert time.monotonic() - began < 30
