"""The table of families names rules, passes and tests that exist."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from ortfuse.pipeline import load_catalogue, passes

ROOT = Path(__file__).parents[1]
FAMILIES = tomllib.loads((ROOT / "docs" / "families.toml").read_text())["family"]
RULES = {rule.name for rule in load_catalogue([]).rules()}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family["name"])
def test_a_family_names_rules_passes_and_tests_that_there_are(family: dict[str, object]) -> None:
    wanted: list[str] = family.get("rules", [])  # type: ignore[assignment]
    assert [name for name in wanted if not any(fnmatch(rule, name) for rule in RULES)] == []
    assert not {*family.get("passes", ())} - {*passes()}  # type: ignore[misc]
    tests: list[str] = family.get("tests", [])  # type: ignore[assignment]
    assert [path for path in tests if "def test_" not in (ROOT / path).read_text()] == []
    assert tests or "open" in family
