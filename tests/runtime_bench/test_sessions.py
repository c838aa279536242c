"""Sessions measured side by side (never how fast anything is)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortfuse
from ortfuse.errors import VerificationError
from ortfuse.runtime.bench import Candidate, measure_sessions
from ortfuse.runtime.session_settings import write_beside
from ortfuse.runtime.session_subprocess import Settings
from ortfuse.runtime.worker import Remote, Worker

TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }'
X = {"x": np.ones((2, 4), np.float32)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "a.onnx")
    return tmp_path / "a.onnx"


def test_each_session_has_a_process_of_its_own(path: Path) -> None:
    settings = {"intra_op_num_threads": 1, "session.set_denormal_as_zero": "1", "execution_mode": "parallel"}
    rows = measure_sessions({"plain": Candidate(path), "set": Candidate(path, settings)}, X, rounds=6)
    assert [row.name for row in rows] == ["plain", "set"]
    assert all(0 < row.median_ms <= row.p95_ms and row.session_ms > 0 for row in rows)
    assert all(row.peak_mb > 1 for row in rows)
    assert rows[0].speedup == 1.0
    assert rows[0].speedup_bounds is None
    assert rows[1].speedup_bounds is not None


def test_threads_spin_as_in_an_application(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    class Seen(Remote):
        def __init__(self, source: str, weights: Any, settings: Settings, worker: Worker) -> None:
            opened.append(settings)
            super().__init__(source, weights, settings, worker)

    monkeypatch.setattr("ortfuse.runtime.bench.session_timing.Remote", Seen)
    measure_sessions({"plain": Candidate(path)}, X, rounds=1)
    assert [settings.spinning for settings in opened] == [True]


def test_what_the_runtime_refuses_is_named(path: Path) -> None:
    with pytest.raises(VerificationError, match="set: Config key"):
        measure_sessions({"set": Candidate(path, {"session.disable_prepacking" * 99: "1"})}, X, rounds=1)


def test_a_benchmark_measures_stored_settings(path: Path, tmp_path: Path) -> None:
    write_beside(path, ortfuse.SessionConfig().with_({"enable_mem_reuse": False}))
    found = ortfuse.benchmark({"a": path}, rounds=1)
    assert [row.name for row in found.sessions] == ["a, the runtime's default", "a, its settings"]
    assert len(found.to_dict()["sessions"]) == 2


def test_a_result_with_settings_is_measured_without_them_too(path: Path, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "b.onnx")
    write_beside(tmp_path / "b.onnx", ortfuse.SessionConfig().with_({"enable_mem_reuse": False}))
    found = ortfuse.benchmark({"a": path, "b": tmp_path / "b.onnx"}, rounds=1)
    names = ["a, the runtime's default", "b, the runtime's default", "b, its settings"]
    assert [row.name for row in found.sessions] == names
