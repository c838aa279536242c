"""Tuning from a file to a file, with measurements that are made up."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
import pytest

import ortfuse
from ortfuse.errors import ConstraintError, OptionError, OrtfuseError
from ortfuse.runtime.bench import Candidate, SessionLatency
from ortfuse.runtime.session_settings import stored_config
from ortfuse.tuning import Space, Variants
from ortfuse.tuning.trials import Trials

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[n,8] x) => (float[n,8] y)
<float[8,8] w = {WEIGHTS}, float half = {0.5}, float one = {1}, float root = {1.4142135}> {
    m = MatMul(x, w) d = Div(m, root) e = Erf(d) a = Add(e, one) h = Mul(m, a) y = Mul(h, half)
}""".replace("WEIGHTS", ", ".join(f"{0.01 * (i % 13) - 0.05}" for i in range(64)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "a.onnx")
    return tmp_path / "a.onnx"


class Meter:
    """Models with fewer nodes are faster, and so are sessions without spinning."""

    def __init__(self, baseline: Candidate, inputs: Any, threads: int, name: str) -> None:
        self.baseline, self.base = baseline, self.nodes(baseline)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @staticmethod
    def nodes(candidate: Candidate) -> int:
        return len(onnx.load(candidate.path).graph.node)

    def speedup(self, candidate: Candidate) -> float:
        quick = 1.5 if candidate.settings.get("session.intra_op.allow_spinning") == "0" else 1.0
        return self.base / self.nodes(candidate) * quick

    def measure(self, candidates: Mapping[str, Candidate], rounds: int, **more: Any) -> list[SessionLatency]:
        found = [(name, self.speedup(candidate)) for name, candidate in candidates.items()]
        return [
            SessionLatency(name, 10 / speedup, 12 / speedup, speedup, None, 5.0, 100.0)
            for name, speedup in [("", 1.0), *found]
        ]


def test_the_model_its_session_and_its_options_are_written(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.onnx"
    tuned = ortfuse.tune(path, output=target, trials=12, meter=Meter)
    assert tuned.outcome.best.speedup > 2
    assert {file.name for file in tuned.written} == {"b.onnx", "b.onnx.session.json", "b.onnx.options.toml"}
    assert stored_config(target).value("session.intra_op.allow_spinning") == "0"
    assert ortfuse.verify(path, target).ok
    options = ortfuse.Options.load(tmp_path / "b.onnx.options.toml")
    again = ortfuse.optimize(path, options)
    assert len(again.model.graph) == len(onnx.load(target).graph.node)
    session = ortfuse.session(target)
    assert session.run(None, {"x": np.ones((3, 8), np.float32)})[0].shape == (3, 8)
    assert tuned.to_dict()["trials"]


def test_limits_that_nothing_keeps_are_told_and_nothing_is_written(path: Path, tmp_path: Path) -> None:
    limits = ortfuse.Constraints(max_memory=50)
    with pytest.raises(ConstraintError, match="max-memory of 50 MB is missed by 100%: 100 MB") as refusal:
        ortfuse.tune(path, output=tmp_path / "b.onnx", trials=3, constraints=limits, meter=Meter)
    assert len(refusal.value.tried) == 3
    assert not (tmp_path / "b.onnx").exists()


def test_the_original_comes_back_where_nothing_is_faster(path: Path, tmp_path: Path) -> None:
    class Slower(Meter):
        def speedup(self, candidate: Candidate) -> float:
            return 0.97

    tuned = ortfuse.tune(path, output=tmp_path / "b.onnx", trials=5, meter=Slower)
    assert tuned.outcome.best.choice["model"] == "original"
    assert any("nothing is faster" in note for note in tuned.outcome.notes)
    assert len(onnx.load(tmp_path / "b.onnx").graph.node) == len(onnx.load(path).graph.node)
    assert not len(tuned.session)


def test_what_is_slower_is_taken_for_a_limit_and_told_by_how_much(path: Path) -> None:
    class Hungry(Meter):
        """The original needs more memory than what is slower."""

        def speedup(self, candidate: Candidate) -> float:
            return 1.0 if candidate == self.baseline else 0.9

        def measure(self, candidates: Mapping[str, Candidate], rounds: int, **more: Any) -> list[SessionLatency]:
            first, *others = super().measure(candidates, rounds)
            slow = [replace(row, peak_mb=60.0) if row.speedup < 1 else row for row in others]
            return [first, *slow]

    with pytest.raises(
        ConstraintError, match=r"max-regression of 1\.05 of the original's time is missed by 6%: 1\.111"
    ):
        ortfuse.tune(path, trials=5, constraints=ortfuse.Constraints(max_memory=80), meter=Hungry)
    limits = ortfuse.Constraints(max_memory=80, max_regression=0.2)
    assert ortfuse.tune(path, trials=5, constraints=limits, meter=Hungry).outcome.best.speedup == 0.9


def test_a_pass_list_is_taken_unless_something_is_clearly_faster(path: Path) -> None:
    class Even(Meter):
        def speedup(self, candidate: Candidate) -> float:
            return 1.5 + (0.005 if candidate.settings else 0.0)

    tuned = ortfuse.tune(path, trials=12, meter=Even)
    assert tuned.outcome.best.choice["model"] == "auto"
    assert not len(tuned.session)


def unlike_before(changed: Callable[[Candidate, float], float]) -> type[Meter]:
    """A meter that measures something else when what is best is measured once more, by the meter that is made last."""
    made = []

    class Moody(Meter):
        def __enter__(self) -> Self:
            made.append(self)
            return self

        def speedup(self, candidate: Candidate) -> float:
            found = super().speedup(candidate)
            return changed(candidate, found) if self is not made[0] and candidate != self.baseline else found

    return Moody


def test_what_is_best_is_measured_once_more_and_these_times_are_told(path: Path) -> None:
    tuned = ortfuse.tune(path, trials=12, meter=unlike_before(lambda candidate, found: found * 0.9))
    best, finalist = tuned.outcome.best, tuned.outcome.finalists[0]
    assert best.number == finalist.number
    assert best.speedup == pytest.approx(0.9 * finalist.speedup)
    assert [point.choice["model"] for point in tuned.outcome.confirmed] == ["auto", "auto"]
    assert tuned.outcome.confirmed[0] == best
    assert f"measured: {best.speedup:.2f} times" in next(iter(tuned.session)).reason
    assert not any("once more" in note for note in tuned.outcome.notes)


def test_settings_that_were_only_lucky_give_way_to_what_optimize_makes(path: Path, tmp_path: Path) -> None:
    lucky = unlike_before(lambda candidate, found: 0.49 if candidate.settings else found)
    tuned = ortfuse.tune(path, output=tmp_path / "b.onnx", trials=12, meter=lucky)
    assert tuned.outcome.best.choice == tuned.outcome.trials[0].choice
    assert any("0.49 times when it was measured once more; another" in note for note in tuned.outcome.notes)
    assert not len(tuned.session)
    assert not len(stored_config(tmp_path / "b.onnx"))


def test_a_model_that_was_only_lucky_gives_way_to_the_original(path: Path, tmp_path: Path) -> None:
    tuned = ortfuse.tune(path, output=tmp_path / "b.onnx", trials=12, meter=unlike_before(lambda candidate, found: 0.9))
    assert tuned.outcome.best.choice["model"] == "original"
    assert any("0.90 times when it was measured once more; the original is" in note for note in tuned.outcome.notes)
    assert len(onnx.load(tmp_path / "b.onnx").graph.node) == len(onnx.load(path).graph.node)


def test_a_limit_has_to_be_kept_once_more(path: Path, tmp_path: Path) -> None:
    limits = ortfuse.Constraints(max_latency=9)
    slower = unlike_before(lambda candidate, found: 1.0)
    with pytest.raises(ConstraintError, match="did not when it was measured again: max-latency of 9 ms is missed"):
        ortfuse.tune(path, output=tmp_path / "b.onnx", trials=3, constraints=limits, meter=slower)
    assert not (tmp_path / "b.onnx").exists()


def test_a_model_that_is_not_verified_is_not_taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        ok = False

    monkeypatch.setattr("ortfuse.tuning.model_variants.verify", lambda *models, **more: Wrong())
    tuned = ortfuse.tune(path, trials=8, meter=Meter)
    assert tuned.outcome.best.choice["model"] == "original"
    assert any("differ from the original's" in point.failure for point in tuned.outcome.trials)


def test_trials_of_other_weights_beside_the_same_file_are_not_taken_up(path: Path, tmp_path: Path) -> None:
    file, weights = tmp_path / "outside.onnx", tmp_path / "weights.bin"
    model = onnx.load(path)
    model.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(model.graph.initializer[0]), "w")
    )
    onnx.save(model, file, save_as_external_data=True, location=weights.name, size_threshold=64)
    study = tmp_path / "trials.sqlite"

    def trials() -> list[str]:
        found = ortfuse.tune(file, study=study, trials=2, meter=Meter).outcome.trials
        return [point.content for point in found if point.choice["model"] != "original"]

    first = trials()
    assert trials() == first, "a search that was ended goes on"
    weights.write_bytes((2 * np.fromfile(weights, np.float32)).tobytes())
    assert set(trials()).isdisjoint(first)


def test_a_stored_trial_of_what_is_refused_now_does_not_hold_up_the_search(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        ok = False

    def of_before(self: Trials, number: int, choice: Any, earlier: Any) -> Any:
        return replace(measured(self, number, choice, earlier), content="as it was made before")

    measured = Trials.measured
    monkeypatch.setattr(Trials, "measured", of_before)
    monkeypatch.setattr("ortfuse.tuning.model_variants.verify", lambda *models, **more: Wrong())
    tuned = ortfuse.tune(path, trials=3, meter=Meter)
    assert tuned.outcome.best.choice["model"] == "original"


def test_only_the_model_that_is_taken_is_verified(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verified = []

    class Right:
        ok = True

    monkeypatch.setattr(
        "ortfuse.tuning.model_variants.verify", lambda *models, **more: verified.append(models) or Right()
    )
    ortfuse.tune(path, trials=8, meter=Meter)
    assert len(verified) == 1


def test_sessions_are_measured_and_their_outputs_compared(path: Path) -> None:
    tuned = ortfuse.tune(path, trials=1, rounds=6)
    assert all(0 <= point.error < 1e-5 and not point.failure for point in tuned.outcome.trials)


def with_outputs(outputs: Mapping[str, Any]) -> type[Meter]:
    """A meter whose candidates, those with settings, have these outputs."""

    class Other(Meter):
        def measure(self, candidates: Mapping[str, Candidate], rounds: int, **more: Any) -> list[SessionLatency]:
            for name, candidate in candidates.items():
                if more.get("check") is not None and candidate.settings:
                    more["check"](name, outputs)
            return super().measure(candidates, rounds)

    return Other


@pytest.mark.parametrize(("shape", "value"), [((2, 8), 0.0), ((1, 8), math.nan)])
def test_outputs_of_another_shape_or_with_nan_are_failures(path: Path, shape: tuple[int, ...], value: float) -> None:
    wrong = with_outputs({"y": np.full(shape, value, np.float32)})
    tuned = ortfuse.tune(path, trials=6, meter=wrong, inputs=[{"x": np.ones((1, 8), np.float32)}])
    assert "the outputs are of other shapes, or NaN or infinite elsewhere" in {
        point.failure for point in tuned.outcome.trials
    }
    assert not len(tuned.session)


def test_an_output_that_is_drawn_at_random_is_not_compared(tmp_path: Path) -> None:
    onnx.save(
        onnx.parser.parse_model(
            """<ir_version: 10, opset_import: ["": 21]> g (float[n,64] x) => (float[n,64] y, float[n,64] z) {
            r = RandomNormalLike(x) y = Add(x, r) s = Abs(x) z = Relu(s)
        }"""
        ),
        tmp_path / "random.onnx",
    )
    tuned = ortfuse.tune(tmp_path / "random.onnx", trials=1, rounds=6)
    assert [point.failure for point in tuned.outcome.trials] == [""]
    assert [note for note in tuned.outcome.notes if "not the same in two runs" in note] == [
        "the output y is not the same in two runs of the original, so errors of it are not told"
    ]


def test_a_budget_has_to_be_one(path: Path) -> None:
    with pytest.raises(OptionError, match="more than 0"):
        ortfuse.tune(path, budget=0)


@pytest.mark.parametrize(
    "limits", [{"max_latency": math.nan}, {"min_throughput": -1.0}, {"max_error": math.inf}, {"max_regression": "5%"}]
)
def test_a_limit_that_nothing_could_miss_is_none(limits: Any) -> None:
    with pytest.raises(OptionError, match="write a number, 0 or more"):
        ortfuse.Constraints(**limits)


def test_that_optuna_is_missing_is_said_before_anything_is_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    made = []
    with pytest.raises(OrtfuseError, match=r"pip install 'ortfuse\[tune\]'"):
        ortfuse.tune(path, progress=made.append)
    assert not made


def test_the_search_for_lower_precision_has_most_of_the_budget(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def quantized(*models: Any, **more: Any) -> Any:
        given.append(more["budget"])
        raise OrtfuseError("nothing is faster")

    monkeypatch.setattr("ortfuse.tuning.model_variants.quantize", quantized)
    tuned = ortfuse.tune(path, budget=90, trials=3, meter=Meter, constraints=ortfuse.Constraints(max_error=0.1))
    assert given == [pytest.approx(54, abs=1)]
    assert tuned.outcome.trials[1].failure == "nothing is faster"


def test_lower_precision_is_looked_for_at_the_sizes_that_were_given(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def quantized(model: Any, options: ortfuse.Options, **more: Any) -> Any:
        asked.append(dict(options.sizes))
        raise OrtfuseError("nothing is faster")

    monkeypatch.setattr("ortfuse.tuning.model_variants.quantize", quantized)
    limits = ortfuse.Constraints(max_error=0.1)
    tuned = ortfuse.tune(path, budget=90, trials=2, meter=Meter, constraints=limits, sizes={"n": 5})
    assert asked == [{"n": 5}]
    assert tuned.options.sizes == {}


KILLED = """
import os, signal, sys
sys.path[:0] = {paths!r}
import ortfuse
from test_tune import Meter
def progress(text):
    if text.startswith({moment!r}):
        os.kill(os.getpid(), signal.SIGKILL)
ortfuse.tune({model!r}, output={output!r}, trials=12, meter=Meter, progress=progress)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no such end here")
@pytest.mark.parametrize(("moment", "kept"), [("trial 7", 7), ("measuring what is best once more", 12)])
def test_a_process_that_was_killed_loses_nothing(
    moment: str, kept: int, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr("ortfuse.runtime.machine_lock.FOLDER", temporary)
    output, other = tmp_path / "b.onnx", tmp_path / "c.onnx"
    code = KILLED.format(
        paths=[str(Path(__file__).parent), *sys.path], moment=moment, model=str(path), output=str(output)
    )
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not output.exists()
    left = {one for one in temporary.iterdir() if one.is_dir()}
    assert left, "the models of the search that was killed"

    told: list[str] = []
    again = ortfuse.tune(path, output=output, trials=12, meter=Meter, progress=told.append)
    whole = ortfuse.tune(path, output=other, trials=12, meter=Meter)
    assert [text.partition(",")[0] for text in told if text.startswith("trial")] == [
        f"trial {number}" for number in range(kept + 1, 13)
    ]
    assert again.outcome.trials == whole.outcome.trials
    assert again.outcome.best == whole.outcome.best
    assert output.read_bytes() == other.read_bytes()
    assert left.isdisjoint(temporary.iterdir())
    assert not [one.name for one in tmp_path.iterdir() if one.name.startswith(".")]


def test_before_the_first_trial_one_model_is_made(path: Path) -> None:
    made = []
    ortfuse.tune(path, trials=1, meter=Meter, progress=made.append)
    assert [text for text in made if text.startswith("making")] == ["making the variant auto"]


def test_pass_lists_that_come_to_the_same_passes_are_made_once(path: Path, tmp_path: Path) -> None:
    variants = Variants(path, ortfuse.Options(), tmp_path)
    assert variants.names() == ["auto", "extended", "basic", "original"]
    assert Variants(path, ortfuse.Options(passes="dce"), tmp_path).names() == [
        "auto",
        "all",
        "extended",
        "basic",
        "original",
    ]
    with pytest.raises(OrtfuseError, match="no pass or pass list 'nonsense'"):
        Variants(path, ortfuse.Options(passes="nonsense"), tmp_path).names()


def test_a_model_is_made_once_for_all_settings_and_its_time_is_known(path: Path, tmp_path: Path) -> None:
    variants = Variants(path, ortfuse.Options(), tmp_path)
    space = Space({"model": ("auto", "basic", "original"), "enable_mem_reuse": (True, False)})
    first = variants.of(space, space.usual)
    assert variants.of(space, {**space.usual, "enable_mem_reuse": False}) is first
    assert variants.seconds(space, space.usual) == 0
    assert variants.seconds(space, {**space.usual, "model": "original"}) == 0
    assert variants.seconds(space, {**space.usual, "model": "basic"}) > 0
