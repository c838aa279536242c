"""As much of JSON Schema as the schemas of this project use."""

from __future__ import annotations

from typing import Any

KINDS = {
    "string": str, "number": int | float, "integer": int, "boolean": bool, "object": dict, "array": list, "null": type(None),
}  # fmt: skip


def problems(data: Any, schema: Any, where: str = "data") -> list[str]:
    """Where data are not what a schema says; a name that the schema does not describe is one, too."""
    if "anyOf" in schema:
        found = [problems(data, one, where) for one in schema["anyOf"]]
        return min(found, key=len) if all(found) else []
    if "allOf" in schema:
        parts = _together(schema["allOf"])
        return min((problems(data, part, where) for part in parts), key=len)
    if "enum" in schema:
        return [] if data in schema["enum"] else [f"{where}: {data!r}"]
    kinds = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", list(KINDS))
    if not any(_is(data, kind) for kind in kinds):
        return [f"{where}: {data!r} is no {kinds}"]
    if isinstance(data, list):
        return _items(data, schema, where)
    return _fields(data, schema, where) if isinstance(data, dict) else []


def _is(data: Any, kind: str) -> bool:
    return isinstance(data, KINDS[kind]) and (kind == "boolean" or not isinstance(data, bool))


def _together(parts: list[Any]) -> list[Any]:
    """An envelope and its content as one object, or as several that there is a choice of."""
    envelope, content = parts
    return [
        {
            "type": "object",
            "required": [*envelope["required"], *one["required"]],
            "properties": {**envelope["properties"], **one["properties"]},
        }
        for one in content.get("anyOf", [content])
    ]


def _items(data: list[Any], schema: Any, where: str) -> list[str]:
    first = schema.get("prefixItems", [])
    kinds = [*first, *[schema.get("items", {})] * (len(data) - len(first))]
    return [
        line
        for number, (one, kind) in enumerate(zip(data, kinds, strict=False))
        for line in problems(one, kind, f"{where}.{number}")
    ]


def _fields(data: dict[str, Any], schema: Any, where: str) -> list[str]:
    known, other = schema.get("properties"), schema.get("additionalProperties", {})
    found = [f"{where}: lacks {name}" for name in schema.get("required", ()) if name not in data]
    for name, one in data.items():
        if known is not None and name not in known and not other:
            found.append(f"{where}: {name} is not described")
        else:
            found += problems(one, (known or {}).get(name, other), f"{where}.{name}")
    return found
