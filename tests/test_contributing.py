"""The files that a contributor meets first can be read by the tools that they are for, and agree with each other."""

from __future__ import annotations

import os
import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest

import ortfuse
from ortfuse.targets import load_target, registry
from ortfuse.version import __version__

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FORMS = sorted(set((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"})


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_the_newest_version_of_the_changelog_is_the_one_of_the_package() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", text, re.MULTILINE)
    assert released[0] == __version__
    assert released == sorted(released, key=lambda version: [*map(int, version.split("."))], reverse=True)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= kinds


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_an_issue_form_has_what_github_requires(form: Path) -> None:
    read_form = yaml.safe_load(form.read_text())
    assert read_form.keys() >= {"name", "description", "body"}
    ids = [part["id"] for part in read_form["body"] if part["type"] != "markdown"]
    assert len(set(ids)) == len(ids) > 0
    for part in read_form["body"]:
        assert part["type"] in ("markdown", "textarea", "input", "dropdown", "checkboxes")
        assert part["attributes"]["value" if part["type"] == "markdown" else "label"]


def test_the_page_of_the_structure_names_modules_that_there_are() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    folders = ("ortfuse", "patterns", "tests", "benchmarks", "docs", "golden")
    files = {file.name for folder in folders for file in (ROOT / folder).rglob("*.py")}
    assert set(re.findall(r"`(?:\w+/)*(\w+\.py)`", text)) <= files
    modules = {file.relative_to(ROOT / "ortfuse").with_suffix("") for file in (ROOT / "ortfuse").rglob("*.py")}
    dotted = {".".join(path.parts) for path in modules}
    packages = {path.parts[0] for path in modules if len(path.parts) > 1}
    named = {name for name in re.findall(r"`(\w+(?:\.\w+)+)`", text) if name.partition(".")[0] in packages}
    gone = {
        name
        for name in named
        if not any(f"{name}.".startswith(f"{one}.") or one.startswith(f"{name}.") for one in dotted)
    }
    assert named
    assert not gone


def test_the_workflow_runs_the_check_on_the_interpreters_of_the_package() -> None:
    workflow = read(".github/workflows/ci.yml")
    assert workflow[True].keys() == {"push", "pull_request"}  # YAML 1.1 reads the key `on` as true
    (job,) = workflow["jobs"].values()
    assert {"run": ".ci/run"} in job["steps"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    known = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert job["strategy"]["matrix"]["python"] == [known[0], known[-1]]
    assert PROJECT["requires-python"] == f">={known[0]}"


def test_hooks_before_a_commit_use_tools_of_the_extra_dev() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    entries = {hook["entry"].split(" --")[0] for hook in repository["hooks"]}
    assert entries == {"ruff check", "ruff format", "lint-imports", "python docs/rule_index.py"}
    installed = " ".join(PROJECT["optional-dependencies"]["dev"])
    assert all(tool in installed for tool in ("ruff", "import-linter", "pre-commit"))


PATH = re.compile(
    r"`((?:ortfuse|patterns|tests|docs|golden|benchmarks|\.ci|\.github)/[\w./-]*|[A-Z]+\.md|pyproject\.toml)`"
)
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
BLOCKS = [textwrap.dedent(block) for block in re.findall(r" +```python\n(.*?)```", GUIDE, re.DOTALL)]


def test_the_guide_names_files_that_exist_but_for_those_that_its_recipes_write() -> None:
    named = {*PATH.findall(GUIDE), *re.findall(r"\]\(([\w./-]+)\)", GUIDE)}
    assert len(named) > 15
    written = set(re.findall(r"Write `([^`]+)`", GUIDE))
    assert len(written) == 2
    assert {path for path in named if not (ROOT / path).exists()} <= written
    commands = re.findall(r"(?:pytest|python) (?:-m )?((?:tests|golden|docs|benchmarks)[\w./]+)", GUIDE)
    files = [ROOT / (path if "/" in path else f"{path.replace('.', '/')}.py") for path in commands]
    assert len(files) > 8
    assert [file for file in files if not file.exists()] == []


def test_the_rule_of_the_guide_closes_the_gap_that_it_shows(tmp_path: Path) -> None:
    gap, rule = BLOCKS[:2]
    names: dict[str, Any] = {}
    exec(compile(gap, "gap.py", "exec"), names)
    file = tmp_path / "absolute.py"
    file.write_text(rule.replace("absolute.", "guide."))  # whoever follows the guide has one of that name
    result = ortfuse.optimize(names["model"], patterns=[file], passes="user")
    assert [node.op_type for node in result.model.graph] == ["Abs"]


def test_the_target_of_the_guide_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (declaration,) = [block for block in BLOCKS if "TargetSpec(" in block]
    monkeypatch.setattr(registry, "_loaded", {})
    (tmp_path / "__init__.py").write_text(declaration.replace("example", "guide").replace("Example", "Guide"))
    assert load_target(tmp_path).session_providers() == ("CPUExecutionProvider",)
