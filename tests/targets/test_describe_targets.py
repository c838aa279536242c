"""Tests of `ortfuse targets`: what it says of each target, and the kernel tables that it stores."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ortfuse.cli.app import app
from ortfuse.inspection.describe_targets import describe_targets
from ortfuse.targets import Target, default_spec, resolve_target


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["targets", *arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_the_default_target_comes_first_and_runs_here() -> None:
    first = describe_targets().targets[0]
    assert (first.name, first.is_default, first.runs_here, first.problem) == ("cpu", True, True, "")
    assert (first.releases[0], first.kernels) == ("1.17", Target().table.runtime)
    assert first.operators > 250
    assert "merges_zeros_into_max_pool" in first.known_bugs


def test_the_reason_is_told_where_no_model_runs() -> None:
    absent = replace(default_spec(), name="absent", is_default=False, runs_on=("AbsentExecutionProvider",))
    unnamed = replace(default_spec(), name="unnamed", is_default=False, provider="NoExecutionProvider", runs_on=())
    found = {one.name: one for one in describe_targets([absent, unnamed]).targets}
    assert found["absent"].runs_here is found["unnamed"].runs_here is False
    assert "AbsentExecutionProvider does not start" in found["absent"].problem
    assert "names no provider (runs_on)" in found["unnamed"].problem
    untried = describe_targets([unnamed], run=False).targets[0]
    assert untried.runs_here is None
    assert "has no kernels for 'NoExecutionProvider'" in untried.problem


@pytest.mark.parametrize(("release", "opset"), [((), Target().table.max_opset), (("--runtime", "1.20"), 21)])
def test_a_stored_table_is_a_target(release: tuple[str, ...], opset: int, tmp_path: Path) -> None:
    file = tmp_path / "kernels.json"
    code, text = run("cpu", "--no-run", "--write", str(file), *release)
    assert code == 0
    assert "the kernels of onnxruntime" in text
    assert json.loads(file.read_text())["max_opset"] == opset
    assert Target.from_table(file).table.max_opset == opset


@pytest.mark.parametrize("name", [("cpu",), ()])
def test_the_kernels_of_a_release_are_shown_which_does_not_run_here(name: tuple[str, ...]) -> None:
    code, text = run(*name, "--runtime", "1.20")
    assert code == 0
    assert "1.20.1" in text
    found = describe_targets([resolve_target(None, runtime="1.20")]).targets[0]
    assert found.kernels == resolve_target(None, runtime="1.20").table.runtime
    assert (found.runs_here, found.problem) == (False, f"{found.kernels}: {Target().table.runtime} is here")


def test_one_table_is_written_at_a_time(tmp_path: Path) -> None:
    code, text = run("cpu", "cpu", "--write", str(tmp_path / "k.json"))
    assert code == 2
    assert "one target, not of 2" in text
    assert not list(tmp_path.iterdir())


def test_targets_are_named_one_by_one() -> None:
    code, text = run("cpu,portable")
    assert code == 2
    assert "one by one" in text
    code, text = run("--runtime", "1.20,1.24")
    assert code == 2
    assert "names one release" in text


def test_an_unknown_target_is_answered_with_those_that_there_are() -> None:
    code, text = run("nowhere")
    assert code == 2
    assert "Targets with a folder: coreml, cpu, cuda" in text
