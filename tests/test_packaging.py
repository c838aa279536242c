"""What is installed is what is in the repository."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_folder_with_code_is_installed() -> None:
    found = set()
    for package, folder in SETUP["package-dir"].items():
        for file in (ROOT / folder).rglob("*.py"):
            found.add(".".join((package, *file.parent.relative_to(ROOT / folder).parts)))
    assert set(SETUP["packages"]) == found
