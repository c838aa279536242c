"""Convert dataclasses to JSON data, by the declarations of their fields."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortfuse.serialization.json_field_declarations import NoFormError, entries


class Record:
    """A dataclass that is data in a report: `to_dict` follows from its fields (see `entry` and `derived`)."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the data for JSON, without what is declared to be left out; numbers that are not finite are `None`."""
        return _of_dataclass(self)


def to_data(value: Any) -> Any:
    """Return a value as JSON has it: dataclasses as objects, sequences as lists, NaN and infinity as `None`.

    Raises:
        TypeError: JSON has no form for it, or for a field of it.
    """
    if isinstance(value, str | int) or value is None:
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if hasattr(type(value), "__dataclass_fields__"):
        return _of_dataclass(value)
    if isinstance(value, Mapping):
        return {name: to_data(one) for name, one in value.items()}
    if isinstance(value, list | tuple | frozenset | set):
        return [to_data(one) for one in value]
    if isinstance(value, Path):
        return str(value)
    raise NoFormError(type(value).__name__)


def _of_dataclass(record: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    kind: Any = type(record)
    for entry in entries(kind):
        value = entry.value(record)
        if entry.inline:
            found.update(_of_dataclass(value))
        elif not entry.optional or value:
            try:
                found[entry.key] = to_data(value)
            except NoFormError as error:
                raise error.of_field(kind, entry) from None
    return found
