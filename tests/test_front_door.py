"""One way in: the command line and Python call the same function, and a model comes to the rewriter by a short way."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import ortfuse
from ortfuse.api import optimize
from ortfuse.cli import optimize as optimize_command
from ortfuse.cli.app import app
from ortfuse.options import Options
from ortfuse.rewrite import Rewriter, Rule

BERT = Path(__file__).parents[1] / "golden" / "models" / "bert.sdpa.ts.onnx"

WRONG_RULE = """
from ortfuse.rewrite.pattern import op, var
from ortfuse.rewrite import Exactness, RuleTest, Rule

x = var("x")
RULES = [
    Rule(name="wrong.tanh", pattern=op.Tanh(x), replace=op.Sigmoid(x), exactness=Exactness.ROUNDING, source="none",
         test=RuleTest(shapes={"x": "b 3"})),
]
"""


def test_from_the_command_to_the_rewriter_a_model_passes_few_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: set[tuple[str, ...]] = set()
    run = Rewriter.run

    def seen(self: Rewriter, rules: Iterable[Rule]) -> int:
        frame, way = sys._getframe(1), ["Rewriter.run"]
        while frame is not None and frame.f_code is not optimize_command.optimize.__code__:
            if frame.f_globals["__name__"].startswith("ortfuse."):
                way.append(frame.f_code.co_qualname)
            frame = frame.f_back  # type: ignore[assignment]
        assert frame is not None
        ways.add(("cli.optimize", *reversed(way)))
        return run(self, rules)

    monkeypatch.setattr(Rewriter, "run", seen)
    assert CliRunner().invoke(app, ["optimize", str(BERT), "--verify=sites"]).exit_code == 0
    passes = ("Attempts.run", "PassManager.run", "run_pass", "RulePass.run", "Rewriter.run")
    # the command with its options parsed, itself, for one target, the function, and that with models executed for the target
    way = ("cli.optimize", "optimize", "_for_target", "optimize", "_optimized", *passes)
    assert ways == {way}


def test_the_commands_call_the_public_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, tuple[Any, ...]]] = []

    class CalledError(ortfuse.OrtfuseError):
        pass

    for name in ("optimize", "verify", "bisect", "bisect_runtime", "explain", "benchmark"):

        def call(*arguments: Any, name: str = name, **keywords: Any) -> None:
            calls.append((name, arguments))
            raise CalledError(name)

        monkeypatch.setattr(ortfuse, name, call)
    config = tmp_path / "ortfuse.toml"
    config.write_text('level = "basic"\nseed = 1\napproximate = true\nbench = true\n')
    for command in (
        ["optimize", "m", "--config", str(config), "--seed", "2", "--passes", "fold", "--no-bench", "-o", "o", "--force", "gelu=none"],
        ["verify", "a", "b", "--tolerance", "0.1"],
        ["bisect", "m", "--max-opset", "17"],
        ["bisect", "m", "--runtime"],
        ["explain", "m", "--rule", "gelu"],
        ["bench", "m", "m", "--rounds", "3", "--size", "s=8"],
    ):  # fmt: skip
        assert CliRunner().invoke(app, command).exit_code == 2
    m = Path("m")
    options = Options(passes="fold", seed=2, approximate=True, output=Path("o"), force={"gelu": "none"})
    assert calls == [
        ("optimize", (m, options)),
        ("verify", (Path("a"), Path("b"), Options(tolerance=0.1, verify="whole"))),
        ("bisect", (m, Options(max_opset=17))),
        ("bisect_runtime", (m, Options())),
        ("explain", (m, ["gelu"], Options())),
        ("benchmark", ({"m": m, "m (2)": m}, Options(rounds=3, sizes={"s": 8}, bench=True))),
    ]


def test_what_contradicts_a_flag_is_said_in_flags(tmp_path: Path) -> None:
    config = tmp_path / "ortfuse.toml"
    config.write_text("sizes = { sequence = 8 }\n")
    result = CliRunner().invoke(app, ["optimize", str(BERT), "--config", str(config)])
    assert result.exit_code == 2
    assert (
        "error: --size: sequence=8 is a size for measuring or verifying; add --bench, --measure or --verify"
        in result.output
    )
    config.write_text("max_opst = 17\n")
    result = CliRunner().invoke(app, ["optimize", str(BERT), "--config", str(config)])
    assert "there is no option 'max_opst'; did you mean max_opset?" in result.output


def test_a_result_says_everything_as_data(tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    told: list[str] = []
    result = ortfuse.optimize(
        onnx.load(BERT), verify="whole", bench=True, explain=["gelu"], rounds=2, output=output, progress=told.append
    )
    assert isinstance(result.model, onnx.ModelProto)
    assert result.ok
    assert result.written == output
    assert ir.load(output).graph.num_nodes() == result.report.after.nodes
    assert {"optimising", "verifying", "measuring", f"writing {output}"} <= set(told)
    data = json.loads(json.dumps(result.to_dict()))
    assert data["ok"] is True
    assert data["verdict"]["ok"] is True
    assert data["options"]["verify"] == "whole"
    assert data["written"] == str(output)
    assert {row["rule"] for row in data["explanation"]["fused"]} == {"gelu.add_bias_to_bias_gelu"}
    assert data["latency"][0]["name"] == "original"
    assert data["latency_sizes"] == "batch=1, sequence=64"
    assert data["sites"] is None
    assert all(seconds > 0 for seconds in data["timings"].values())
    assert set(data["timings"]) == {"load", "optimize", "verify", "bench", "write"}


def test_a_wrong_result_is_raised_and_not_written(tmp_path: Path) -> None:
    rules, output = tmp_path / "wrong.py", tmp_path / "out.onnx"
    rules.write_text(WRONG_RULE)
    with pytest.raises(ortfuse.WrongResultError, match=r"pooler_output.*fuse\.wrong broke it.*not.* written") as caught:
        ortfuse.optimize(BERT, patterns=rules, verify="whole", bench=True, output=output)
    result = caught.value.result
    assert not result.ok
    assert (result.blame, result.written, result.latencies) == ("the pass fuse.wrong broke it", None, None)
    assert isinstance(caught.value, ortfuse.OrtfuseError)
    assert not output.exists()


def test_an_output_that_cannot_be_written_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimize, "taken_in", None)
    with pytest.raises(ortfuse.OrtfuseError, match="the folder none does not exist"):
        ortfuse.optimize(BERT, output="none/out.onnx")
    with pytest.raises(ortfuse.OrtfuseError, match="no rule or family 'attenton'"):
        ortfuse.optimize(BERT, explain=["attenton"])
