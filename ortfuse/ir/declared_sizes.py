"""Read and store the user's declarations about input sizes in the metadata of a model.

    same        s54 = s84              two open dimensions are equal; on the right a formula of names may stand
    size_range  sequence = 1:512       an open dimension is within bounds, both included
    fix         sequence = 128         an open dimension is a number

`same` and `fix` leave nothing but the declared shapes; bounds have no place in an ONNX file but the metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

KEY = "ortfuse.sizes"
"""The key of the metadata."""

LARGEST = 2**31 - 1
"""The largest bound of a size."""

Bounds = tuple[int, int]


@dataclass(frozen=True)
class DeclaredSizes:
    """Declarations about the open dimensions of a model's inputs, by name.

    Attributes:
        same: What a dimension equals: another one, or a formula of others.
        size_range: The least and the largest size of a dimension.
        fix: The size that a dimension has.
        shapes: The shape that an input has.
    """

    same: Mapping[str, str] = field(default_factory=dict)
    size_range: Mapping[str, Bounds] = field(default_factory=dict)
    fix: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.same or self.size_range or self.fix or self.shapes)

    def texts(self) -> list[str]:
        """Each declaration as the option that makes it."""
        return [
            *(f"--same {name}={other}" for name, other in self.same.items()),
            *(f"--size-range {name}={low}:{high}" for name, (low, high) in self.size_range.items()),
            *(f"--fix {name}={size}" for name, size in self.fix.items()),
            *(f"--fix {name}={'x'.join(map(str, shape))}" for name, shape in self.shapes.items()),
        ]

    def store(self, model: ir.Model) -> None:
        """Add the declarations to those in a model's metadata; bounds are those of the last one."""
        known = declared_sizes(model)
        data = {
            "same": {**known.same, **self.same},
            "size_range": {name: list(one) for name, one in {**known.size_range, **self.size_range}.items()},
            "fix": {**known.fix, **self.fix},
        }
        model.metadata_props[KEY] = json.dumps({name: table for name, table in data.items() if table})


def declared_sizes(model: ir.Model) -> DeclaredSizes:
    """The declarations in a model's metadata; what is damaged there declares nothing."""
    text = model.metadata_props.get(KEY)
    if text is None:
        return DeclaredSizes()
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return DeclaredSizes()
    tables = {name: _table(data, name) for name in ("same", "size_range", "fix")}
    ranges = {name: (one[0], one[1]) for name, one in tables["size_range"].items() if _is_range(one)}
    return DeclaredSizes(
        {name: one for name, one in tables["same"].items() if isinstance(one, str)},
        ranges,
        {name: one for name, one in tables["fix"].items() if _is_size(one)},
    )


def _table(data: Any, name: str) -> dict[str, Any]:
    found = data.get(name) if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def _is_size(one: object) -> bool:
    return isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= LARGEST


def _is_range(one: Any) -> bool:
    return isinstance(one, list) and len(one) == 2 and all(map(_is_size, one)) and one[0] <= one[1]
