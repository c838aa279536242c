"""Keep measurements in a file of the user's cache folder, from one run to the next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortfuse.errors import OutputError
from ortfuse.io.atomic_write import write_text
from ortfuse.io.bounded_text_files import json_in


def kept(path: Path) -> dict[str, Any]:
    """The contents of the file; empty if it does not exist yet or is damaged."""
    try:
        content = json_in(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def keep(path: Path, found: Mapping[str, Any]) -> bool:
    """Add measurements to the file; returns whether it could be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({**kept(path), **found}, indent=1, sort_keys=True) + "\n", follow=False)
    except (OSError, OutputError):
        return False
    return True
