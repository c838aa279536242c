"""A result that is slower than the original is said to be, with the pass or rule at fault, and a faster model is offered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import graphs
import onnx_ir as ir
import pytest
from graphs import operators
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.runtime.bench import Latency
from ortfuse.verification.bisection.bisect_slowdown import is_slower

RULES = """from ortfuse.rewrite.pattern import op, var
from ortfuse.rewrite import Exactness, RuleTest, Rule
x, PASS = var("x"), "fuse.mine"
def rule(name, pattern, made):
    return Rule(name=name, pattern=pattern, replace=made, exactness=Exactness.ROUNDING, source="test",
                test=RuleTest(shapes={"x": "b 8"}))
RULES = [rule("mine.quick", op.Exp(x), op.Tan(x)), rule("mine.slow", op.Abs(x), op.Asinh(x))]
"""
COSTS = {"Asinh": 100.0, "Tan": 0.5}
"""What operators cost, in milliseconds; others cost 1."""


def latency(name: str, ms: float, first: float, noise: float) -> Latency:
    speedup = first / ms
    return Latency(name, ms, ms, ms, 0.0, speedup, (speedup - noise, speedup + noise), 1.0, 1, 1, 1.0)


model = partial(graphs.model, "a = Abs(x) b = Exp(a) y = Neg(b)", "float[2,8] x", "float[2,8] y")


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options of a run whose rules make models slower or faster as `COSTS` has it."""
    noise = 0.01

    def measured(models: Mapping[str, ir.Model], inputs: object, **more: Any) -> list[Latency]:
        times = {name: sum(COSTS.get(node.op_type, 1.0) for node in one.graph) for name, one in models.items()}
        first = next(iter(times.values()))
        return [latency(name, ms, first, noise) for name, ms in times.items()]

    monkeypatch.setattr("ortfuse.runtime.bench.measure", measured)
    (tmp_path / "mine.py").write_text(RULES)
    return {"patterns": tmp_path / "mine.py", "passes": "canonicalize, user", "check_user": False, "bench": True}


def test_the_rule_at_fault_is_found_and_the_model_without_it_offered(options: dict[str, Any]) -> None:
    result = ortfuse.optimize(model(), **options)
    assert operators(result) == ["Asinh", "Tan", "Neg"], "what is offered is not taken unless asked for"
    found = result.slowdown
    assert found is not None
    assert found.culprit == ("fuse.mine", "mine.slow")
    assert found.offered == "the result without fuse.mine, rule mine.slow"
    assert "SLOWER than the original: speedup 0.03" in found.text()
    assert "--fastest takes the result without" in found.text()
    told = result.to_dict()["slowdown"]
    assert (told["pass"], told["rule"], told["applied"]) == ("fuse.mine", "mine.slow", False)
    assert told["speedup_without"] > 1 > told["speedup"]


def test_the_faster_model_is_taken_if_that_is_asked_for(options: dict[str, Any], tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    result = ortfuse.optimize(model(), fastest=True, output=output, **options)
    assert operators(result) == ["Abs", "Tan", "Neg"]
    assert result.slowdown is not None
    assert result.slowdown.applied
    assert [node.op_type for node in ortfuse.load(output).graph] == ["Abs", "Tan", "Neg"]
    assert result.report.log.hits() == {"mine.quick": 1}


def test_a_faster_model_that_is_wrong_is_not_taken(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from ortfuse.api.assess_optimization import Assessment

    class Verdict:
        def __init__(self, ok: bool) -> None:
            self.ok = ok

    right = iter((True, False))
    monkeypatch.setattr(Assessment, "verdict", lambda self, *given, **named: (Verdict(next(right)), "it is wrong"))
    result = ortfuse.optimize(model(), fastest=True, verify="whole", **options)
    assert operators(result) == ["Asinh", "Tan", "Neg"]
    assert any("was not taken: it is wrong" in note for note in result.report.notes)


def test_the_original_is_offered_where_nothing_else_is_faster(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COSTS, "Tan", 50.0)
    result = ortfuse.optimize(model(), fastest=True, **options)
    assert result.slowdown is not None
    assert result.slowdown.offered == "the original"
    assert operators(result) == ["Abs", "Exp", "Neg"]
    assert "the result is the original, which was faster" in result.report.notes


def test_a_result_that_is_as_fast_says_nothing(options: dict[str, Any]) -> None:
    result = ortfuse.optimize(
        graphs.model("a = Exp(x) y = Neg(a)", "float[2,8] x", "float[2,8] y"), fastest=True, **options
    )
    assert result.slowdown is None
    assert result.to_dict()["slowdown"] is None


def test_noise_and_too_few_rounds_are_no_slowdown() -> None:
    assert not is_slower(latency("m", 1.05, 1.0, 0.06))
    assert is_slower(latency("m", 1.05, 1.0, 0.01))
    assert not is_slower(Latency("m", 9.0, 9.0, 9.0, 0.0, 0.1, None, 1.0, 1, 1, 1.0))


def test_the_command_line_says_it_and_takes_it(options: dict[str, Any], tmp_path: Path) -> None:
    ir.save(model(), tmp_path / "m.onnx")
    arguments = ["optimize", str(tmp_path / "m.onnx"), "--patterns", str(options["patterns"]), "--passes",
                 "canonicalize, user", "--no-check-user", "--bench", "--fastest", "--json", str(tmp_path / "r.json")]  # fmt: skip
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 0, found.output
    text = " ".join(found.output.split())
    assert "SLOWER than the original: speedup 0.03" in text
    assert "Taken instead: the result without fuse.mine, rule mine.slow" in text
    assert json.loads((tmp_path / "r.json").read_text())["slowdown"]["applied"] is True
