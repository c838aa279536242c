"""JSON Schemas of dataclasses, by the same declarations as their data.

A number may be null: it was not measured, or is not finite.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal

from ortfuse.serialization.json_field_declarations import NoFormError, entries

Schema = dict[str, Any]

PLAIN: Mapping[Any, Schema] = {
    str: {"type": "string"},
    Path: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},
    type(None): {"type": "null"},
    object: {},
    Any: {},
}


def schema(kind: Any, around: Sequence[Any] = ()) -> Schema:
    """Return the schema of a type, of a dataclass, or of a table of names with either.

    Args:
        kind: The type.
        around: The dataclasses that it is part of; one that contains itself is described to the second level.

    Raises:
        TypeError: It is no type that JSON data have.
    """
    if isinstance(kind, dict):
        return closed({name: schema(one, around) for name, one in kind.items()})
    if kind in PLAIN:
        return dict(PLAIN[kind])
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (typing.Union, types.UnionType):
        kinds = [schema(part, around) for part in parts]
        return kinds[0] if float in parts and len(set(parts) - {float, type(None)}) == 0 else {"anyOf": kinds}
    if origin is tuple and ... not in parts:
        return {"type": "array", "prefixItems": [schema(part, around) for part in parts]}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema(parts[1], around)}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": schema(parts[0], around)}
    if is_dataclass(kind):
        return _of_dataclass(kind, around)
    raise NoFormError(getattr(kind, "__name__", str(kind)))


def closed(properties: Mapping[str, Schema], optional: Sequence[str] = ()) -> Schema:
    """Return the schema of an object with these properties, all of them required but the optional ones."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "properties": dict(properties)}


def _of_dataclass(kind: Any, around: Sequence[Any]) -> Schema:
    if list(around).count(kind) > 1:
        return {"type": "object"}
    said = descriptions(kind)
    properties: dict[str, Schema] = {}
    optional: list[str] = []
    for entry in entries(kind):
        try:
            inner = schema(entry.kind(), (*around, kind))
        except NoFormError as error:
            raise error.of_field(kind, entry) from None
        if entry.inline:
            properties.update(inner["properties"])
            optional += inner["properties"].keys() - inner["required"]
            continue
        text = said.get(entry.name, entry.description.partition("\n")[0])
        properties[entry.key] = {**inner, **({"description": text} if text else {})}
        optional += [entry.key] if entry.optional else []
    return closed(properties, optional)


def descriptions(kind: Any) -> dict[str, str]:
    """Return what the docstring of a class says of each of its attributes."""
    part = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2]
    found = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", part, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in found}
