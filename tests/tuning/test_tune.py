"""Tuning from a file to a file, with measurements that are made up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortfuse
from ortfuse.bench import Candidate, SessionLatency
from ortfuse.errors import ConstraintError, OptionError
from ortfuse.sessions import stored_config

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[n,8] x) => (float[n,8] y)
<float[8,8] w = {WEIGHTS}, float half = {0.5}, float one = {1}, float root = {1.4142135}> {
    m = MatMul(x, w) d = Div(m, root) e = Erf(d) a = Add(e, one) h = Mul(m, a) y = Mul(h, half)
}""".replace("WEIGHTS", ", ".join(f"{0.01 * (i % 13) - 0.05}" for i in range(64)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "a.onnx")
    return tmp_path / "a.onnx"


def meter(candidates: Mapping[str, Candidate], inputs: Any, *, rounds: int, threads: int) -> list[SessionLatency]:
    """Models with fewer nodes are faster, and so are sessions without spinning."""
    base = len(onnx.load(next(iter(candidates.values())).path).graph.node)
    found = []
    for name, candidate in candidates.items():
        quick = 1.5 if candidate.settings.get("session.intra_op.allow_spinning") == "0" else 1.0
        speedup = base / len(onnx.load(candidate.path).graph.node) * quick
        found.append(SessionLatency(name, 10 / speedup, 12 / speedup, speedup, None, 5.0, 100.0))
    return found


def test_the_model_its_session_and_its_options_are_written(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.onnx"
    tuned = ortfuse.tune(path, output=target, trials=25, meter=meter)
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
    with pytest.raises(ConstraintError, match="max-memory of 50 MB is missed by 100%: 100 MB"):
        ortfuse.tune(path, output=tmp_path / "b.onnx", trials=3, constraints=limits, meter=meter)
    assert not (tmp_path / "b.onnx").exists()


def test_the_original_comes_back_where_nothing_is_faster(path: Path, tmp_path: Path) -> None:
    def slower(candidates: Mapping[str, Candidate], inputs: Any, **more: Any) -> list[SessionLatency]:
        first, *others = candidates
        return [
            SessionLatency(first, 1, 1, 1, None, 1, 1),
            *(SessionLatency(name, 2, 2, 0.5, None, 1, 1) for name in others),
        ]

    tuned = ortfuse.tune(path, output=tmp_path / "b.onnx", trials=4, meter=slower)
    assert tuned.outcome.best.choice["model"] == "original"
    assert "nothing is faster" in tuned.outcome.notes[0]
    assert len(onnx.load(tmp_path / "b.onnx").graph.node) == len(onnx.load(path).graph.node)
    assert not len(tuned.session)


def test_a_budget_has_to_be_one(path: Path) -> None:
    with pytest.raises(OptionError, match="more than 0"):
        ortfuse.tune(path, budget=0)
