"""Stored JSON of version 1 is read with the keys of today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from json_schema import problems

from docs import schemas
from ortfuse.cli.former_json import RENAMED, former_schema, with_keys_of_today
from ortfuse.cli.parsing import COMMANDS

STORED: dict[str, list[dict[str, Any]]] = json.loads((Path(__file__).parent / "version_1.json").read_text())
"""Of each command the forms of version 1, with every key once; texts and numbers are any."""


def _without_enumerations(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: _without_enumerations(one) for name, one in schema.items() if name != "enum"}
    return [_without_enumerations(one) for one in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize("command", COMMANDS)
def test_version_1_with_the_keys_of_today_is_what_the_schema_says(command: str) -> None:
    text = schemas.documents()[schemas.FOLDER / f"{command}.schema.json"]
    schema = _without_enumerations(json.loads(text))
    for stored in STORED.get(command, []):  # none of a command that version 1 did not have
        assert stored["schema"] == former_schema(command)
        assert problems(with_keys_of_today(command, stored), schema) == []


def test_no_key_of_the_past_is_left() -> None:
    for command, names in RENAMED.items():
        for path in names:
            assert any(_has(stored, path.split(".")) for stored in STORED[command]), (command, path)
            *outer, _ = path.split(".")
            today = [with_keys_of_today(command, stored) for stored in STORED[command]]
            assert outer or not any(path in one for one in today), (command, path)


def _has(data: Any, path: list[str]) -> bool:
    if not path:
        return True
    if isinstance(data, list):
        return any(_has(one, path) for one in data)
    if not isinstance(data, dict):
        return False
    return any(_has(one, path[1:]) for name, one in data.items() if path[0] in ("*", name))
