"""What a benchmark reports (never how fast anything is)."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from crashing import CRASHES

import ortfuse
from ortfuse.errors import VerificationError
from ortfuse.runtime.bench import (
    doubts,
    executed_ops,
    measure,
    models_side_by_side,
    numbered,
    stages_of,
    typical_inputs,
)
from ortfuse.runtime.bench.confidence import median_bounds, quartile_spread
from ortfuse.runtime.bench.models_side_by_side import Latency, file_bytes
from ortfuse.runtime.bench.stopping_rule import Patience
from ortfuse.verification import Session

HEADER = '<ir_version: 9, opset_import: ["": 18]>'
TEXT = HEADER + " g (float[2,3] x) => (float[2,3] y) { t = Relu(x) y = Sigmoid(t) }"
X = {"x": np.ones((2, 3), np.float32)}


def one() -> ir.Model:
    return ir.from_onnx_text(TEXT)


def test_every_model_is_measured_and_the_first_is_the_yardstick() -> None:
    rows = measure({"one": one(), "other": one()}, X, rounds=4, warmup=1)
    assert [row.name for row in rows] == ["one", "other"]
    assert rows[0].speedup == 1.0
    assert all(0 < row.low_ms <= row.median_ms <= row.high_ms for row in rows)
    assert all((row.nodes, row.executed) == (2, 2) for row in rows)
    assert all(row.spread >= 0 and row.speedup_bounds is None for row in rows)
    assert json.loads(json.dumps(rows[1].to_dict(), allow_nan=False))["name"] == "other"


def test_a_single_model_and_a_single_round_can_be_measured() -> None:
    (row,) = measure({"one": one()}, X, rounds=1, warmup=0)
    assert row.low_ms == row.median_ms == row.high_ms


def test_from_six_rounds_on_the_speedup_lies_within_bounds() -> None:
    first, second = measure({"one": one(), "other": one()}, X, rounds=6, warmup=0)
    assert first.speedup_bounds is None
    assert second.speedup_bounds is not None
    assert second.speedup_bounds[0] <= second.speedup <= second.speedup_bounds[1]


def test_models_run_in_turn_and_the_first_runs_with_every_group(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    class Recorded(Session):
        def __init__(self, model: ir.Model, threads: int, isolated: bool = True) -> None:
            super().__init__(model, threads=threads, isolated=isolated)
            self.name = "" if isolated else str(model.graph.name)

        def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            ran.append(self.name)
            return super().run(inputs)

    monkeypatch.setattr(models_side_by_side, "Session", Recorded)
    monkeypatch.setattr(models_side_by_side, "OPEN_AT_ONCE", 1)
    weighty = HEADER + " NAME (float[2,3] x) => (float[2,3] y) <float[3] w = {1, 2, 3}> { y = Mul(x, w) }"
    models = {name: ir.from_onnx_text(weighty.replace("NAME", name)) for name in "abc"}
    rows = measure(models, X, rounds=2, warmup=0)
    assert "".join(ran) == "abbaacca"
    assert [row.name for row in rows] == ["a", "b", "c"]


class Drawn:
    """A session whose runs take what a list says, in turn, on a clock of its own."""

    now = 0.0

    def __init__(self, times: Sequence[float]) -> None:
        self.times = itertools.cycle(times)

    def run(self, inputs: object) -> None:
        Drawn.now += next(self.times)


def rounds_of(
    monkeypatch: pytest.MonkeyPatch, times: Sequence[float], least: int, seconds: float, opening: float = 1e9
) -> tuple[int, int]:
    """How many rounds there are beside a model that always takes 1 second, and how many times sessions are opened."""
    opened: list[int] = []

    def open_both() -> dict[str, Drawn]:
        opened.append(1)
        return {"first": Drawn([1.0]), "other": Drawn(times)}

    monkeypatch.setattr(Drawn, "now", 0.0)
    monkeypatch.setattr(models_side_by_side.time, "perf_counter", lambda: Drawn.now)
    patience = Patience(least, seconds, lambda: Drawn.now)
    found = models_side_by_side._as_long_as_needed(open_both, opening, patience, {}, 0)
    assert len(found["first"]) == len(found["other"])
    return len(found["other"]), len(opened)


def test_the_least_rounds_are_all_if_the_bounds_are_narrow_then(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rounds_of(monkeypatch, [0.5, 0.51], 12, 1e6) == (12, 1)


def test_there_are_more_rounds_until_the_bounds_are_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [0.5 * 1.06 ** random.Random(number).gauss(0, 1) for number in range(997)]
    count, opened = rounds_of(monkeypatch, times, 6, 1e6)
    assert 20 < count < 200 and opened == 1
    assert count > rounds_of(monkeypatch, [0.5 + (time - 0.5) / 2 for time in times], 6, 1e6)[0]


def test_no_round_begins_after_the_time_but_the_least_are_made_whatever_they_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wild = [0.1, 0.9, 2.0]
    assert rounds_of(monkeypatch, wild, 6, 0.0)[0] == rounds_of(monkeypatch, wild, 6, 5.0)[0] == 6
    count, _ = rounds_of(monkeypatch, wild, 6, 100.0)
    assert count > 40 and count * 2.0 < 110  # a round takes 2 seconds


def test_sessions_that_open_fast_are_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rounds_of(monkeypatch, [0.5], 12, 100.0, opening=1.0) == (12, 3)
    assert rounds_of(monkeypatch, [0.5], 12, 0.0, opening=1.0) == (12, 1)


def test_a_session_that_is_known_well_runs_no_further_rounds() -> None:
    now = [0.0]
    patience = Patience(6, 10.0, lambda: now[0])
    known, wild = [2.0, 2.01] * 3, [1.0, 2.0, 3.0] * 2
    assert patience.finished({"known": known, "wild": wild}) == ["known"]
    assert patience.finished({"known": known[:5]}) == []
    now[0] = 10.0
    assert patience.finished({"known": known, "wild": wild, "few": wild[:5]}) == ["known", "wild"]


@pytest.mark.parametrize(
    ("count", "smallest"),  # the tables of the sign test: from the k-th smallest to the k-th largest
    [(6, 1), (8, 1), (9, 2), (20, 6), (25, 8), (100, 40)],
)
def test_the_bounds_of_a_median_are_those_of_the_sign_test(count: int, smallest: int) -> None:
    numbers = [float(number) for number in range(count, 0, -1)]
    assert median_bounds(numbers) == (smallest, count + 1 - smallest)


def test_few_numbers_have_no_bounds() -> None:
    assert median_bounds([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert median_bounds([]) is None


def test_the_spread_is_that_of_the_middle_half() -> None:
    assert quartile_spread([1.0]) == 0
    assert quartile_spread([2.0] * 9 + [100.0]) == 0
    assert quartile_spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)


def row(name: str, bounds: tuple[float, float] | None, spread: float = 0.01) -> Latency:
    return Latency(name, 1.0, 1.0, 1.0, spread, 1.0, bounds, 1.0, 1, 1, 1.0)


def test_what_cannot_be_trusted_is_said() -> None:
    assert doubts([row("a", None), row("b", (1.1, 1.2)), row("c", (0.8, 0.9))]) == []
    (noise,) = doubts([row("a", None, 0.02), row("b", (1.1, 1.2), 0.25)])
    assert "the middle half of the runs of b is spread over 25% of the median" in noise
    (unsure,) = doubts([row("a", None), row("b", (0.99, 1.2)), row("c", (1.1, 1.2))])
    assert "no difference beyond noise between b and a" in unsure
    (many,) = doubts([row("a", None), *(row(name, (0.9, 1.1)) for name in "bcdefg")])
    assert "no difference beyond noise between b, c, d and 3 others and a" in many
    (alike,) = doubts([row("a", None), row("b", (0.99, 1.02))])
    assert alike == "no difference beyond noise between b and a: it is 2.0% at most", "more time would tell no more"
    (few,) = doubts([row("a", None), row("b", None)])
    assert "too few rounds" in few
    assert doubts([row("a", None)]) == []


def test_passes_that_occur_again_are_numbered() -> None:
    models = stages_of(one(), [("fold", one()), ("fuse", one()), ("fold", one())])
    assert list(models) == ["original", "after fold", "after fuse", "after fold (2)"]


def test_executed_operators_are_those_after_the_runtimes_own_optimisations() -> None:
    model = ir.from_onnx_text(HEADER + " g (float[2,3] x) => (float[2,3] y) { t = Identity(x) y = Relu(t) }")
    assert executed_ops(model, X) == {"Relu": 1}


def test_a_model_that_cannot_be_run_is_an_error() -> None:
    with pytest.raises(VerificationError, match=r"^one: .*Got invalid dimensions"):
        measure({"one": one()}, {"x": np.ones((2, 4), np.float32)})
    other = ir.from_onnx_text(TEXT.replace("x)", "z)").replace(" x", " z"))
    with pytest.raises(
        VerificationError, match=r"other: takes the input 'z', .* given \['x'\]; measure models with the same"
    ):
        measure({"one": one(), "other": other}, X)


def test_the_size_of_the_file_counts_weights() -> None:
    model = ir.from_onnx_text(HEADER + " g (float[n,64] x) => (float[n,64] y) <float w = {1.0}> { y = Mul(x, w) }")
    model.graph.initializers["w"].const_value = ir.Tensor(np.ones((1000, 64), np.float32), name="w")
    assert file_bytes(model) == pytest.approx(len(ir.to_proto(model).SerializeToString()), rel=0.01)


def test_typical_inputs_are_one_sample_of_the_usual_length() -> None:
    model = ir.from_onnx_text(HEADER + " g (float[b,s] x) => (float[b,s] y) { y = Relu(x) }")
    label, inputs = typical_inputs(model)
    assert label == "b=1, s=128"
    assert inputs["x"].shape == (1, 128)
    assert typical_inputs(model, sizes={"s": 17})[1]["x"].shape == (1, 17)
    with pytest.raises(
        VerificationError, match="'t': the inputs have no open dimension of that name; write one of b, s"
    ):
        typical_inputs(model, sizes={"t": 1})


def test_sizes_that_were_asked_for_are_not_replaced() -> None:
    text = " g (float[b,s] x) => (float[b,s] y) <float[1,64] w> { k = Shape<start = 1>(x) l = Slice(w, z, k, a) y = Add(x, l) }"
    text = text.replace(
        "<float[1,64] w>", f"<float[1,64] w = {{{','.join(['1'] * 64)}}}, int64[1] z = {{0}}, int64[1] a = {{1}}>"
    )
    model = ir.from_onnx_text(HEADER + text)
    assert typical_inputs(model)[0] == "b=1, s=64"
    with pytest.raises(VerificationError, match="does not run at the sizes given: b=1, s=100: "):
        typical_inputs(model, sizes={"s": 100})


ELEVENTHS = (
    HEADER
    + """ g (float[b,s] x) => (float[n,m] y) <int64[2] rows = {11,-1}> {
    r = Reshape(x, rows) y = Add(r, r) }"""
)
"""The number of elements is a multiple of 11, which no usual size is."""


def test_sizes_that_only_trying_finds_are_used_where_all_usual_ones_are_refused() -> None:
    label, inputs = typical_inputs(ir.from_onnx_text(ELEVENTHS))
    assert label.endswith("(found by trying, the usual sizes are refused)")
    assert inputs["x"].size % 11 == 0
    with pytest.raises(
        VerificationError, match="; name sizes that it takes with --size b=N --size s=N, or give inputs"
    ):
        typical_inputs(ir.from_onnx_text(ELEVENTHS), sizes={"s": 7})


def test_a_verified_result_that_cannot_be_measured_is_written_with_a_note(tmp_path: Path) -> None:
    model, output = ir.from_onnx_text(ELEVENTHS), tmp_path / "result.onnx"
    given: Any = {"sizes": {"b": 1, "s": 7}, "output": output, "bench": True}
    with pytest.raises(VerificationError, match="does not run at the sizes given"):
        ortfuse.optimize(model, **given)
    assert not output.exists()
    result = ortfuse.optimize(model, verify="whole", **given)
    assert result.verdict is not None and result.latencies is None and output.exists()
    assert any(note.startswith("not measured: the model does not run at the sizes") for note in result.report.notes)


CRASHING_X = {"x": np.ones((2, 3, 4), np.float16), "w": np.ones((4, 3), np.float16), "p": np.ones((2, 1), np.float16)}


@pytest.mark.parametrize("order", ["crash, whole", "whole, crash, whole"])
def test_a_model_on_which_the_runtime_crashes_has_a_row_and_the_others_are_measured(order: str) -> None:
    models = {"crash": ir.from_onnx_text(CRASHES), "whole": ir.from_onnx_text(CRASHES.replace("1, 0, 2", "0, 1, 2"))}
    named = [models[name] for name in order.split(", ")]
    rows = measure(numbered([("m", model) for model in named]), CRASHING_X, rounds=6, warmup=0)
    crashed = rows[order.split(", ").index("crash")]
    assert "ONNX Runtime crashes when it creates a session of the model" in crashed.crash
    assert crashed.to_dict()["median_ms"] is None
    json.dumps([row.to_dict() for row in rows], allow_nan=False)
    others = [row for row in rows if row is not crashed]
    assert others[0].speedup == 1.0
    assert others[0].speedup_bounds is None
    assert all(row.median_ms > 0 and not row.crash for row in others)
    assert f"{crashed.name}: {crashed.crash}" in doubts(rows)


def test_inputs_are_found_for_a_model_on_which_the_runtime_crashes() -> None:
    assert typical_inputs(ir.from_onnx_text(CRASHES))[1]["x"].shape == (1, 128, 4)
    assert doubts(measure({"m": ir.from_onnx_text(CRASHES)}, CRASHING_X))
