"""The package that is built holds the code that is in the repository, and says what it is."""

from __future__ import annotations

import ast
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from ortfuse.version import __version__

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
DATA = PYPROJECT["tool"]["setuptools"]["package-data"]["*"]


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that setup.py gives to setuptools."""
    setuptools = pytest.importorskip("setuptools")
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: given.update(arguments))
    monkeypatch.chdir(ROOT)
    exec(compile((ROOT / "setup.py").read_text(), "setup.py", "exec"), {})
    return given


def folder_of(package: str, package_dir: dict[str, str]) -> Path:
    root = max((name for name in package_dir if package == name or package.startswith(f"{name}.")), key=len)
    return ROOT.joinpath(package_dir[root], *package.removeprefix(root).split("."))


def test_each_folder_of_code_or_data_is_a_package(setup: dict[str, Any]) -> None:
    folders = {folder_of(package, setup["package_dir"]) for package in setup["packages"]}
    files = [file for root in ("ortfuse", "patterns") for file in (ROOT / root).rglob("*") if file.is_file()]
    assert folders >= {file.parent for file in files if file.suffix != ".pyc"}
    assert len(setup["packages"]) == len(set(setup["packages"])) == len(folders)


def test_rules_are_installed_in_ortfuse_patterns(setup: dict[str, Any]) -> None:
    assert folder_of("ortfuse.patterns", setup["package_dir"]) == ROOT / "patterns"
    assert "ortfuse.patterns.attention" in setup["packages"]
    assert not [package for package in setup["packages"] if package.split(".")[0] != "ortfuse"]


def test_each_data_file_is_installed() -> None:
    files = [file for root in ("ortfuse", "patterns") for file in (ROOT / root).rglob("*") if file.is_file()]
    data = [file for file in files if file.suffix not in (".py", ".pyc")]
    assert [file for file in data if not any(fnmatch(file.name, kind) for kind in DATA)] == []
    assert [kind for kind in DATA if not any(fnmatch(file.name, kind) for file in data)] == []


def test_the_version_stands_in_one_file() -> None:
    assert PROJECT["dynamic"] == ["version"]
    module, _, name = PYPROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"].rpartition(".")
    (assigned,) = [
        node
        for node in ast.parse(ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text()).body
        if isinstance(node, ast.Assign)
    ]
    assert ast.unparse(assigned) == f"{name} = {__version__!r}"


def test_the_metadata_name_the_project_alone() -> None:
    assert PROJECT["authors"] == [{"name": "ortfuse contributors"}]
    assert "urls" not in PROJECT
    assert "onnx" in PROJECT["keywords"]
    minimum = PROJECT["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {minimum}" in PROJECT["classifiers"]
    assert not [text for text in PROJECT["classifiers"] if text.startswith("License ::")], (
        "the license is an expression"
    )
    assert (ROOT / PROJECT["readme"]).exists()
    assert [file for file in PROJECT["license-files"] if not (ROOT / file).exists()] == []
