"""What `ortfuse passes` says of passes, rules, families and pass lists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rule_files import rules
from typer.testing import CliRunner

from ortfuse.cli.app import app
from ortfuse.errors import PipelineError
from ortfuse.pipeline import built_in_lists, load_catalogue, parse, read_list, registry
from ortfuse.pipeline.descriptions import Described, described
from ortfuse.pipeline.steps import Builder

DOCS = Path(__file__).parents[2] / "docs"
LISTS = re.findall(r"```toml\n(.*?)```", (DOCS / "pass-lists.md").read_text(), re.DOTALL)
REGISTERED = '''
from dataclasses import dataclass
from typing import ClassVar

from ortfuse import register_pass


@register_pass
@dataclass(frozen=True)
class DropDropout:
    """Removes Dropout nodes.

    Attributes:
        most: The most nodes that are removed.
    """

    name: ClassVar[str] = "drop_dropout"
    most: int = 10

    def run(self, context):
        return 0
'''


@pytest.fixture(scope="module")
def everything() -> Described:
    return described(load_catalogue(), built_in_lists())


@pytest.fixture
def forgotten() -> Iterator[None]:
    known = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(known)


def test_every_pass_says_what_it_does_and_its_example_can_be_run(everything: Described) -> None:
    builder = Builder(load_catalogue())
    for one in everything.passes:
        assert one.description.endswith(".") or one.description.count("\n"), one.name
        assert builder.build(parse(one.example).items), one.name
        assert all(option.description for option in one.options), one.name


def test_a_pass_is_told_with_its_options(everything: Described) -> None:
    (found,) = everything.of("vectorize_loops").passes
    assert [(option.name, option.type, option.default) for option in found.options] == [
        ("always", "bool", False), ("nonempty", "bool", False),
    ]  # fmt: skip


def test_a_rule_is_told_with_its_pass(everything: Described) -> None:
    found = everything.of("gelu.from_erf_form")
    assert [rule.formula for rule in found.rules] == ["x/2 (1 + erf(x / sqrt 2))"]
    assert [one.name for one in found.passes] == ["fuse.activation"]


def test_families_are_told_by_name_or_as_a_filter(everything: Described) -> None:
    assert {rule.family for rule in everything.of("gelu").rules} == {"gelu"}
    assert everything.of(family="gelu").rules == everything.of("gelu").rules
    assert {rule.family for rule in everything.of("fuse.activation", "swish").rules} == {"swish"}


def test_a_pass_list_is_told_with_the_models_it_suits(everything: Described) -> None:
    (found,) = everything.of("yolo").lists
    assert "without rotations, token ids" in found.condition


@pytest.mark.parametrize(
    ("name", "family", "message"),
    [
        ("foldd", "", "there is no pass, rule, family or pass list 'foldd'; did you mean 'fold'?"),
        ("", "atention", "there is no family of rules 'atention'; did you mean 'attention'?"),
        ("zzzz", "", "there is no pass, rule, family or pass list 'zzzz'; `ortfuse passes` lists all"),
    ],
)
def test_unknown_names_are_said_to_be(everything: Described, name: str, family: str, message: str) -> None:
    with pytest.raises(PipelineError, match=re.escape(message)):
        everything.of(name, family)


@pytest.mark.usefixtures("forgotten")
def test_passes_that_a_file_of_the_user_registers_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(rules("own.neg") + REGISTERED)
    told = CliRunner().invoke(
        app, ["passes", "drop_dropout", "--patterns", str(path), "--json", str(tmp_path / "p.json")]
    )
    assert told.exit_code == 0, told.output
    said = " ".join(told.output.split())
    assert "drop_dropout, a pass, your own: Removes Dropout nodes." in said
    assert "most (int, by default 10): The most nodes that are removed." in said
    assert "drop_dropout{most=4}" in said
    (data,) = json.loads((tmp_path / "p.json").read_text())["passes"]
    assert data["source"] == "user"
    assert "drop_dropout" in CliRunner().invoke(app, ["passes", "--patterns", str(path)]).output


@pytest.mark.parametrize("text", LISTS, ids=range(len(LISTS)))
def test_the_pass_lists_of_the_document_are_whole_files(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert Builder(load_catalogue()).build(read_list(path).pipeline.items)


def test_the_document_has_an_example_of_each_key() -> None:
    for key in ("passes", "description", "reason", "all", "any", "none"):
        assert any(re.search(rf"^{key} = ", text, re.MULTILINE) for text in LISTS), key
