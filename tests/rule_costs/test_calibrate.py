"""Measuring what rules buy on the machine at hand, and choosing by it."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import ortfuse
from ortfuse.api.assess_optimization import idle_options
from ortfuse.cli.app import app
from ortfuse.errors import RuleError
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import ms, op, var
from ortfuse.targets import CostTable, Target, calibrated_speedups, default_spec, shipped_costs
from ortfuse.targets.rule_speedups import Measured
from ortfuse.tuning.rule_costs import Candidate, candidates, measure_rule_costs
from ortfuse.tuning.rule_costs.speedup import Measurement, speedup


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder."""
    monkeypatch.setattr(calibrated_speedups, "calibration_file", lambda: tmp_path / "calibration.json")
    monkeypatch.setattr(measure_rule_costs, "calibration_file", lambda: tmp_path / "calibration.json")
    calibrated_speedups.costs_here.cache_clear()
    yield tmp_path / "calibration.json"
    calibrated_speedups.costs_here.cache_clear()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is measured, each to be twice as fast as before."""
    found: list[str] = []

    def fake(candidate: Candidate, threads: int = 0) -> Measurement:
        found.append(f"{candidate.rule.name} {candidate.sizes}")
        return Measurement(2.0, (1.9, 2.1))

    monkeypatch.setattr(measure_rule_costs, "speedup", fake)
    return found


def test_a_calibration_goes_on_where_it_was_stopped(file: Path, measured: list[str]) -> None:
    first = ortfuse.calibrate(only=["clip"], budget=0)
    assert (first.measured, len(measured)) == (1, 1)
    assert json.loads(file.read_text())
    second = ortfuse.calibrate(only=["clip"])
    assert second.measured == first.remaining
    assert len(set(measured)) == len(measured), "nothing is measured twice"
    assert ortfuse.calibrate(only=["clip"]).measured == 0
    assert ortfuse.calibrate(only=["clip"], threads=1).measured == len(measured) / 2, "other threads, other costs"
    assert ortfuse.calibrate(only=["clip.max_with_zero_to_relu"], again=True).measured > 0


def test_what_was_measured_here_decides_before_the_shipped_table(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_rule_costs, "speedup", lambda candidate, threads: Measurement(0.5, (0.49, 0.51)))
    shape = {"x": (1, 128, 3072)}
    before = Target().costs.estimate("clip.clip_of_clip", shape.get)
    assert before is not None
    assert before.worth_it
    found = ortfuse.calibrate(only=["clip.clip_of_clip"])
    assert {one.rule for one in found.changed} == {"clip.clip_of_clip"}
    here = Target().costs.estimate("clip.clip_of_clip", shape.get)
    assert here is not None
    assert (here.speedup, here.worth_it) == (pytest.approx(0.5), False)
    assert "measured on this machine" in here.source
    other = Target().costs.estimate("celu.from_scaled_elu", shape.get)
    assert other == shipped_costs(default_spec()).estimate("celu.from_scaled_elu", shape.get), (
        "other rules are as they were"
    )


def test_what_contradicts_the_shipped_table_is_measured_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: Counter[str] = Counter()

    def disturbed_once(candidate: Candidate, threads: int = 0) -> Measurement:
        runs[candidate.sizes] += 1
        value = 0.5 if runs[candidate.sizes] == 1 else 2.0
        return Measurement(value, (value, value))

    monkeypatch.setattr(measure_rule_costs, "speedup", disturbed_once)
    assert not ortfuse.calibrate(only=["clip.clip_of_clip"], budget=0).changed, "even if the budget is used up"
    found = ortfuse.calibrate(only=["clip.clip_of_clip"])
    assert not found.changed
    assert set(runs.values()) == {3}
    assert set(found.speedups["clip.clip_of_clip"].values()) == {2.0}


def test_tables_for_the_nearest_number_of_threads_count(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    runtime = Target().table.runtime
    for threads, value in ((1, 1.25), (4, 1.5), (0, 2.0)):
        calibrated_speedups.store(runtime, default_spec().provider, threads, {"a.rule": {"x 1x2": value}})
    for threads, value in ((1, 1.25), (2, 1.25), (3, 1.5), (8, 2.0), (0, 2.0)):
        found = calibrated_speedups.costs_here(runtime, default_spec(), threads).estimate("a.rule", {"x": (1, 2)}.get)
        assert found is not None
        assert found.speedup == pytest.approx(value), threads


def test_the_number_of_threads_is_of_use_where_tables_can_be_chosen_by_it(file: Path) -> None:
    asked = ortfuse.Options(threads=2)
    assert [note.split()[0] for note in idle_options(asked)] == ["threads"]
    calibrated_speedups.store(Target().table.runtime, default_spec().provider, 2, {"a.rule": {"x 1x2": 1.5}})
    assert idle_options(asked) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--size", "batch=2"], "--size: is for a model"),
        (["--rounds", "3"], "--rounds: is for a model"),
        (["--session", "a.onnx", "--only", "clip"], "--only: is for rules"),
        (["--session", "a.onnx", "--budget", "9s"], "--budget: is for rules"),
        (["--session", "a.onnx", "--again"], "--again: is for rules"),
    ],
)
def test_an_option_of_the_other_measurement_is_refused_at_once(given: list[str], words: str, file: Path) -> None:
    result = CliRunner().invoke(app, ["calibrate", *given])
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_costs_of_another_machine_or_a_damaged_file_do_not_count(file: Path) -> None:
    runtime = Target().table.runtime
    calibrated_speedups.store("another runtime", default_spec().provider, 0, {"a.rule": {"x 1x2": 2.0}})
    assert calibrated_speedups.costs_here(runtime, default_spec()) == shipped_costs(default_spec())
    for damaged in (
        "{",
        "[]",
        json.dumps(
            {f"{calibrated_speedups.machine_key(runtime, default_spec().provider)}0 threads": {"speedups": {"a": 1}}}
        ),
    ):
        file.write_text(damaged)
        calibrated_speedups.costs_here.cache_clear()
        assert calibrated_speedups.costs_here(runtime, default_spec()) == shipped_costs(default_spec())


x = var("x")


def _rule(**test: object) -> Rule:
    return Rule(
        name="calibrated.swish",
        pattern=x * op.Sigmoid(x),
        replace=ms.QuickGelu(x, alpha=1.0),
        exactness=Exactness.ROUNDING,
        source="a test",
        test=RuleTest(shapes={"x": "b 8"}, **test),  # type: ignore[arg-type]
    )


def test_a_rule_is_measured_at_its_typical_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortfuse.tuning.rule_costs.speedup.LONGEST", 0.0)
    one, half = candidates([_rule(typical=[{"x": "2 8"}])], (), CostTable({}))
    assert (one.sizes, one.dtype, half.dtype) == ("x 2x8", "float32", "float16")
    for candidate in (one, half):
        found = speedup(candidate, threads=1)
        assert found is not None
        assert 0 < found.bounds[0] <= found.speedup <= found.bounds[1]


def test_a_rule_that_is_silent_for_a_type_is_not_measured_in_it() -> None:
    wide = dataclasses.replace(
        _rule(typical=[{"x": "2 8"}]), guards=(lambda match: match.unless_dtype("x", ir.DataType.FLOAT),)
    )
    _, half = candidates([wide], (), CostTable({}))
    assert speedup(half, threads=1) is None


def test_what_a_busy_machine_cannot_tell_is_left_for_the_next_run(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_rule_costs, "speedup", lambda candidate, threads: Measurement(0.9, (0.5, 1.5)))
    found = ortfuse.calibrate(only=["clip.clip_of_clip"])
    assert (found.measured, found.remaining, found.speedups) == (0, len(found.inconclusive), {})
    assert not file.exists()
    assert not Measurement(0.9, (0.88, 0.98)).unsure, "near the border, where both decisions are as good"
    assert not Measurement(0.5, (0.4, 0.6)).unsure, "slower in any case"
    assert Measurement(0.2, (0.1, 0.9)).unsure, "whatever that is"


def test_float16_is_measured_after_float32() -> None:
    found = candidates([_rule(typical=[{"x": "2 8"}, {"x": "4 8"}])], (), CostTable({}))
    assert [one.sizes for one in found] == ["x 2x8", "x 4x8", "float16: x 2x8", "float16: x 4x8"]
    assert Measured.parse("float16: x 2x8", 2.0) == Measured({"x": (2, 8)}, 2.0, "float16")


def test_the_closest_decisions_are_measured_first() -> None:
    rows = {"calibrated.swish": (Measured.parse("x 2x8", 5.0),), "near.swish": (Measured.parse("x 2x8", 0.98),)}
    import dataclasses

    far = _rule(typical=[{"x": "2 8"}])
    rules = [dataclasses.replace(far, name=name) for name in ("calibrated.swish", "near.swish", "new.swish")]
    found = candidates(rules, (), CostTable(rows))
    assert [one.rule.name for one in found if one.dtype == "float32"] == [
        "new.swish",
        "near.swish",
        "calibrated.swish",
    ]


def test_only_rules_that_are_chosen_by_cost_can_be_asked_for() -> None:
    with pytest.raises(RuleError, match="no rule or family 'nonsense' is chosen by cost; families are "):
        ortfuse.calibrate(only=["nonsense"])


def test_the_command_says_what_it_changes(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measure_rule_costs, "speedup", lambda candidate, threads: Measurement(0.5, (0.49, 0.51)))
    report = tmp_path / "calibration.json.report"
    result = CliRunner().invoke(
        app, ["calibrate", "--only", "clip.clip_of_clip", "--budget", "60", "--json", str(report)]
    )
    assert result.exit_code == 0, result.output
    assert "Decided otherwise than by that table" in result.output
    data = json.loads(report.read_text())
    assert data["schema"] == "ortfuse.calibrate/2"
    assert data["remaining"] == 0
    assert data["changed"][0]["rule"] == "clip.clip_of_clip"
