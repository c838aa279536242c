"""What the guides show works as written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx.parser
import pytest

import ortfuse
from ortfuse.pipeline import load_catalogue, registry
from ortfuse.targets import custom_operators
from ortfuse.verification.rule_tests import prove

DOCS = Path(__file__).parents[1] / "docs"


def blocks(guide: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / guide).read_text(), re.DOTALL)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What the examples register is forgotten."""
    registered, operators = dict(registry._registered), dict(custom_operators._registered)
    yield
    registry._registered.clear()
    registry._registered.update(registered)
    custom_operators._registered.clear()
    custom_operators._registered.update(operators)


@pytest.mark.parametrize("number", range(len(blocks("writing-a-rule.md"))))
def test_the_rules_of_the_guide_are_rule_files_and_are_proved(number: int, tmp_path: Path) -> None:
    file = tmp_path / "my_rules.py"
    file.write_text(blocks("writing-a-rule.md")[number])
    rules = [rule for file in load_catalogue([file]).files if file.source == "user" for rule in file.rules]
    assert rules
    for rule in rules:
        report = prove(rule)
        assert report.proved, report.failures


def test_the_passes_of_the_guide_print_what_the_guide_says(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "guide"}
    for block in blocks("writing-a-pass.md"):
        exec(compile(block, "writing-a-pass.md", "exec", dont_inherit=True), names)
        said = re.findall(r"print\(.*\)  # (.*)", block)
        assert capsys.readouterr().out.splitlines() == said


def test_the_guide_teaches_an_operator() -> None:
    (block,) = blocks("adding-an-operator.md")
    exec(compile(block, "adding-an-operator.md", "exec", dont_inherit=True), {"__name__": "guide"})
    text = """<ir_version: 8, opset_import: ["": 18, "my.domain": 1]> g (float[2, 3] x) => (float[2, 3] y)
        { t = Transpose(x) s = my.domain.Square(t) u = Transpose(s) y = Relu(u) }"""
    optimised = ortfuse.optimize(onnx.parser.parse_model(text)).model
    assert [node.op_type for node in optimised.graph.node] == ["Square"]
