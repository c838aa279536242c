"""The search: what it tries, what it keeps, and what it takes. Nothing here is measured."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ortfuse.errors import OutputError
from ortfuse.runtime import machine_lock
from ortfuse.tuning import Choice, Constraints, Point, Space, Study
from ortfuse.tuning.study import no_other_search

SPACE = Space.of(
    ["all", "basic", "original"],
    forced={"gelu": ["com.microsoft.FastGelu", "none"]},
    providers=["CPUExecutionProvider"],
    threads=2,
    processors=4,
    denormals=True,
    settings={"session.set_denormal_as_zero": "1"},
)


def speed(choice: Choice) -> float:
    """A landscape in which two settings help only together."""
    found = {"all": 1.2, "basic": 1.0, "original": 0.9}[str(choice["model"])]
    found *= 1.3 if choice["session.set_denormal_as_zero"] == "1" else 1.0
    both = not choice["enable_mem_reuse"] and choice["session.intra_op.allow_spinning"] == "0"
    return found * (1.4 if both else 1.0) * (0.7 if choice["execution_mode"] == "parallel" else 1.0)


def measured(number: int, choice: Choice, earlier: Sequence[Point] = ()) -> Point:
    fast = speed(choice)
    return Point(number, dict(choice), fast, 10 / fast, 12 / fast, 5.0, 200 if choice["enable_mem_reuse"] else 300)


def ticking() -> Callable[[], float]:
    """A clock on which each trial takes a second."""
    now = iter(range(1_000_000))
    return lambda: float(next(now))


def study(file: Path | None = None, constraints: Constraints | None = None, **more: object) -> Study:
    return Study("name", SPACE, constraints or Constraints(), measured, file, clock=ticking(), **more)  # type: ignore[arg-type]


def test_settings_come_before_what_takes_another_model_and_everything_is_tried() -> None:
    search = study()
    search.run(1000, trials=25)
    assert search.points[0].choice == {**SPACE.usual, "session.set_denormal_as_zero": "1"}
    assert search.points[1].choice == SPACE.usual
    of_model = [
        number for number, point in enumerate(search.points) if SPACE.model(point.choice) != SPACE.model(SPACE.usual)
    ]
    settings = sum(len(values) - 1 for name, values in SPACE.dimensions.items() if not SPACE.is_of_model(name))
    assert of_model == [settings + 1, settings + 2, settings + 3, settings + 4]
    tried = {(name, value) for point in search.points for name, value in point.choice.items()}
    assert tried == {(name, value) for name, values in SPACE.dimensions.items() for value in values}


def test_lower_precision_comes_before_the_settings_and_they_are_tried_with_it() -> None:
    def lower(number: int, choice: Choice, earlier: Sequence[Point]) -> Point:
        return Point(number, dict(choice), 2.0 if choice["model"] == "quantized" else 1.2, 1, 1, 1, 1)

    space = replace(SPACE, dimensions={**SPACE.dimensions, "model": ("all", "basic", "original", "quantized")})
    search = Study("name", space, Constraints(), lower, clock=ticking())
    search.run(1000, trials=6)
    assert [point.choice["model"] for point in search.points] == ["all", "all", *["quantized"] * 4]


def test_the_original_is_tried_at_once_where_the_usual_model_is_no_faster() -> None:
    def slow(number: int, choice: Choice, earlier: Sequence[Point]) -> Point:
        return Point(number, dict(choice), 1.0 if choice["model"] == "original" else 0.8, 1, 1, 1, 1)

    search = Study("name", SPACE, Constraints(), slow, clock=ticking())
    search.run(1000, trials=4)
    assert [point.choice["model"] for point in search.points] == ["all", "all", *["original"] * 2]


def test_a_model_that_takes_longer_to_make_than_there_is_left_is_not_proposed() -> None:
    search = study()
    search.run(60, takes=lambda choice: 0.0 if choice["model"] != "basic" else 100.0)
    assert len(search.points) == 60
    assert {point.choice["model"] for point in search.points} == {"all", "original"}


def test_the_search_ends_with_its_budget() -> None:
    search = study()
    search.run(5)
    assert len(search.points) == 5
    assert search.seconds == 5


def test_the_best_comes_first_and_what_helps_only_together_is_found() -> None:
    search = study()
    search.run(1000, trials=120)
    best = search.best(2)
    assert best[0].speedup >= best[1].speedup
    assert best[0].speedup == pytest.approx(1.2 * 1.3 * 1.4)


def test_constraints_are_kept_and_missed_ones_are_told_with_their_size() -> None:
    search = study(constraints=Constraints(max_memory=250))
    search.run(1000, trials=60)
    assert all(point.peak_mb <= 250 for point in search.best(10))
    hard = Constraints(max_latency=1.0, max_memory=250)
    assert str(hard.nearest(search.points)[0]).startswith("max-latency of 1 ms is missed by")
    assert not study(constraints=hard).best(3)


def test_failures_are_kept_and_never_taken() -> None:
    def fails(number: int, choice: Choice, earlier: Sequence[Point]) -> Point:
        return Point(number, dict(choice), failure="no") if choice["model"] == "all" else measured(number, choice)

    search = Study("name", SPACE, Constraints(), fails, clock=ticking())
    search.run(1000, trials=20)
    assert len(search.points) == 20
    assert all(point.choice["model"] != "all" for point in search.best(20))


def test_a_change_that_is_faster_is_kept_for_the_next_ones() -> None:
    def threads(number: int, choice: Choice, earlier: Sequence[Point]) -> Point:
        quick = (1.0 if choice["enable_mem_reuse"] else 1.2) * (1.0 if choice["enable_cpu_mem_arena"] else 1.2)
        return Point(number, dict(choice), quick, 1, 1, 1, 1)

    search = Study("name", SPACE, Constraints(), threads, clock=ticking())
    search.run(1000, trials=8)
    assert search.best(1)[0].speedup == pytest.approx(1.44)


def test_a_model_that_is_refused_is_not_gone_on_with() -> None:
    def of_content(number: int, choice: Choice, earlier: Sequence[Point]) -> Point:
        return replace(measured(number, choice), content=str(choice["model"]))

    search = Study("name", SPACE, Constraints(), of_content, clock=ticking())
    search.run(1000, trials=2)
    search.refuse("all", "wrong")
    search.run(1000, trials=8)
    assert all(point.choice["model"] == "original" for point in search.points[2:])


def test_what_is_left_for_the_end_is_not_spent() -> None:
    search = study()
    search.charge("preparing", 3)
    search.charge("preparing", 2)  # again, after an interruption
    search.run(10, reserve=lambda: 4.0)
    assert len(search.points) == 3
    search = study()
    search.run(1, reserve=lambda: 4.0)
    assert len(search.points) == 1


def test_a_search_goes_on_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite"
    first = study(file)
    first.run(1000, trials=10)
    before = first.points
    again = study(file)
    assert again.points == before
    again.run(1000, trials=30)
    assert again.points[:10] == before
    assert len(again.points) == 30


def test_a_killed_search_finds_what_it_would_have_found(tmp_path: Path) -> None:
    file, code = tmp_path / "a.sqlite", tmp_path / "killed.py"
    code.write_text(
        f"""
import os, sys
sys.path[:0] = {sys.path!r}
from test_study import SPACE, measured, ticking
from dataclasses import replace
from pathlib import Path
from ortfuse.tuning import Constraints, Study
def dies(number, choice, earlier):
    if number >= 21:
        os._exit(9)
    return measured(number, choice)
Study("name", SPACE, Constraints(), dies, Path({str(file)!r}), clock=ticking()).run(1000)
"""
    )
    assert subprocess.run([sys.executable, code], cwd=Path(__file__).parent, check=False).returncode == 9
    search, whole = study(file), study()
    assert 21 <= len(search.points) < 25
    search.run(1000, trials=25)
    whole.run(1000, trials=25)
    assert search.points == whole.points


def test_studies_of_other_models_do_not_meet(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite"
    study(file).run(1000, trials=3)
    assert not Study("another", SPACE, Constraints(), measured, file).points


def test_random_search_knows_nothing_at_its_beginning() -> None:
    firsts = []
    for seed in range(6):
        search = study(sampler="random", seed=seed)
        search.run(1000, trials=4)
        assert len({tuple(point.choice.items()) for point in search.points}) == 4
        firsts.append(search.points[0].choice)
    assert SPACE.usual not in firsts
    assert {**SPACE.usual, **SPACE.recommended} not in firsts
    assert len({tuple(choice.items()) for choice in firsts}) == 6


def test_random_search_passes_over_models_that_there_is_no_time_to_make(tmp_path: Path) -> None:
    def slow(choice: Choice) -> float:
        return 100.0 if choice["model"] == "basic" else 0.0

    whole, first = study(sampler="random"), study(tmp_path / "a.sqlite", sampler="random")
    whole.run(60, takes=slow)
    assert {point.choice["model"] for point in whole.points[1:]} == {"all", "original"}
    first.run(60, takes=slow, trials=20)
    again = study(tmp_path / "a.sqlite", sampler="random")
    again.run(60, takes=slow)
    assert again.points == whole.points, "what was passed over is remembered"


def test_a_trial_that_takes_longer_than_there_is_left_is_not_begun() -> None:
    search = study()
    search.run(10, takes=lambda choice: 4.0)
    assert len(search.points) == 7


def test_what_was_learnt_is_there_for_a_search_that_goes_on(tmp_path: Path) -> None:
    first = study(tmp_path / "a.sqlite")
    first.charge("preparing", 3)
    first.learn({"trials": [1.5]})
    again = study(tmp_path / "a.sqlite")
    assert again.learnt() == {"trials": [1.5]}
    assert again.seconds == 3


def test_a_file_that_cannot_hold_trials_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").write_text("this is not a database, and long enough to be told from one" * 30)
    with pytest.raises(OutputError, match=r"a\.sqlite: trials cannot be kept there"):
        study(tmp_path / "a.sqlite")


def test_settings_of_a_choice_are_those_that_are_not_usual() -> None:
    choice = {**SPACE.usual, "enable_mem_reuse": False, "disabled": "NchwcTransformer", "pin.gelu": "none"}
    assert SPACE.settings(choice) == {"enable_mem_reuse": False, "disabled_optimizers": ["NchwcTransformer"]}
    assert SPACE.forced(choice) == {"gelu": "none"}


def test_a_file_that_takes_no_more_trials_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite"
    search = study(file)
    search.run(1000, trials=3)
    with sqlite3.connect(file) as database:
        database.execute(
            "CREATE TRIGGER full BEFORE INSERT ON trials BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
        )
    with pytest.raises(OutputError, match=r"a\.sqlite: trials cannot be kept there \(.*disk is full"):
        search.run(1000, trials=6)


def test_two_searches_do_not_go_on_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fcntl")
    (tmp_path / "inner").mkdir()
    monkeypatch.setattr(machine_lock, "FOLDER", tmp_path)
    with no_other_search(tmp_path / "a.sqlite"), no_other_search(tmp_path / "b.sqlite"), no_other_search(None):
        same = no_other_search(tmp_path / "inner" / ".." / "a.sqlite")
        with pytest.raises(OutputError, match=r"a\.sqlite: another search goes on there"):
            same.__enter__()
    with no_other_search(tmp_path / "a.sqlite"):
        pass


def test_a_choice_that_is_proposed_again_is_a_trial_of_its_own_that_is_not_measured_again() -> None:
    search = Study("name", SPACE, Constraints(), measured, clock=ticking())
    asked = list[int]()

    def counted(number: int, choice: Choice, earlier: Sequence[Point]) -> Point:
        asked.append(number)
        return measured(number, choice, earlier)

    search.measure = counted
    search.run(10_000)
    assert len(asked) < len(search.points), "it ends when nothing new is proposed any more"
    assert [point.number for point in search.points] == [*range(len(search.points))]
