from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from crashing import runtime_that

from ortfuse.pipeline import PassManager, RunReport
from ortfuse.runtime.bench import SiteMeter

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
agraph (float[batch, length, 768] x) => (float[batch, length, 768] y) {
    root = Constant<value = float {1.4142135}>() one = Constant<value = float {1.0}>() half = Constant<value = float {0.5}>()
    scaled = Div(x, root) e = Erf(scaled) s = Add(e, one) p = Mul(x, s) y = Mul(p, half)
}"""


def _model() -> ir.Model:
    return ir.serde.deserialize_model(onnx.parser.parse_model(TEXT))


def _optimised(cache: Path | None, **sizes: int) -> tuple[RunReport, SiteMeter]:
    model = _model()
    meter = SiteMeter.for_model(model, sizes, cache=cache)
    return PassManager("canonicalize, fuse.activation").run(model, meter=meter), meter


def test_a_site_is_measured_at_the_sizes_of_the_model(tmp_path: Path) -> None:
    report, _ = _optimised(tmp_path / "costs.json", length=40)
    choice = next(choice for choice in report.choices if choice.rule == "gelu.from_erf_form")
    assert choice.estimate is not None
    assert (choice.estimate.sizes, choice.estimate.source) == ("x 1x40x768", "measured here")
    assert choice.estimate.speedup > 0


def test_what_was_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "of" / "costs.json"
    _optimised(path)
    known = json.loads(path.read_text())
    assert known

    def again(self: Any, *parts: Any) -> float:
        raise AssertionError("this was measured before")

    monkeypatch.setattr(SiteMeter, "_speedup", again)
    report, _ = _optimised(path)
    assert any(choice.rule == "gelu.from_erf_form" for choice in report.choices)
    report, _ = _optimised(path, length=41)
    assert any("this was measured before" in note for note in report.failures)


def test_a_cache_that_cannot_be_used_costs_nothing_but_time(tmp_path: Path) -> None:
    damaged = tmp_path / "costs.json"
    damaged.write_text("{")
    assert _optimised(damaged)[0].choices
    assert json.loads(damaged.read_text())
    report, meter = _optimised(damaged / "below a file")
    assert report.choices
    assert meter.cache is None


def test_what_cannot_be_run_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortfuse.runtime.bench.rewrite_timing.attempt", lambda *parts: (None, "nothing runs"))
    report, _ = _optimised(None)
    assert all(choice.estimate is None or choice.estimate.source != "measured here" for choice in report.choices)
    assert report.families() == {"gelu": 1}


def test_a_rewrite_on_which_the_runtime_crashes_is_never_worth_it() -> None:
    with runtime_that("run", "Gelu"):
        report, _ = _optimised(None)
    assert report.families() == {}
    choices = [choice for choice in report.choices if choice.rule == "gelu.from_erf_form"]
    assert choices
    assert not any(choice.applied for choice in choices)
    assert all("the runtime crashes on it" in str(choice.estimate) for choice in choices)
