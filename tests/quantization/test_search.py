"""The search, with schemes that round weights and times that a table tells: nothing here is measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from rounding_schemes import BITS, Cutting, Rounding, Table

from ortfuse.errors import BoundError, VerificationError
from ortfuse.quantization import final_measurement, input_sets, mixed_precision_search
from ortfuse.quantization.input_sets import PROBED
from ortfuse.quantization.measurement_store import Store
from ortfuse.quantization.metrics import METRICS, metric_of
from ortfuse.quantization.mixed_precision_search import Request, fastest
from ortfuse.quantization.model_trials import Trial
from ortfuse.quantization.outcome import Outcome
from ortfuse.quantization.output_effects import Probe
from ortfuse.quantization.statistical_tolerance_limit import limit_of
from ortfuse.quantization.time_budget import CHOICES, Budget
from ortfuse.runtime.bench import Latency
from ortfuse.runtime.session import Session

pytest.importorskip("scipy")

SIZE = 16


def chain(layers: int = 4, seed: int = 0) -> ir.Model:
    """A chain of products and activations."""
    rng = np.random.default_rng(seed)
    body = "  ".join(f"h{n} = MatMul(a{n}, w{n})  a{n + 1} = Tanh(h{n})" for n in range(layers))
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n, {SIZE}] a0) => (float[n, {SIZE}] y)
    <{", ".join(f"float[{SIZE}, {SIZE}] w{n}" for n in range(layers))}> {{ {body}  y = Identity(a{layers}) }}"""
    return ir.from_onnx_text(_with_weights(text, layers, rng))


def _with_weights(text: str, layers: int, rng: np.random.Generator) -> str:
    for number in range(layers):
        numbers = ", ".join(f"{value:.6f}" for value in rng.normal(size=SIZE * SIZE) / SIZE**0.5)
        text = text.replace(f"] w{number}", f"] w{number} = {{{numbers}}}", 1)
    return text


@pytest.fixture(autouse=True)
def speedups(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Latencies by the number of lowered sites instead of measured ones; a test may set a speedup for all."""
    told: dict[str, float] = {}

    def measure(models: Mapping[str, ir.Model], inputs: Any, **how: Any) -> list[Latency]:
        lowered = {name: sum("scheme" in node.metadata_props for node in model.graph) for name, model in models.items()}
        return [
            Latency(name, 1.0, 1.0, 1.0, 0.0, told.get("all", 1 + count / 4) if count else 1.0, None, 1.0, 1, 1, 1.0)
            for name, count in lowered.items()
        ]

    monkeypatch.setattr(final_measurement, "measure", measure)
    monkeypatch.setattr(input_sets, "FRESH", (8, 8))
    return told


def run(
    model: ir.Model, bound: float, scheme_set: Rounding | None = None, store: Store | None = None, **asked: Any
) -> Outcome:
    metric = asked.pop("metric", METRICS["l2"])
    clock = asked.pop("clock", Table())
    progress = asked.pop("progress", lambda text: None)
    asked.setdefault("sizes", {"n": 8})
    request = Request(metric, bound, **asked)
    return fastest(model, model, request, scheme_set or Rounding(), store or Store(None), progress, clock)


class Busy:
    """Latencies of a machine that does other things: few rounds leave open whether a lowered model is slower."""

    def __init__(self, enough: float) -> None:
        self.enough, self.rounds = enough, list[int]()

    def measure(self, models: Mapping[str, ir.Model], inputs: Any, *, rounds: int, **how: Any) -> list[Latency]:
        self.rounds.append(rounds)
        bounds = (1.2, 1.4) if rounds >= self.enough else (0.6, 2.5)
        names = [*models]
        return [
            Latency(name, 1.0, 1.0, 1.0, 0.0, 1.0 if name == names[0] else 1.3, bounds, 1.0, 1, 1, 1.0)
            for name in names
        ]


def test_choices_are_run_longer_where_the_first_rounds_leave_open_whether_they_are_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = Busy(enough=16 * 5)
    monkeypatch.setattr(final_measurement, "measure", busy.measure)
    outcome = run(chain(), 0.05, rounds=5)
    assert busy.rounds == [5, 20, 80]
    assert outcome.lowered
    assert outcome.latency[-1].speedup_bounds == (1.2, 1.4)


def test_choices_are_run_once_where_that_tells_or_there_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sure, slow = Busy(enough=5), Busy(enough=math.inf)
    monkeypatch.setattr(final_measurement, "measure", sure.measure)
    assert run(chain(), 0.05, rounds=5).lowered
    assert sure.rounds == [5]
    monkeypatch.setattr(final_measurement, "measure", slow.measure)
    monkeypatch.setattr(final_measurement, "AGAIN_SECONDS", 0.0)
    run(chain(), 0.05, rounds=5)
    assert slow.rounds == [5]


def test_a_gain_that_cannot_be_told_from_noise_is_not_called_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final_measurement, "measure", Busy(enough=math.inf).measure)
    outcome = run(chain(), 0.05, rounds=5)
    assert not outcome.lowered
    assert "cannot be told" in outcome.reason and "1.30 times" in outcome.reason and "0.60 to 2.50" in outcome.reason


def error_on_others(outcome: Outcome, original: ir.Model, sets: int = 10) -> float:
    rng = np.random.default_rng(99)
    inputs = [{"a0": rng.standard_normal((8, SIZE), np.float32)} for _ in range(sets)]
    one, other = Session(original), Session(outcome.model)
    return METRICS["l2"].of([one.run(i) for i in inputs], [other.run(i) for i in inputs], inputs).error


@pytest.mark.parametrize("bound", [3e-3, 1e-2, 3e-2, 1e-1])
def test_the_bound_holds_on_inputs_that_were_never_seen(bound: float) -> None:
    model = chain()
    outcome = run(model, bound)
    assert outcome.chosen.choice
    assert outcome.error <= bound
    assert outcome.held_out_error is not None
    assert outcome.held_out_error <= bound
    assert error_on_others(outcome, model) <= bound


def test_the_wider_the_bound_the_faster() -> None:
    speedups = [run(chain(), bound).chosen.predicted_speedup for bound in (5e-3, 2e-2, 1e-1, 5e-1)]
    assert speedups == sorted(speedups)
    assert speedups[-1] > speedups[0]


def test_under_a_wide_bound_all_sites_are_on_the_fastest_scheme() -> None:
    assert set(run(chain(), 0.9).chosen.choice.values()) == {"coarse"}


def test_a_bound_that_nothing_keeps_is_an_error() -> None:
    with pytest.raises(BoundError, match="no scheme keeps the error"):
        run(chain(), 1e-6)


def test_schemes_that_win_no_time_are_not_considered() -> None:
    outcome = run(chain(), 0.5, clock=Table(coarse=2e-3, middle=1e-3, fine=0.99e-3))
    assert not outcome.chosen.choice
    assert "no scheme that was measured is of use" in outcome.reason
    assert all(one.dropped for site in outcome.sites for one in site.schemes)


def test_a_model_without_sites_comes_back_as_it_is() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
    model = ir.from_onnx_text(text)
    outcome = run(model, 0.1)
    assert outcome.model is model
    assert "no site" in outcome.reason


def test_what_is_measured_to_be_slower_is_not_taken(speedups: dict[str, float]) -> None:
    speedups["all"] = 0.8
    outcome = run(chain(), 0.5)
    assert not outcome.chosen.choice
    assert "0.80 times as fast as float32" in outcome.reason
    assert outcome.speedup == 1.0


def test_a_site_that_does_more_harm_in_company_is_found_and_spared() -> None:
    model = chain(6)
    scheme_set = Rounding(("fine",), worse={"h3": 40.0})
    outcome = run(model, 2e-2, scheme_set)
    assert outcome.chosen.choice
    assert "h3" not in outcome.chosen.choice
    assert any("'h3'" in note for note in outcome.notes)


def test_a_search_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    model, clock, scheme_set = chain(), Table(), Rounding()
    first = run(model, 2e-2, scheme_set, Store(tmp_path / "kept"), clock=clock)
    asked, made = clock.asked, scheme_set.made
    second = run(model, 2e-2, scheme_set, Store(tmp_path / "kept"), clock=clock)
    assert second.chosen.choice == first.chosen.choice
    assert clock.asked == asked + 1  # the whole model alone
    assert scheme_set.made <= made + 3  # the finalists


def test_a_scheme_that_was_disturbed_is_timed_again_before_the_choice() -> None:
    class Disturbed(Table):
        """What takes longest of the time of a scheme, the first time that it is looked at."""

        def seconds(self, models: Mapping[str, ir.Model], inputs: Any) -> dict[str, float]:
            found = super().seconds(models, inputs)
            return {name: taken * (1.2 if self.asked == 2 and taken == 6e-4 else 1) for name, taken in found.items()}

    outcome = run(chain(5), 2e-2, clock=Disturbed(middle=6.5e-4))
    assert [tried.seconds for tried in outcome.sites[0].schemes if tried.scheme == "fine"] == [6e-4]


def test_sites_of_one_kind_are_timed_once() -> None:
    clock = Table()
    run(chain(5), 2e-2, clock=clock)
    assert clock.asked == 3  # the whole model, and one kind of site: all its schemes, then those that may be chosen


def test_what_is_neither_faster_nor_nearly_as_exact_is_not_looked_into_at_sites_of_another_kind() -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n, {SIZE}] a0) => (float[1, n, {SIZE}] y)
    <float[{SIZE}, {SIZE}] w0, float[{SIZE}, {SIZE}] w1> {{
        h0 = MatMul(a0, w0)  a1 = Tanh(h0)  axes = Constant<value_ints = [0]>()  a2 = Unsqueeze(a1, axes)
        y = MatMul(a2, w1) }}"""
    model = ir.from_onnx_text(_with_weights(text, 2, np.random.default_rng(0)))
    outcome = run(model, 2e-2, clock=Table(fine=4e-4, middle=3e-4, coarse=5e-4))
    first, other = ({one.scheme for one in site.schemes if one.local_error is not None} for site in outcome.sites)
    assert first == {"fine", "middle", "coarse"}
    assert other == {"fine", "middle"}, "a slower scheme that is less exact is of no use, a faster one is"


def some_inputs(count: int, larger: range) -> list[dict[str, np.ndarray]]:
    """Sets of inputs, of which some, by their place in the order in which a search takes them, are ten times larger."""
    rng = np.random.default_rng(0)
    made = [{"a0": rng.standard_normal((8, SIZE), np.float32)} for _ in range(count)]
    order = np.random.default_rng(0).permutation(count)
    for place in larger:
        made[order[place]]["a0"] *= 10
    return made


@pytest.mark.parametrize(("count", "larger"), [(72, range(64, 72)), (40, range(20))])
def test_ranges_that_cut_off_what_other_inputs_have_are_given_up_first(count: int, larger: range) -> None:
    """Of 72, the last eight are fresh; of 40, the first half is held out."""
    model, every = chain(), some_inputs(count, larger)
    assert "cut" in run(model, 0.1, Cutting(), inputs=some_inputs(count, range(0)), sizes={}).lowered
    outcome = run(model, 0.1, Cutting(), inputs=every, sizes={})
    assert outcome.chosen.choice
    assert "h0" not in [name for name, scheme in outcome.chosen.choice.items() if scheme == "cut"]
    assert any("fitted to what was observed" in note for note in outcome.notes)
    one, other = Session(model), Session(outcome.model)
    assert METRICS["l2"].of([one.run(i) for i in every], [other.run(i) for i in every], every).error <= 0.1


@pytest.mark.parametrize(("scheme_set", "scheme", "first"), [(Rounding(), "coarse", 0), (Cutting(), "cut", 4)])
def test_all_inputs_tell_of_schemes_without_observed_ranges(scheme_set: Rounding, scheme: str, first: int) -> None:
    """Of eight sets, taken in another order, four are for the search; ranges are observed on these."""
    model, every = chain(), some_inputs(8, range(0))
    outcome = run(model, 0.9, scheme_set, inputs=every, sizes={})
    assert scheme in outcome.chosen.choice.values()
    one, other = Session(model), Session(outcome.model)
    order = np.random.default_rng(0).permutation(8)
    searched_first = [every[number] for number in (*order[4:], *order[:4])]
    errors = [METRICS["l2"].of([one.run(i)], [other.run(i)], [i]).error for i in searched_first]
    expected = max(limit_of(errors[first:], clips=scheme == "cut"), *errors)
    assert outcome.chosen.expected_error == pytest.approx(expected, rel=1e-3)


def test_effects_are_not_measured_where_ranges_were_observed() -> None:
    """The ranges are those of small inputs: what is cut off of the others is known before anything is run as a whole."""
    made = some_inputs(64, range(32, 32 + PROBED))
    outcome = run(chain(), 0.1, Cutting(), inputs=made, sizes={})
    tried = {one.scheme: one for one in outcome.sites[0].schemes}
    assert tried["cut"].output_error is not None
    assert tried["cut"].output_error > 0.1


def test_what_is_best_by_the_end_of_the_time_is_the_result_and_the_next_search_goes_on(tmp_path: Path) -> None:
    model, store = chain(), Store(tmp_path / "kept")
    short = run(model, 0.1, store=store, budget=1e-9)
    assert [site.name for site in short.sites if not site.unquantized] == ["h0"]
    assert all("'h0'" in site.unquantized for site in short.sites[1:]), "the others are of its kind"
    assert set(short.chosen.choice) == {"h0", "h1", "h2", "h3"}
    assert any("3 of 4 sites were not measured in the time given (3 of them" in note for note in short.notes)
    clock = Table()
    whole = run(model, 0.1, store=store, clock=clock)
    assert set(whole.chosen.choice) == {"h0", "h1", "h2", "h3"}
    assert clock.asked == 1  # the whole model: the times of this kind of site are known


def test_where_time_is_short_fewer_inputs_are_used_and_said() -> None:
    """Fewer errors leave a larger one to be expected, so that the bound is as firm."""
    short = run(chain(), 0.1, budget=1e-9)
    assert short.inputs == "17 generated sets of inputs (n=8), 8 of them held out, and 8 for the result"
    assert any("17 generated sets of inputs instead of 36" in note for note in short.notes)
    assert run(chain(), 0.1, budget=1e9).inputs.startswith("36 generated")
    given = [{"a0": np.random.default_rng(seed).standard_normal((8, SIZE), np.float32)} for seed in range(40)]
    assert run(chain(), 0.1, budget=1e-9, inputs=given).inputs == "17 sets of inputs, 8 of them held out"
    assert run(chain(), 0.1, budget=1e9, inputs=given).inputs == "40 sets of inputs, 20 of them held out"


def test_where_time_is_short_one_scheme_everywhere_is_run_first(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(Budget, "spent", lambda self, share=1.0: share < CHOICES)
    short = run(chain(), 0.1, progress=said.append)
    first = next(text for text in said if "lowered sites" in text)
    assert "everywhere: running 4" in first
    assert len(set(short.chosen.choice.values())) == 1


def test_what_an_earlier_search_took_is_run_again(tmp_path: Path) -> None:
    """Under a bound that it keeps it is not lost, whatever is predicted now; under another one it does no harm."""
    model, store = chain(), Store(tmp_path / "kept")
    taken = run(model, 0.1, store=store).chosen
    said: list[str] = []
    again = run(model, 0.1, store=store, budget=1e-9, progress=said.append)
    assert any("the choice of an earlier search" in text for text in said)
    assert again.chosen.predicted_speedup >= taken.predicted_speedup
    strict = run(model, 1e-3, store=store)
    assert max(strict.error, strict.held_out_error or 0.0) <= 1e-3


def test_where_runs_take_long_one_effect_at_a_site_tells_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = run(chain(), 2e-2)
    followed: list[object] = []
    effect = Probe.effect
    monkeypatch.setattr(Probe, "effect", lambda self, errors: followed.append(errors) or effect(self, errors))
    monkeypatch.setattr(mixed_precision_search, "EFFECTS_SECONDS", 0.0)
    outcome = run(chain(), 2e-2)
    assert len(followed) == 4, "one scheme at each of the sites"
    assert max(outcome.error, outcome.held_out_error or 0.0) <= 2e-2
    for one, other in zip(outcome.sites, exact.sites, strict=True):
        for told, measured in zip(one.schemes, other.schemes, strict=True):
            assert told.output_error == pytest.approx(measured.output_error, rel=0.6)


def test_every_site_is_reported_with_what_was_tried_there() -> None:
    outcome = run(chain(), 2e-2)
    assert [site.name for site in outcome.sites] == ["h0", "h1", "h2", "h3"]
    for site in outcome.sites:
        assert site.spread is not None
        assert {one.scheme for one in site.schemes} == {"fine", "middle", "coarse"}
        assert all(one.local_error is not None and one.output_error is not None for one in site.schemes)
    assert outcome.to_dict()["sites"][0]["schemes"]


def test_the_curve_gets_faster_with_its_error() -> None:
    points = [point for point in run(chain(), 2e-2, curve=True).curve if point.label.startswith("knapsack")]
    assert len(points) > 3
    errors = [point.predicted_error for point in points if point.predicted_error is not None]
    assert errors == sorted(errors)
    assert all(point.error is not None for point in points if point.choice)


def test_squares_of_errors_predict_the_error_of_the_whole() -> None:
    for point in run(chain(8), 5e-2).curve:
        if point.error and point.predicted_error:
            assert 0.5 < point.error / point.predicted_error < 2
            assert point.linear_error is not None
            assert point.linear_error >= point.predicted_error


@pytest.mark.parametrize("name", ["max", "cosine", "top1"])
def test_other_metrics_are_kept_too(name: str) -> None:
    outcome = run(chain(), 0.05, metric=METRICS[name])
    assert outcome.chosen.choice
    assert max(outcome.error, outcome.held_out_error or 0.0) <= 0.05


def test_a_function_of_the_user_is_kept() -> None:
    def far(expected: Any, found: Any, inputs: Any) -> float:
        return max(float(np.abs(a["y"] - b["y"]).max()) for a, b in zip(expected, found, strict=True))

    outcome = run(chain(), 0.05, metric=metric_of(far))
    assert outcome.chosen.choice
    assert outcome.error <= 0.05


def test_one_set_of_inputs_is_split_along_its_batch() -> None:
    x = np.random.default_rng(0).standard_normal((12, SIZE), np.float32)
    outcome = run(chain(), 5e-2, inputs=[{"a0": x}], sizes={})
    assert outcome.held_out_error is not None
    assert outcome.inputs == "12 sets of inputs, 6 of them held out"


def test_few_inputs_are_said_to_be_few() -> None:
    x = np.random.default_rng(0).standard_normal((1, SIZE), np.float32)
    outcome = run(chain(), 5e-2, inputs=[{"a0": x}], sizes={})
    assert outcome.held_out_error is None
    assert any("one set of inputs only" in note for note in outcome.notes)


def test_generated_inputs_are_said_to_be_weak() -> None:
    assert any("the bound is weak" in note for note in run(chain(), 5e-2).notes)


def test_nan_in_the_inputs_is_refused() -> None:
    with pytest.raises(VerificationError, match=r"'a0' of set 1 .* holds NaN"):
        run(
            chain(),
            5e-2,
            inputs=[{"a0": np.zeros((1, SIZE), np.float32)}, {"a0": np.full((1, SIZE), np.nan, np.float32)}],
        )


def test_a_model_that_draws_random_numbers_is_refused() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = RandomNormalLike(x) }'
    with pytest.raises(VerificationError, match="draws random numbers"):
        run(ir.from_onnx_text(text), 0.1)


def test_an_output_to_judge_has_to_be_there() -> None:
    with pytest.raises(VerificationError, match="no output 'logits'"):
        run(chain(), 0.1, metric=metric_of("l2", ["logits"]))


def test_sites_that_take_longer_alone_than_the_whole_win_no_more_than_it_has() -> None:
    class Slow(Table):
        """Every site by itself takes three times as long as in the whole."""

        def seconds(self, models: Mapping[str, ir.Model], inputs: Any) -> dict[str, float]:
            found = super().seconds(models, inputs)
            return {name: taken * (3 if len(models) > 1 else 1) for name, taken in found.items()}

    outcome = run(chain(), 0.9, clock=Slow())
    assert outcome.chosen.predicted_speedup == pytest.approx(2.5, rel=0.05)


def test_times_of_sites_are_known_from_other_models_with_the_same_sizes(tmp_path: Path) -> None:
    run(chain(4), 0.1, store=Store(tmp_path / "kept"))
    other = chain(5, seed=1)
    other.graph.opset_imports[""] = 18
    clock = Table()
    assert run(other, 0.1, store=Store(tmp_path / "kept"), clock=clock).chosen.choice
    assert clock.asked == 1, "the whole model alone"


def test_choices_above_the_bound_on_the_first_inputs_are_not_run_on_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested: list[Any] = []
    test = Trial.test
    monkeypatch.setattr(Trial, "test", lambda self, choice: tested.append(test(self, choice)) or tested[-1])
    store = Store(tmp_path / "kept")
    run(chain(), 1e-2, store=store)
    assert any(not one.whole for one in tested)
    assert all(one.whole or one.seen > 1e-2 for one in tested)
    wide = run(chain(), 0.9, store=store)
    assert wide.held_out_error is not None, (
        "what was run on some inputs alone is run on all where it may keep the bound"
    )


@pytest.mark.parametrize(
    ("names", "bound", "count"),
    [(("one", "other"), 2e-2, 2), (("one.a", "one.b"), 2e-2, 1), (("one.a", "one.b"), 5e-3, 0)],
)
def test_schemes_far_above_the_bound_are_not_run_everywhere_and_of_a_family_one_at_most(
    names: tuple[str, str], bound: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together the sites do ten times the harm that they do alone; under the smallest bound, that is enough already."""
    for name in names:
        monkeypatch.setitem(BITS, name, 7)
    scheme_set = Rounding(("fine", *names), worse={f"h{number}": 10.0 for number in range(4)})
    outcome = run(chain(), bound, scheme_set, clock=Table(**dict.fromkeys(names, 3e-4)))
    ran = [point for point in outcome.curve if point.label.endswith("everywhere") and point.error is not None]
    assert len([point for point in ran if point.label.partition(" ")[0] in names]) == count
