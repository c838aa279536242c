"""Where the time of a model goes."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from rich.console import Console
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.profiling import VIEWS, Profile, Timing, at_peaks, beyond, bottlenecks, cost_of_denormals, profile_model
from ortfuse.profiling.denormals import slowed
from ortfuse.profiling.latency_without_profiler import percentile, timing
from ortfuse.profiling.profiler_trace import Trace, trace
from ortfuse.profiling.roofline import Work
from ortfuse.report.documents.profile import profile_document
from ortfuse.report.terminal.document import show_document
from ortfuse.runtime.bench import machine_peaks as peaks_module
from ortfuse.runtime.bench.machine_peaks import Peaks
from ortfuse.verification.explanation import Explanation

BERT = str(Path(__file__).parents[2] / "golden" / "models" / "bert.sdpa.ts.onnx")

WEIGHTS = ", ".join(["0.5"] * 64)
TEXT = f"""<ir_version: 8, opset_import: ["": 20]> g (float[N, 8] x) => (float[N, 8] y)
    <float[8, 8] w = {{{WEIGHTS}}}> {{ m = MatMul(x, w)  s = Sigmoid(m)  y = Mul(m, s) }}"""


TIMED = Timing(3, 1.0, 2.0, 1e3, 0.0, 5.0, None)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose peaks are known, and on which measurements take no time."""
    monkeypatch.setattr(profile_model, "timing", lambda *_, **__: TIMED)

    def known(threads: int = 0, *, again: bool = False) -> Peaks:
        return Peaks(1e12 if again else 1e11, 1e10, "a processor", threads)

    monkeypatch.setattr(peaks_module, "peaks", known)


def _model() -> ir.Model:
    model = ir.from_onnx_text(TEXT)
    for node, name in zip(model.graph, ("/layer/linear/MatMul", "/layer/act/Sigmoid", "/layer/act/Mul"), strict=True):
        node.name = name
    return model


def test_kernels_are_joined_with_the_graph() -> None:
    found = ortfuse.profile(_model(), rounds=3, sizes={"N": 4}, threads=1)
    assert sum(group.share for group in found.by("operator")) == pytest.approx(1)
    modules = {group.name for group in found.by("module")}
    assert modules == {"layer.linear", "layer.act"}
    (product,) = [one for one in found.kernels if one.operator == "MatMul"]
    assert (product.nodes, product.flops, product.calls) == (("/layer/linear/MatMul",), 2 * 4 * 8 * 8, 1)
    assert product.bytes == 4 * (2 * 4 * 8 + 8 * 8)
    assert product.roofline_seconds is not None
    assert (found.timing, found.runs) == (TIMED, 3)
    assert found.creation.before == {"MatMul": 1, "Sigmoid": 1, "Mul": 1}


def test_what_ortfuse_made_is_grouped_by_rule_and_block() -> None:
    optimised = ortfuse.optimize(_model()).model
    found = ortfuse.profile(optimised, rounds=3, remedies=False)
    rules = {group.name: group.kernels for group in found.by("rule")}
    assert rules["swish.x_times_sigmoid"] == 1
    (block,) = [group.name for group in found.by("block") if group.name.startswith("swish")]
    assert block == "swish.x_times_sigmoid: /layer/act/Mul and 1 more"
    (kernel,) = [one for one in found.kernels if one.rule]
    assert kernel.module == "layer.act"


def test_a_peak_that_is_exceeded_was_measured_while_the_machine_was_busy() -> None:
    found = ortfuse.profile(_model(), rounds=2, remedies=False)
    product = replace(found.kernels[0], flops=10**9, bytes=10**6, seconds=1e-3)
    busy: Profile = at_peaks(replace(found, kernels=(product,)), Peaks(1e10, 1e10, "", 1))
    assert beyond(busy)
    assert busy.kernels[0].beyond == pytest.approx(100)
    assert (busy.kernels[0].reached, busy.reached) == (1.0, 1.0), "nothing is faster than a machine can be"
    again = at_peaks(busy, Peaks(2e12, 1e10, "", 1))
    assert not beyond(again)
    assert again.kernels[0].reached == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("operator", "flops", "moved", "word"),
    [
        ("Add", 10**3, 10**9, "caches"),
        ("MatMulInteger", 10**9, 10**3, "integers"),
        ("QLinearConv", 10**9, 10**3, "integers"),
        ("MatMul", 10**9, 10**3, "too short"),
    ],
)
def test_a_note_says_why_something_is_beyond_the_roof(operator: str, flops: int, moved: int, word: str) -> None:
    found = ortfuse.profile(_model(), rounds=2, remedies=False)
    fast = replace(found.kernels[0], operator=operator, flops=flops, bytes=moved, seconds=4e-5)
    at = at_peaks(replace(found, kernels=(fast,), notes=()), Peaks(1e13, 1e13, "", 1))
    (note,) = at.notes
    assert word in note
    assert not beyond(at)
    assert not at_peaks(at, Peaks(1e15, 1e15, "", 1)).notes, "what is no longer true is not told"


def test_a_model_is_timed_in_a_session_of_its_own() -> None:
    found = timing(_model(), {"x": np.zeros((2, 8), np.float32)}, rounds=3, threads=1)
    assert found.rounds == 3
    assert 0 < found.p50_ms <= found.p95_ms
    assert found.throughput > 0
    assert found.session_ms > 0


def test_bottlenecks_name_what_can_be_done() -> None:
    found = ortfuse.profile(BERT, rounds=2, remedies=False, sizes={"sequence": 8})
    found = replace(found, kernels=tuple(replace(one, seconds=1e-4) for one in found.kernels))
    explained = ortfuse.explain(BERT)
    named = {one.description.split(" in ")[0]: one.remedy for one in bottlenecks(found, explained)}
    assert named["attention: 2 sites"] == "`ortfuse optimize` fuses them"
    shares = [one.share for one in bottlenecks(found, explained)]
    assert shares == sorted(shares, reverse=True)
    assert not any("attention" in one.description for one in bottlenecks(found, Explanation((), (), {})))


@pytest.mark.parametrize(
    ("least", "word"),
    [
        (8e-5, "only lower precision"),
        (4e-5, "closer to the peak"),
        (1e-5, "slow at these sizes"),
    ],
)
def test_what_takes_the_time_has_a_remedy_at_any_distance_from_the_peak(least: float, word: str) -> None:
    found = ortfuse.profile(_model(), rounds=2, remedies=False)
    product = replace(found.kernels[0], operator="MatMul", bound="compute", seconds=1e-4, roofline_seconds=least)
    (one,) = [one for one in bottlenecks(replace(found, kernels=(product,))) if one.description.startswith("MatMul")]
    assert word in one.remedy


@pytest.mark.parametrize(("threads", "advised"), [(0, True), (1, False)])
def test_fewer_threads_are_advised_for_brief_products_that_have_several(threads: int, advised: bool) -> None:
    found = ortfuse.profile(_model(), rounds=2, remedies=False)
    product = replace(found.kernels[0], operator="MatMul", bound="compute", seconds=5e-5, roofline_seconds=1e-6)
    (one,) = [
        one
        for one in bottlenecks(replace(found, kernels=(product,), threads=threads))
        if one.description.startswith("MatMul")
    ]
    assert ("--threads 1" in one.remedy) == advised


@pytest.mark.parametrize(
    ("operator", "bound", "least", "word"),
    [
        ("Softmax", "memory", 1e-5, "functions such as exp"),
        ("Erf", "memory", 9e-5, "speed of memory"),
        ("MatMul", "memory", 9e-5, "reads weights once"),
        ("Loop", "", None, "starting its body"),
        ("TopK", "", None, "not known"),
        ("MatMul", "compute", 9e-5, "only lower precision"),
        ("ReorderInput", "memory", 1e-6, "functions such as exp"),
    ],
)
def test_every_operator_with_a_large_part_of_the_time_has_a_row(
    operator: str, bound: str, least: float | None, word: str
) -> None:
    found = ortfuse.profile(_model(), rounds=2, remedies=False)
    one = replace(found.kernels[0], operator=operator, bound=bound, seconds=1e-3, roofline_seconds=least, origin="")
    found = replace(found, kernels=(one, replace(one, seconds=2e-2, operator="Sigmoid")))
    rows = {row.description: row.remedy for row in bottlenecks(found, Explanation((), (), {}))}
    assert any(what.startswith("Sigmoid") for what in rows)
    large = replace(
        found, kernels=(replace(one, seconds=5e-3, roofline_seconds=least and 50 * least), found.kernels[1])
    )
    (remedy,) = [
        row.remedy for row in bottlenecks(large, Explanation((), (), {})) if row.description.startswith(operator)
    ]
    assert word in remedy


def _decayed() -> ir.Model:
    """A model whose weights decayed to almost nothing."""
    model = _model()
    # By its bits: this thread may itself be set to make such numbers zero.
    weights = np.full((8, 8), 713_624, np.uint32).view(np.float32)
    model.graph.initializers["w"].const_value = ir.tensor(weights, name="w")
    return model


def test_denormals_are_named_first_with_the_setting_that_takes_them_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    model, inputs = _decayed(), {"x": np.ones((2, 8), np.float32)}
    measured = ortfuse.profile(model, rounds=2, remedies=False)
    nodes = trace(model, inputs, runs=1, graph=False).nodes

    def traced(*_: Any, settings: dict[str, str], **__: Any) -> Trace:
        asked.append(dict(settings))
        seconds = 1e-4 if settings else 1e-2
        return Trace(tuple(replace(one, seconds=seconds) for one in nodes), 1.0, 1, 0.0, None)

    monkeypatch.setattr("ortfuse.profiling.denormals.trace", traced)
    kernels = tuple(replace(one, seconds=1e-2) for one in measured.kernels)
    slow = cost_of_denormals(model, inputs, kernels, rounds=2, threads=1)
    assert slow is not None
    assert slow.kernels == tuple(one.name for one in kernels)
    assert slow.seconds == pytest.approx(1e-4 * len(kernels))
    assert (slow.source, slow.seen_by) == ("the weights 'w' contain some", "")
    setting = {"session.set_denormal_as_zero": "1"}
    assert asked == [setting, {}, setting], "what is seen once may be something else on the machine"
    profile = replace(measured, kernels=kernels, denormals=slow)
    first = bottlenecks(profile, None)[0]
    assert first.description.startswith("denormals, numbers below 1.2e-38, slow down 1 MatMul")
    assert "session.set_denormal_as_zero" in first.remedy and "no operator of the model can tell" in first.remedy
    assert first.share == pytest.approx(0.99)
    assert not any("threads" in row.remedy for row in bottlenecks(profile, None))


@pytest.mark.parametrize(
    ("fast", "names"),
    [({"a": 1.0, "b": 1.0}, ("a",)), ({"a": 8.0, "b": 1.0}, ()), ({"b": 0.5}, ()), ({"a": 10.0, "b": 0.99}, ())],
)
def test_only_what_takes_much_longer_and_matters_is_slow_for_denormals(
    fast: dict[str, float], names: tuple[str, ...]
) -> None:
    assert slowed({"a": 10.0, "b": 1.0}, fast) == names


def test_the_time_of_operators_adds_up_to_the_latency() -> None:
    found = ortfuse.profile(_model(), rounds=2, remedies=False)
    kernels = tuple(replace(one, seconds=8e-4) for one in found.kernels)
    found = replace(found, kernels=kernels, between_seconds=2e-4 * len(kernels), run_seconds=len(kernels) * 1e-3)
    assert found.scale == pytest.approx(1 / len(kernels)), "the latency is 1 ms"
    assert found.to_dict()["scale"] == found.scale
    console = Console(width=200, record=True)
    show_document(console, profile_document("m", found))
    said = console.export_text()
    assert f"{len(kernels)} kernels take 0.800 ms, and what lies between them 0.200 ms" in said
    assert f"under the profiler a run takes {len(kernels)}.000 ms, a factor of {len(kernels)}.00" in said
    assert replace(found, run_seconds=5e-4).scale == 1.0


def test_no_more_is_reached_than_what_a_machine_can_do() -> None:
    found = ortfuse.profile(_model(), rounds=2, remedies=False)
    fast = tuple(replace(one, seconds=1e-9) for one in found.kernels)
    found = at_peaks(replace(found, kernels=fast), Peaks(1e11, 1e10, "a processor", 1))
    assert found.reached == 1.0
    console = Console(width=200, record=True)
    show_document(console, profile_document("m", found))
    said = console.export_text()
    assert "roofline: at what this machine can do" in said
    assert all(int(number) <= 100 for number in re.findall(r"(\d+)%", said))


def test_handing_over_is_what_a_run_takes_besides_long_kernels() -> None:
    found = ortfuse.profile(_model(), rounds=2, remedies=False)
    long, short = (replace(found.kernels[0], seconds=seconds, bound="") for seconds in (6e-4, 2e-6))
    found = replace(found, kernels=(long, short, short), between_seconds=1e-3, run_seconds=1e-3)
    (one,) = [one for one in bottlenecks(found) if "handing over" in one.description]
    assert one.share == pytest.approx(0.4), "of 1 ms"
    assert one.description.startswith("2 runs of kernels under 10 µs")
    assert "`ortfuse optimize`" in one.remedy
    optimised = replace(found, kernels=(replace(long, rule="gelu.from_erf_form"), short, short))
    assert not any("`ortfuse optimize`" in one.remedy for one in bottlenecks(optimised)), "which it was already"
    scattered = replace(found, between_seconds=9.6e-5)
    (one,) = [one for one in bottlenecks(scattered) if "handing over" in one.description]
    assert one.share == pytest.approx(1e-4 / 7e-4), "what scatters is not handing over"


def test_kernels_that_the_profiler_lengthens_are_still_short() -> None:
    found = ortfuse.profile(_model(), rounds=2, remedies=False)
    kernel = replace(found.kernels[0], seconds=15e-4, bound="", calls=100)
    lengthened = replace(found, kernels=(kernel,), between_seconds=1e-3, run_seconds=2.5e-3)
    (one,) = [one for one in bottlenecks(lengthened) if "handing over" in one.description]
    assert one.description.startswith("100 runs of kernels under 10 µs")
    assert not any("100 runs" in one.description for one in bottlenecks(replace(lengthened, run_seconds=1e-3)))


def test_what_moves_nothing_and_computes_nothing_is_not_limited_by_the_processor() -> None:
    assert Work(0, 0).bound(Peaks(1e11, 1e10, "p", 1)) == "memory"


def test_a_note_says_that_kernels_are_slower_now_and_then_than_their_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    def scattered(*arguments: Any, **options: Any) -> Trace:
        found = trace(*arguments, **options)
        taken = sum(one.seconds for one in found.nodes)
        return replace(found, run_seconds=taken + share * taken, between=0.0)

    monkeypatch.setattr(profile_model, "trace", scattered)
    share = 0.5
    assert any("scatter" in note for note in ortfuse.profile(_model(), rounds=2, remedies=False).notes)
    share = 0.1
    assert not any("scatter" in note for note in ortfuse.profile(_model(), rounds=2, remedies=False).notes)


def test_the_command_writes_what_is_asked_for(tmp_path: Path) -> None:
    report, table = tmp_path / "profile.json", tmp_path / "profile.csv"
    command = [
        "profile",
        BERT,
        "--rounds",
        "2",
        "--threads",
        "1",
        "--no-remedies",
        "--json",
        str(report),
        "--csv",
        str(table),
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    for text in ("By operator", "By module", "at session creation", "p95", "roofline"):
        assert text in result.output
    data = json.loads(report.read_text())
    assert data["schema"] == "ortfuse.profile/2"
    assert set(data["groups"]) == set(VIEWS)
    rows = list(csv.DictReader(table.open()))
    assert [row["name"] for row in rows] == [one["name"] for one in data["kernels"]]
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1)


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from ortfuse.report.profile_files import write_png

    path = tmp_path / "profile.png"
    write_png(path, ortfuse.profile(_model(), rounds=2, remedies=False))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["profile", BERT, "--png", str(tmp_path / "p.png")])
    assert result.exit_code == 2
    assert "ortfuse[plot]" in result.output


def test_a_model_that_no_graph_can_represent_is_told_by_operator(tmp_path: Path) -> None:
    proto = ir.serde.serialize_model(_model())
    proto.ir_version = 0
    onnx.save(proto, tmp_path / "m.onnx")
    found = ortfuse.profile(tmp_path / "m.onnx", rounds=2)
    assert {group.name for group in found.by("operator")} == {"MatMul", "QuickGelu"}
    assert "no graph can represent this model" in found.notes[0]


def test_bodies_of_loops_and_functions_are_told_apart() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "my": 1]> g (int64 n, float[2, 3] x) => (float[2, 3] y) {
        p = my.act(x)  c = Constant<value: tensor = bool {1}>()
        y = Loop(n, c, p)<body = b (int64 i, bool k, float[2, 3] v) => (bool j, float[2, 3] w)
            { j = Identity(k)  r = Relu(v)  w = Exp(r) }> }
        <domain: "my", opset_import: ["": 17]> act (x) => (y) { s = Sin(x) y = Cos(s) }"""
    found = ortfuse.profile(ir.from_onnx_text(text), inputs=[{"n": np.array(3), "x": np.ones((2, 3), np.float32)}], rounds=2,
                            remedies=False)  # fmt: skip
    assert {one.operator: one.calls for one in found.kernels} == {
        "Sin": 1, "Cos": 1, "Loop": 1, "Relu": 3, "Exp": 3, "Identity": 3
    }  # fmt: skip
    assert all(one.nodes for one in found.kernels)


def test_what_is_alike_in_all_layers_is_added_up() -> None:
    found = ortfuse.profile(BERT, rounds=2, remedies=False, sizes={"sequence": 8})
    roles = {group.name: group for group in found.by("role")}
    layers = [group for group in found.by("module") if group.name.endswith("attention.self")]
    assert roles["module.encoder.layer.*.attention.self"].seconds == pytest.approx(sum(one.seconds for one in layers))


def test_percentiles_are_numbers_that_were_measured() -> None:
    numbers = [float(number) for number in range(1, 21)]
    assert percentile(numbers, 0.95) == 19
    assert percentile(numbers[:1], 0.95) == 1
