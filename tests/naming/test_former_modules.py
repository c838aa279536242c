"""Modules can be imported by the paths that they had in version 0.1."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.util import find_spec

import pytest

import ortfuse
from ortfuse.naming import RenamedWarning, former_rules_and_passes
from ortfuse.naming.former_modules import _MODULES, _PACKAGES, place_today


@pytest.mark.parametrize("path", sorted([*_PACKAGES, *_MODULES]))
def test_a_former_path_leads_to_a_module_and_is_no_path_of_today(path: str) -> None:
    today = place_today(f"ortfuse.{path}")
    assert today is not None
    assert find_spec(today) is not None
    assert place_today(today) is None
    assert path.split(".")[0] in ortfuse._FORMER
    assert set(_PACKAGES) == ortfuse._FORMER


def test_a_former_path_gives_the_same_module_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(former_rules_and_passes, "_told", set())
    sys.modules.pop("ortfuse.pattern", None)
    sys.modules.pop("ortfuse.pattern.vocabulary", None)
    with pytest.warns(RenamedWarning, match="`ortfuse.pattern` is now called `ortfuse.rewrite.pattern`"):
        old = importlib.import_module("ortfuse.pattern")
    new = importlib.import_module("ortfuse.rewrite.pattern")
    assert old is new
    assert new.__spec__.name == "ortfuse.rewrite.pattern"
    with pytest.warns(RenamedWarning):
        assert importlib.import_module("ortfuse.pattern.vocabulary") is importlib.import_module(
            "ortfuse.rewrite.pattern.pattern_builders"
        )


def test_a_program_of_the_past_runs() -> None:
    program = (
        "from ortfuse.pattern import op, var\nfrom ortfuse.refusal import refuse\nfrom ortfuse.passes import Context\n"
        "from ortfuse.facts.facts import Facts\nimport ortfuse.graph.walk\nfrom ortfuse.execution.compare import Difference\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_a_path_that_no_module_had_is_missing_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'ortfuse\.nowhere'"):
        importlib.import_module("ortfuse.nowhere")
