"""The fast tier has tests of every package and every folder, and takes no longer than it may."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest
from source_closure import Sources
from tiers import DURATIONS, OTHERS, fast_cases, read_durations, spread

pytest_plugins = ("pytester",)

TESTS = Path(__file__).parent
ROOT = TESTS.parent
DURATION = read_durations(ROOT / DURATIONS)
BUDGET = 150.0
"""Processor seconds of the fast tier: on two cores, it and its collection take less than 90 seconds."""


@functools.cache
def functions(file: Path) -> dict[str, tuple[bool, int | None]]:
    """The test functions of a file: whether they are marked slow, and the size of their sample."""
    found: dict[str, tuple[bool, int | None]] = {}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = [ast.unparse(mark) for mark in node.decorator_list]
            sample = [
                int(mark.rpartition("(")[2].strip(")")) for mark in marks if mark.startswith("pytest.mark.sample")
            ]
            found[node.name] = ("pytest.mark.slow" in marks, sample[0] if sample else None)
    return found


def fast_functions(file: Path) -> list[str]:
    return [
        name
        for name, (is_slow, sample) in functions(file).items()
        if fast_cases(DURATION, key := f"{file.name}::{name}", DURATION.get(key, (1, 0.0))[0], is_slow, sample)
    ]


FILES = sorted(TESTS.rglob("test_*.py"))


@functools.cache
def fast_files() -> list[Path]:
    return [file for file in FILES if fast_functions(file)]


def test_each_folder_of_tests_is_in_the_fast_tier_with_half_of_its_files_or_more() -> None:
    for folder in {file.parent for file in FILES}:
        files = [file for file in FILES if file.parent == folder]
        fast = [file for file in files if file in fast_files()]
        assert 2 * len(fast) >= len(files) > 0, f"{folder.name}: only {[file.name for file in fast]} have fast tests"


def test_each_package_is_imported_by_a_fast_test() -> None:
    sources = Sources({"ortfuse": ROOT / "ortfuse", "tests": TESTS, "": TESTS / "helpers"}, lazy=["ortfuse"])
    imported = {module for file in fast_files() for module in sources.closure(sources.module(file))}
    packages = {
        name for name, file in sources.files.items() if file.name == "__init__.py" and name.startswith("ortfuse.")
    }
    assert not packages - imported


def test_rules_golden_models_documents_and_the_command_line_are_in_the_fast_tier() -> None:
    for name in (
        "test_catalogue.py", "test_refusals.py", "test_golden.py", "test_cli.py", "test_documented_commands.py", "test_readme.py",
    ):  # fmt: skip
        assert [file for file in fast_files() if file.name == name], f"{name} has no fast test"


def test_recorded_functions_exist() -> None:
    known = {f"{file.name}::{name}" for file in FILES for name in functions(file)} | {OTHERS}
    gone = sorted(DURATION.keys() - known)
    assert 20 * len(gone) < len(DURATION), f"rename or remove in {DURATIONS}, or record them again: {gone}"


def test_the_fast_tier_takes_no_longer_than_it_may() -> None:
    marked = {f"{file.name}::{name}": marks for file in FILES for name, marks in functions(file).items()}
    expected = {
        name: seconds * fast_cases(DURATION, name, cases, *marked.get(name, (False, None))) / cases
        for name, (cases, seconds) in DURATION.items()
        if name != OTHERS
    }
    assert sum(expected.values()) + DURATION[OTHERS][1] < BUDGET


def test_a_function_is_fast_in_as_many_cases_as_its_time_allows() -> None:
    durations = {"t.py::test_slow": (4, 40.0), "t.py::test_long": (100, 2.0)}
    assert fast_cases(durations, "t.py::test_new", 7) == 7
    assert fast_cases(durations, "t.py::test_new", 7, is_slow=True) == 0
    assert fast_cases(durations, "t.py::test_slow", 4) == 0
    assert fast_cases(durations, "t.py::test_slow", 4, sample=2) == 2
    assert fast_cases(durations, "t.py::test_long", 100) == 5


def test_cases_are_spread_over_families() -> None:
    names = ["bert.a", "bert.b", "bert.c", "gpt2_cache.a", "gpt2.b", "resnet"]
    assert [names[place] for place in spread(names, 3)] == ["bert.a", "gpt2_cache.a", "resnet"]
    assert [names[place] for place in spread(names, 1)] == ["bert.a"]
    assert len(set(spread(names, 5))) == 5
    assert spread(names, 9) == [0, 1, 2, 3, 4, 5]
    assert spread([""], 0) == []


def test_a_run_of_the_fast_tier_selects_by_durations_and_marks(pytester: pytest.Pytester) -> None:
    file = pytester.path / DURATIONS
    file.parent.mkdir()
    file.write_text('{"test_sample.py::test_long": [10, 1.0]}')
    pytester.makeconftest("from tiers import pytest_addoption, pytest_collection_modifyitems, pytest_configure")
    pytester.makepyfile(
        test_sample="""
        import pytest

        @pytest.mark.parametrize("number", range(10))
        def test_long(number):
            pass

        @pytest.mark.slow
        def test_slow():
            pass

        @pytest.mark.sample(3)
        @pytest.mark.parametrize("number", range(10))
        def test_sampled(number):
            pass

        def test_new():
            pass
    """
    )
    assert pytester.runpytest_inprocess("-m", "fast").parseoutcomes() == {"passed": 1 + 3 + 1, "deselected": 17}
    assert pytester.runpytest_inprocess("--record-durations").parseoutcomes() == {"passed": 22}
    assert sum(cases for cases, _ in read_durations(file).values()) == 22
