"""What the README shows works as written."""

from __future__ import annotations

import re
from pathlib import Path

import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = (ROOT / "docs" / "command-line.md").read_text()
PYTHON = (ROOT / "docs" / "python.md").read_text()
RULE = (ROOT / "docs" / "first-rule.md").read_text()


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_python_examples_run_and_print_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "golden").symlink_to(ROOT / "golden")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in (*blocks(README), *blocks(PYTHON)):
        exec(compile(block, "README.md", "exec"), names)
        said = capsys.readouterr().out
        for promised in re.findall(r"print\(.*\)  # (\{.*\})\n", block):
            assert promised in said
    assert (tmp_path / "bert.opt.onnx").exists()
    assert (tmp_path / "bert.eager.ts.opt.onnx").exists()


def test_the_rule_runs_and_is_proved(tmp_path: Path) -> None:
    file = tmp_path / "my_rules.py"
    (rule,) = blocks(RULE)
    file.write_text(rule)
    assert len(rule.splitlines()) <= 25
    model = ir.from_onnx_text(
        '<ir_version: 9, opset_import: ["": 18]> g (float[b,8] x) => (float[b,8] y) { s = Sigmoid(x) y = Mul(s, x) }'
    )
    result = ortfuse.optimize(model, patterns=[file])
    assert [node.op_type for node in result.model.graph] == ["QuickGelu"]
    proved = CliRunner().invoke(app, ["test-rules", str(file)])
    assert proved.exit_code == 0, proved.output
    assert "swish.quick_gelu: passed" in proved.output


def test_the_readme_links_to_files_that_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)[^)]*\)", README)
    assert {"docs/command-line.md", "SECURITY.md"} <= set(links)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_readme_shows_two_commands_for_a_fresh_machine() -> None:
    commands = re.findall(r"^    (python3 -m venv .*)$", README, re.MULTILINE)
    steps = [re.findall(r"\.venv/bin/(\w+)", command) for command in commands]
    assert steps == [["pip", "ortfuse"], ["pip", "python"]]


def test_every_command_of_the_table_has_help() -> None:
    for command in re.findall(r"^    ortfuse ([\w-]+)", COMMANDS, re.MULTILINE):
        result = CliRunner().invoke(app, [command, "--help"])
        assert result.exit_code == 0
        assert "Usage" in result.output
