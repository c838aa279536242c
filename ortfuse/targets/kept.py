"""Measurements kept in a file of the user's cache folder, from one run to the next."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def kept(path: Path) -> dict[str, Any]:
    """What the file holds; nothing if it does not exist yet or is damaged."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def keep(path: Path, found: Mapping[str, Any]) -> bool:
    """Add measurements to the file; returns whether it could be written."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps({**kept(path), **found}, indent=1, sort_keys=True) + "\n")
        aside.replace(path)
    except OSError:
        return False
    return True
