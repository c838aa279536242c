"""Read dataclasses from untrusted JSON, checking every type."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

T = TypeVar("T")


def record(kind: type[T], data: Any) -> T:
    """An object of a dataclass from the data of `dataclasses.asdict`; lists become tuples where those are declared.

    Raises:
        ValueError: A field is missing, unknown, or holds something else than it declares.
    """
    made: T = _of_dataclass(kind, data, kind.__name__)
    return made


def of_type(kind: Any, data: Any, where: str = "the value") -> Any:
    """Data of a declared type: numbers, texts, lists, tables, dataclasses, and unions of these.

    Raises:
        ValueError: They are of another type.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _of_dataclass(kind, data, where)
    if kind is Any or (kind in (bool, int, str, type(None)) and type(data) is kind):
        return data
    if kind is float and (type(data) is float or (type(data) is int and abs(data) <= sys.float_info.max)):
        return data
    if origin is Literal and data in inner:
        return data
    if origin in (types.UnionType, typing.Union):
        for one in inner:
            try:
                return of_type(one, data, where)
            except ValueError:
                continue
    elif origin is tuple and isinstance(data, list | tuple):
        if inner[-1:] == (...,):
            return tuple(of_type(inner[0], one, where) for one in data)
        if len(data) == len(inner):
            return tuple(of_type(each, one, where) for each, one in zip(inner, data, strict=True))
    elif origin in (list, collections.abc.Sequence) and isinstance(data, list):
        return [of_type(inner[0], one, where) for one in data]
    elif origin in (dict, collections.abc.Mapping) and isinstance(data, dict):
        return {of_type(inner[0], name, where): of_type(inner[1], one, where) for name, one in data.items()}
    raise ValueError(f"{where} is no {getattr(kind, '__name__', kind)}")


def _of_dataclass(kind: Any, data: Any, where: str) -> Any:
    declared = _declared(kind)
    if not isinstance(data, Mapping) or data.keys() - declared.keys():
        raise ValueError(f"{where} has no such fields as it declares")
    found = {name: of_type(declared[name], one, f"{where}.{name}") for name, one in data.items()}
    try:
        return kind(**found)
    except TypeError as error:  # a field without a default is missing
        raise ValueError(f"{where}: {error}") from None


@functools.cache
def _declared(kind: Any) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}
