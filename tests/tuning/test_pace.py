"""Keeping to the budget, on a clock that only the fake measurements move."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import onnx
import pytest
from test_tune import TEXT

import ortfuse
from ortfuse.errors import OrtfuseError
from ortfuse.runtime.bench import Candidate, SessionLatency
from ortfuse.runtime.bench.session_timing import turn_seconds
from ortfuse.tuning import Point
from ortfuse.tuning.estimate_step_durations import Pace


class Clock:
    """Time that passes when something takes it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Machine:
    """Makes meters that take time: so many seconds for each session and each run, however fast the model is."""

    def __init__(self, clock: Clock, opening: float, run: float) -> None:
        self.clock, self.opening, self.run = clock, opening, run
        self.rounds: list[int] = []

    def __call__(self, baseline: Candidate, inputs: Any, threads: int, name: str) -> Machine:
        self.open = False
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def measure(
        self, candidates: Mapping[str, Candidate], rounds: int, *, enough: Any = None, check: Any = None
    ) -> list[SessionLatency]:
        self.clock.now += self.opening * (len(candidates) + (not self.open))
        self.open = True
        speedups: dict[str, list[float]] = {name: [] for name in candidates}
        left = list(candidates)
        done = 0
        while left and done < rounds:
            self.clock.now += self.run * (1 + len(left))
            done += 1
            for name in left:
                speedups[name].append(1.5)
            gone = enough({name: speedups[name] for name in left}) if enough is not None else ()
            left = [name for name in left if name not in gone]
        self.rounds.append(done)
        latency = 1e3 * self.run
        return [
            SessionLatency("", 1.5 * latency, 2 * latency, 1.0, None, 5.0, 100.0),
            *(SessionLatency(name, latency, 2 * latency, 1.5, None, 5.0, 100.0) for name in candidates),
        ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "a.onnx")
    return tmp_path / "a.onnx"


@pytest.mark.parametrize(
    ("opening", "run", "budget"), [(0.4, 0.03, 20), (0.4, 0.03, 120), (2.0, 0.2, 60), (2.0, 0.2, 120), (6.0, 1.0, 240)]
)
def test_the_whole_search_takes_its_budget(path: Path, opening: float, run: float, budget: float) -> None:
    clock = Clock()
    machine = Machine(clock, opening, run)
    tuned = ortfuse.tune(path, budget=budget, meter=machine, clock=clock, began=clock.now - 0.1 * budget)
    spent = clock.now - 1000 + 0.1 * budget
    assert tuned.outcome.seconds == pytest.approx(spent)
    assert 0.75 * budget < spent <= 1.1 * budget
    assert len(tuned.outcome.trials) > 2
    assert not any("instead of" in note for note in tuned.outcome.notes)


def test_what_one_model_takes_at_least_is_told_where_it_is_more_than_the_budget(path: Path) -> None:
    clock = Clock()
    machine = Machine(clock, 3.0, 0.5)
    tuned = ortfuse.tune(path, budget=5, meter=machine, clock=clock)
    assert len(tuned.outcome.trials) == 1
    assert len(machine.rounds) == 2, "one trial, and that once more"
    assert machine.rounds[1] == 3, "the fewest"
    spent = clock.now - 1000
    (note,) = [note for note in tuned.outcome.notes if "instead of" in note]
    assert f"the search took {spent:.0f} s instead of 5 s" in note
    assert f"takes {spent:.1f} s here, which is the least" in note


def test_the_final_measurements_have_as_many_rounds_as_there_is_time_for(path: Path) -> None:
    rounds = []
    for budget in (40.0, 400.0):
        clock = Clock()
        machine = Machine(clock, 1.0, 0.2)
        ortfuse.tune(path, budget=budget, meter=machine, clock=clock, trials=3)
        rounds.append(machine.rounds[-1])
    assert 6 <= rounds[0] < rounds[1] <= 90


def test_lower_precision_is_not_looked_for_where_there_is_no_time_for_the_least(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def quantized(*models: Any, **more: Any) -> Any:
        asked.append(more["budget"])
        raise OrtfuseError("nothing is faster")

    monkeypatch.setattr("ortfuse.tuning.model_variants.quantize", quantized)
    limits = ortfuse.Constraints(max_error=0.1)

    def notes(budget: float) -> str:
        clock = Clock()
        tuned = ortfuse.tune(
            path, budget=budget, meter=Machine(clock, 1.0, 0.2), clock=clock, constraints=limits, trials=6
        )
        return " ".join(tuned.outcome.notes)

    assert "quantized; the search for lower precision takes 30 s at least" in notes(40)
    assert not asked
    assert "quantized" not in notes(120)
    assert len(asked) == 1 and 30 < asked[0] <= 72


def test_times_are_learnt_from_what_measurements_took_and_kept() -> None:
    clock = Clock()
    pace = Pace(60, clock)
    point = Point(0, {}, speedup=2.0, median_ms=100.0)
    expected = turn_seconds(0.2) + turn_seconds(0.1)
    assert pace.round([point]) == pytest.approx(expected)
    watch = pace.watch(None, 3, 1.0)
    clock.now += 4 + 2 * expected
    ended = []
    for _ in range(4):
        ended.append(bool(watch({"": [2.0]})))
        clock.now += 2 * expected
    assert ended == [False, False, True, True], "the second is over, but not before three rounds"
    pace.learn(watch, 2, [point])
    pace.tried(7.0)
    again = Pace(60, clock)
    again.restore(pace.to_dict())
    for one in (pace, again):
        assert one.round([point]) == pytest.approx(2 * expected)
        assert one.opening([point], 1) == pytest.approx(4)
        assert one.trial == 7.0
        assert one.run == pytest.approx(0.2)
