"""How models are timed side by side."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from crashing import runtime_that

from ortfuse.quantization import site_times
from ortfuse.quantization.site_times import Stopwatch
from ortfuse.runtime.session import Session
from ortfuse.runtime.worker import WORKER

HEADER = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y)'


def test_what_is_much_slower_or_always_takes_as_long_is_not_run_often(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {0: 1.0, 1: 5.0, 2: 1.2, 3: 3.0, 4: 1.4}
    taken: dict[int, list[float]] = {number: [] for number in told}
    made: list[int] = []

    def seconds(session: object, runs: int) -> float:
        number = made.index(id(session)) if id(session) in made else len(made)
        made.extend([id(session)] if number == len(made) else [])
        later = 0.02 * len(taken[number]) if number == 2 else 0.0
        taken[number].append(told[number] + later)
        return taken[number][-1]

    monkeypatch.setattr(site_times, "_seconds", seconds)
    monkeypatch.setattr(site_times, "_repeats", lambda session: 1)
    monkeypatch.setattr(site_times, "LONGEST", float("inf"))  # however busy the machine is
    models = {name: ir.from_onnx_text(f"{HEADER} {{ y = {name}(x) }}") for name in ("Relu", "Sin", "Abs", "Cos", "Tan")}
    found = Stopwatch(1, 0).seconds(models, {"x": np.ones(3, np.float32)})
    assert found == pytest.approx({"Relu": 1.0, "Sin": 5.0, "Abs": 1.2, "Cos": 3.0, "Tan": 1.4})
    assert [len(one) for one in taken.values()] == [5, 3, site_times.ROUNDS, 3, 5]


def test_models_that_cannot_be_run_are_left_out() -> None:
    model = ir.from_onnx_text(f"{HEADER} {{ y = Relu(x) }}")
    assert Stopwatch(1, 0).seconds({"": model}, {"z": np.ones(3, np.float32)}) == {}


def test_a_model_that_crashes_the_runtime_is_left_out_and_the_others_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    models = {name: ir.from_onnx_text(f"{HEADER} {{ y = {name}(x) }}") for name in ("Relu", "Softsign", "Abs")}
    WORKER.stop()
    with runtime_that("run", "Softsign"):
        found = Stopwatch(1, 0).seconds(models, {"x": np.ones(3, np.float32)})
    assert sorted(found) == ["Abs", "Relu"]
    assert all(0 < seconds < 1 for seconds in found.values())


def test_every_model_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[object] = []

    class Counted(Session):
        def __init__(self, model: ir.Model, **options: int) -> None:
            loaded.append(model)
            super().__init__(model, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(site_times, "Session", Counted)
    model = ir.from_onnx_text(f"{HEADER} {{ y = Relu(x) }}")
    assert set(Stopwatch(1, 0).seconds({"": model, "other": model.clone()}, {"x": np.ones(3, np.float32)})) == {
        "",
        "other",
    }
    assert len(loaded) == 2


def test_what_others_are_compared_with_stays_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[object] = []

    class Counted(Session):
        def __init__(self, model: ir.Model, **options: int) -> None:
            loaded.append(model)
            super().__init__(model, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(site_times, "Session", Counted)
    plain, others = (
        ir.from_onnx_text(f"{HEADER} {{ y = Relu(x) }}"),
        [ir.from_onnx_text(f"{HEADER} {{ y = Abs(x) }}")] * 2,
    )
    clock, inputs = Stopwatch(1, 0), {"x": np.ones(3, np.float32)}
    clock.seconds({"": plain}, inputs)
    for other in others:
        assert set(clock.seconds({"": plain, "other": other}, inputs)) == {"", "other"}
    assert loaded == [plain, *others]


def test_as_much_memory_is_written_as_other_models_do_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CACHED", 100), ("_CHANGED", 1), ("ROUNDS", 2)):
        monkeypatch.setattr(site_times, name, value)
    models = {name: ir.from_onnx_text(f"{HEADER} {{ y = Relu(x) }}") for name in ("", "one", "other")}
    sizes = dict(zip(map(id, models.values()), (80, 50, 10), strict=True))
    monkeypatch.setattr(site_times, "weight_bytes", lambda model: sizes[id(model)])
    written: list[int] = []
    monkeypatch.setattr(Stopwatch, "_write", lambda self, size: written.append(size))
    Stopwatch(1, 101).seconds(models, {"x": np.ones(3, np.float32)})
    assert written == [100 - 60, 100 - 90, 100 - 130, 100 - 90, 100 - 130, 100 - 60], "of a cache of 100 bytes"
    clock = Stopwatch(1, 101)
    monkeypatch.undo()
    for size in (-30, 10, 40):
        clock._write(size)
    assert clock._other is not None
    assert [int((clock._other == n).sum()) for n in (1, 2)] == [30, 10]
