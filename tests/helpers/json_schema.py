"""Whether data are what a JSON Schema says, and have no name that it does not describe."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

Schema = dict[str, Any]


def problems(data: Any, schema: Schema) -> list[str]:
    """The paths at which data break the schema of a command, or hold more than it."""
    Draft202012Validator.check_schema(schema)
    for one in (schema, _without_room(schema)):
        found = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(one).iter_errors(data)]
        if found:
            return found
    return []


def _without_room(schema: Schema) -> Schema:
    """The schema of a command, in which the version leaves no room for names that may be added."""
    envelope, content = schema["allOf"]
    kinds = {"anyOf": [_open(one) for one in content["anyOf"]]} if "anyOf" in content else _open(content)
    return {**schema, "allOf": [envelope, kinds], "unevaluatedProperties": False}


def _open(part: Schema) -> Schema:
    """A part that is closed but for itself, since there is an envelope around it."""
    return {name: one for name, one in _closed(part).items() if name != "additionalProperties"}


def _closed(part: Schema) -> Schema:
    made = dict(part)
    for name in ("anyOf", "prefixItems"):
        if name in part:
            made[name] = [_closed(one) for one in part[name]]
    for name in ("items", "additionalProperties"):
        if name in part:
            made[name] = _closed(part[name])
    if "properties" in part:
        made["properties"] = {name: _closed(one) for name, one in part["properties"].items()}
        made["additionalProperties"] = False
    return made
