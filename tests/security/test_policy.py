"""The page about security: each claim names a test that there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
POLICY = (ROOT / "SECURITY.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", POLICY)


def test_each_test_that_the_page_names_is_there() -> None:
    assert len(NAMED) > 30
    for file in {file for file, _ in NAMED}:
        tests = {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}
        assert {name for where, name in NAMED if where == file} <= tests, file


def test_each_claim_names_a_test() -> None:
    rows = [line for line in POLICY.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 25
    assert not [row for row in rows if not re.search(r"::\w+`", row)]


def test_the_page_is_found_and_gives_no_address() -> None:
    assert "(SECURITY.md)" in (ROOT / "README.md").read_text()
    assert not re.search(r"https?://|@\w", POLICY)
