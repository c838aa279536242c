"""JSON data and schemas of dataclasses follow from the declarations of their fields."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import ortfuse
from ortfuse.cli.json_output import as_data
from ortfuse.serialization import Record, derived, entry, to_data
from ortfuse.serialization.json_schema import schema

if TYPE_CHECKING:
    from ortfuse.runtime.bench.machine_peaks import Peaks

OWN_METHODS = {
    "options/options.py": "Options: only what is not at its default",
    "serialization/dataclass_to_json.py": "Record: the method of all others",
    "tuning/estimate_step_durations.py": "Pace: its fields are private, and the last few of each are kept",
}
"""The modules with a `to_dict` of their own, and why."""


def _names(sizes: Mapping[str, int]) -> list[str]:
    return list(sizes)


@dataclass(frozen=True)
class Part(Record):
    """A part.

    Attributes:
        left: The left
            side.
    """

    left: int
    parts: Sequence[Part] = ()


@dataclass(frozen=True)
class Whole(Record):
    """A whole."""

    file: Path
    error: float | None
    ends: tuple[float, float]
    part: Part = field(metadata=entry(inline=True))
    hidden: object = field(default=None, metadata=entry(omit=True))
    label: str = field(default="", metadata=entry("name"))
    sizes: Mapping[str, int] = field(default_factory=dict, metadata=entry(convert=_names))
    remark: str = field(default="", metadata=entry(optional=True))

    @property
    @derived()
    def ok(self) -> bool:
        """Whether it is ok.

        Not more.
        """
        return True

    @derived("count")
    def counted(self) -> int:
        """The number of sizes."""
        return len(self.sizes)


@dataclass(frozen=True)
class Special(Whole):
    """A record of a class that has another answer to a derived entry."""

    @property
    def ok(self) -> bool:
        return False


def test_data_follow_the_declarations_of_the_fields() -> None:
    whole = Whole(Path("a"), math.inf, (1.0, math.nan), Part(1, (Part(2),)), object(), "b", {"n": 3})
    assert whole.to_dict() == {
        "file": "a", "error": None, "ends": [1.0, None], "left": 1, "parts": [{"left": 2, "parts": []}], "name": "b",
        "sizes": ["n"], "ok": True, "count": 1,
    }  # fmt: skip
    assert (
        Special(Path("a"), 0.0, (0.0, 0.0), Part(1), remark="r").to_dict().items()
        >= {"ok": False, "remark": "r"}.items()
    )
    assert to_data({"a": (Part(1),)}) == {"a": [{"left": 1, "parts": []}]}


def test_the_schema_follows_from_the_same_declarations() -> None:
    made = schema(Whole)
    number = {"type": ["number", "null"]}
    assert set(made["properties"]) - set(made["required"]) == {"remark"}
    assert made["properties"]["error"] == number
    assert made["properties"]["ends"] == {"type": "array", "prefixItems": [number, number]}
    assert made["properties"]["left"] == {"type": "integer", "description": "The left side."}
    assert made["properties"]["ok"] == {"type": "boolean", "description": "Whether it is ok."}
    assert made["properties"]["parts"]["items"]["properties"]["left"]["type"] == "integer"
    assert "hidden" not in made["properties"] and "label" not in made["properties"]


@dataclass(frozen=True)
class Guarded(Record):
    """A record with a field of a class that is imported for type checkers alone."""

    peaks: Peaks | None


def test_what_only_type_checkers_import_is_found() -> None:
    (peaks, nothing) = schema(Guarded)["properties"]["peaks"]["anyOf"]
    assert "bandwidth" in peaks["properties"] and nothing == {"type": "null"}


def test_only_these_modules_put_data_together_by_hand() -> None:
    root = Path(ortfuse.__file__).parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "def to_dict" in (text := path.read_text())
        and any(isinstance(node, ast.FunctionDef) and node.name == "to_dict" for node in ast.walk(ast.parse(text)))
    }
    assert found == set(OWN_METHODS)


def test_a_field_without_a_json_form_is_named_with_what_to_do() -> None:
    @dataclass(frozen=True)
    class Odd:
        turned: complex

    with pytest.raises(TypeError, match=r"Odd\.turned: a field of type complex has no JSON form; use .*entry\(convert"):
        schema(Odd)
    with pytest.raises(TypeError, match=r"Odd\.turned: a field of type complex has no JSON form; use .*entry\(convert"):
        to_data({"parts": [Odd(1j)]})


def test_numbers_of_arrays_are_numbers() -> None:
    data = to_data([np.int64(3), np.float32(0.5), np.float32("nan")])
    assert json.dumps(data) == "[3, 0.5, null]"


def test_the_json_of_a_command_has_no_text_in_place_of_what_json_lacks() -> None:
    with pytest.raises(TypeError, match="complex"):
        as_data("inspect", {"turned": 1j})
