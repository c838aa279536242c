"""Settings of sessions that were measured: which are taken, where they are kept, and for which models they are recommended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import onnx
import pytest

import ortfuse
from ortfuse.runtime.bench import Candidate, SessionLatency
from ortfuse.runtime.session_settings import recommended, settings_cache, stored_config
from ortfuse.tuning.rule_costs.measure_session_settings import choices

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[n,4] x) => (float[n,4] y)
<float[4,4] w = {WEIGHTS}> { m = MatMul(x, w) y = Sin(m) }"""
BUYS: dict[str, float] = {"enable_mem_reuse": 1.2, "session.intra_op.allow_spinning": 1.1, "enable_mem_pattern": 0.7}
"""What is made up: the speedups of settings, which multiply."""


def saved(path: Path, first: float = 0.5, text: str = TEXT) -> Path:
    weights = ", ".join(str(first + 0.1 * number) for number in range(16))
    onnx.save(onnx.parser.parse_model(text.replace("WEIGHTS", weights)), path)
    return path


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setattr(settings_cache, "settings_file", lambda: tmp_path / "sessions.json")
    return tmp_path / "sessions.json"


class Meter:
    """Sessions are as fast as `BUYS` says, with a scatter of 2 %."""

    together = 1.0

    def __init__(self, baseline: Candidate, inputs: Any, threads: int, name: str) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def measure(self, candidates: Mapping[str, Candidate], rounds: int, **more: Any) -> list[SessionLatency]:
        (candidate,) = candidates.values()
        fast = 1.0
        for name in candidate.settings:
            fast *= BUYS.get(name, 1.0)
        fast *= self.together if len(candidate.settings) > 1 else 1.0
        row = SessionLatency("", 10 / fast, 12 / fast, fast, (0.98 * fast, 1.02 * fast), 5.0, 100.0)
        return [SessionLatency("before", 10, 12, 1.0, None, 5.0, 100.0), row]


class Rivals(Meter):
    """What pays alone does not pay together."""

    together = 0.8


def calibrated(path: Path, file: Path, meter: Any = Meter) -> ortfuse.SessionConfig:
    return ortfuse.calibrate_session(path, file=file, meter=meter).session


def test_what_pays_is_taken_together_and_kept_with_what_was_measured(tmp_path: Path, file: Path) -> None:
    path = saved(tmp_path / "a.onnx")
    found = calibrated(path, file)
    assert found.values() == {"enable_mem_reuse": False, "session.intra_op.allow_spinning": "0"}
    reason = next(iter(found)).reason
    assert reason.startswith("measured on this machine with n=")
    assert "1.20 times as fast by itself, all together 1.32 times as fast (1.29 to 1.35)" in reason
    assert stored_config(path) == found


def test_models_of_the_same_structure_are_recommended_the_same(tmp_path: Path, file: Path) -> None:
    found = calibrated(saved(tmp_path / "a.onnx"), file)
    retrained = ortfuse.load(saved(tmp_path / "b.onnx", first=0.7))
    assert recommended(retrained) == found
    result = ortfuse.optimize(saved(tmp_path / "c.onnx", first=0.9), output=tmp_path / "d.onnx")
    assert result.session == found == stored_config(tmp_path / "d.onnx")
    wider = (
        TEXT.replace("float[n,4] x", "float[n,2] x").replace("float[n,4] y", "float[n,8] y").replace("[4,4]", "[2,8]")
    )
    others = (TEXT.replace("Sin", "Cos"), wider)
    for number, text in enumerate(others):
        assert not len(recommended(ortfuse.load(saved(tmp_path / f"{number}.onnx", text=text))))


def test_the_best_alone_is_taken_where_they_do_not_add_up(tmp_path: Path, file: Path) -> None:
    found = calibrated(saved(tmp_path / "a.onnx"), file, Rivals)
    assert found.values() == {"enable_mem_reuse": False}
    assert "1.20 times as fast (1.18 to 1.22)" in next(iter(found)).reason


def test_nothing_is_recommended_where_nothing_pays(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrated(saved(tmp_path / "a.onnx"), file)
    monkeypatch.setattr(f"{__name__}.BUYS", {"enable_mem_reuse": 1.02})
    assert not len(calibrated(tmp_path / "a.onnx", file)), "the whole interval has to be above 1.01"
    assert not len(recommended(ortfuse.load(tmp_path / "a.onnx"))), "the last measurement counts"


def test_optimisers_of_the_runtime_are_tried_where_they_have_something_to_do(tmp_path: Path) -> None:
    left_out = {
        one
        for found in choices(ortfuse.load(saved(tmp_path / "a.onnx")))
        for one in found.get("disabled_optimizers", ())
    }
    assert left_out == {"MatMulAddFusion"}


def test_a_damaged_file_is_passed_over(tmp_path: Path, file: Path) -> None:
    path = saved(tmp_path / "a.onnx")
    calibrated(path, file)
    text = file.read_text()
    for damage in (
        "{",
        text.replace("enable_mem_reuse", "enable_mem_reus"),
        text.replace('"threads": 0', '"threads": []'),
    ):
        file.write_text(damage)
        assert not len(recommended(ortfuse.load(path)))
