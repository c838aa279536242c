"""Rule tests are taken from the cache if nothing that they depend on has changed, and else they run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rule_cache import FILE, RuleKeys, read
from source_closure import Sources

pytest_plugins = ("pytester",)

FILES = {
    "engine/__init__.py": "HOMES = ['engine.api']",
    "engine/api.py": "",
    "engine/proof.py": "from engine import targets\nfrom engine.facts import shapes\nPROGRAM = here / 'child.py'\n",
    "engine/child.py": "",
    "engine/facts/__init__.py": "",
    "engine/facts/shapes.py": "def f():\n    import_module('engine.lazy')\n",
    "engine/facts/table.json": "{}",
    "engine/targets/__init__.py": "found = import_module(f'engine.targets.{name}')",
    "engine/targets/cpu.py": "",
    "engine/lazy.py": "if TYPE_CHECKING:\n    from engine.cli import app\n",
    "engine/cli.py": "",
    "rules/__init__.py": "",
    "rules/_shared.py": "",
    "rules/conv.py": "from ._shared import (\n    guard,\n)\n",
    "rules/gelu.py": "import engine.proof",
    "tests/test_catalogue.py": "import engine.proof\nimport helper",
    "tests/helpers/helper.py": "",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path.resolve()


def key(tree: Path, rule: str = "conv.fused", **surroundings: str) -> str | None:
    roots = {
        "engine": tree / "engine",
        "engine.rules": tree / "rules",
        "tests": tree / "tests",
        "": tree / "tests/helpers",
    }
    files = {
        "conv.fused": tree / "rules/conv.py",
        "gelu.from_erf_form": tree / "rules/gelu.py",
        "given": tree.parent / "mine.py",
    }
    keys = RuleKeys(Sources(roots, lazy=["engine"]), files, surroundings)
    return keys.key("the test", tree / "tests/test_catalogue.py", rule)


@pytest.mark.parametrize(
    "changed",
    [
        "engine/__init__.py", "engine/proof.py", "engine/child.py", "engine/facts/__init__.py", "engine/facts/shapes.py",
        "engine/facts/table.json", "engine/lazy.py", "engine/targets/cpu.py", "rules/__init__.py", "rules/_shared.py", "rules/conv.py",
        "tests/test_catalogue.py", "tests/helpers/helper.py",
    ],
)  # fmt: skip
def test_a_change_of_rule_engine_or_test_makes_another_key(tree: Path, changed: str) -> None:
    before = key(tree)
    (tree / changed).write_text((tree / changed).read_text() + "\n")
    assert key(tree) != before


@pytest.mark.parametrize("changed", ["engine/api.py", "engine/cli.py", "rules/gelu.py"])
def test_a_change_that_the_rule_cannot_reach_makes_none(tree: Path, changed: str) -> None:
    before = key(tree)
    (tree / changed).write_text("changed = True")
    assert key(tree) == before


def test_another_version_rule_or_test_has_another_key(tree: Path) -> None:
    assert (
        len({key(tree), key(tree, onnxruntime="1.23"), key(tree, onnxruntime="1.24"), key(tree, "gelu.from_erf_form")})
        == 4
    )


def test_a_rule_from_elsewhere_has_no_key(tree: Path) -> None:
    assert key(tree, "given") is None


def test_rules_of_the_catalogue_depend_on_the_engine_and_not_on_reports() -> None:
    keys = RuleKeys.of_the_catalogue()
    sources = keys._sources
    reached = sources.closure(sources.module(Path(__file__).parent / "patterns/test_catalogue.py"))
    folders = {name.split(".")[1] for name in reached if name.startswith("ortfuse.")}
    assert {"ir", "analysis", "rewrite", "targets", "runtime"} <= folders
    assert not folders & {"cli", "report", "tuning", "testing"}


@pytest.mark.slow
def test_no_module_that_a_rule_test_loads_is_left_out() -> None:
    program = (
        "import sys; from ortfuse.pipeline import load_catalogue; from ortfuse.verification.rule_tests import prove;"
        "rule = next(rule for rule in load_catalogue([]).rules() if rule.name == 'clip.relu_of_relu');"
        "assert prove(rule, pairs=0, most_nodes=50).proved;"
        "print(*(name for name in sys.modules if name.startswith('ortfuse')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    keys = RuleKeys.of_the_catalogue()
    sources = keys._sources
    rules = {sources.module(file) for file in keys._files.values()}
    reached = sources.closure(sources.module(Path(__file__).parent / "patterns/test_catalogue.py"), *rules)
    assert {name for name in done.stdout.split() if name in sources.files} <= reached


# Runs of pytest


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """Two rule tests, whose key is the text of a file; one of them fails if there is a file `broken`."""
    pytester.makeconftest("""
        from pathlib import Path
        import pytest
        from rule_cache import RuleCache, pytest_addoption

        def pytest_configure(config):
            config.addinivalue_line("markers", "rule_test: a rule test")
            if not config.getoption("--no-rule-cache"):
                keys = lambda: lambda item: item.name + Path("engine").read_text()
                config.pluginmanager.register(RuleCache(config, keys), "toy cache")
    """)
    pytester.makepyfile("""
        from pathlib import Path
        import pytest

        @pytest.mark.rule_test
        @pytest.mark.parametrize("rule", ["one", "two"])
        def test_rule(rule):
            assert not (rule == "two" and Path("broken").exists())

        def test_other():
            pass
    """)
    pytester.path.joinpath("engine").write_text("1")
    return pytester


Outcomes = Callable[..., tuple[int, int, int]]


@pytest.fixture
def outcomes(project: pytest.Pytester) -> Outcomes:
    """Runs the project, and returns how many tests passed, failed, and were taken from the cache."""

    def run(*options: str) -> tuple[int, int, int]:
        found = project.runpytest_inprocess("-p", "no:ortfuse", *options).parseoutcomes()
        return found.get("passed", 0), found.get("failed", 0), found.get("cached", 0)

    return run


def test_what_passed_is_taken_until_something_changes(project: pytest.Pytester, outcomes: Outcomes) -> None:
    assert outcomes() == (3, 0, 0)
    assert outcomes() == (1, 0, 2)
    assert outcomes("--no-rule-cache") == (3, 0, 0)
    assert outcomes("test_what_passed_is_taken_until_something_changes.py::test_rule") == (2, 0, 0)
    assert outcomes("-n", "1", "-p", "xdist") == (1, 0, 2)
    project.path.joinpath("engine").write_text("2")
    assert outcomes() == (3, 0, 0)
    project.path.joinpath("engine").write_text("1")
    assert outcomes() == (1, 0, 2)


def test_a_failure_is_not_kept(project: pytest.Pytester, outcomes: Outcomes) -> None:
    broken = project.path / "broken"
    broken.touch()
    assert outcomes() == (2, 1, 0)
    assert outcomes() == (1, 1, 1)
    broken.unlink()
    assert outcomes() == (2, 0, 1)
    broken.touch()
    assert outcomes() == (1, 0, 2)
    assert outcomes("test_a_failure_is_not_kept.py::test_rule") == (1, 1, 0)
    assert outcomes() == (1, 1, 1)


def test_the_folder_is_an_option_and_the_report_counts(project: pytest.Pytester) -> None:
    for expected in ("0 taken from the cache*kept, 2 run", "2 taken from the cache*kept, 0 run"):
        result = project.runpytest_inprocess("-p", "no:ortfuse", "--rule-cache", "kept")
        result.stdout.fnmatch_lines([f"*rule tests: {expected}*"])
    assert len(read(project.path / "kept" / FILE)) == 2


def test_a_damaged_cache_is_an_empty_one(project: pytest.Pytester, outcomes: Outcomes) -> None:
    (project.path / "kept").mkdir()
    for damage in ("{", "[]", json.dumps({"test_rule[one]1": None})):
        (project.path / "kept" / FILE).write_text(damage)
        assert sum(outcomes("--rule-cache", "kept")) == 3
