"""Declarations of the JSON data of a dataclass: its fields, and properties and methods marked as derived."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_DECLARED = "ortfuse.entry"
_MARK = "__ortfuse_key__"
_OPTIONAL = "__ortfuse_optional__"


@dataclass(frozen=True)
class Declaration:
    """The declaration of a field: see `entry` for the fields."""

    key: str = ""
    omit: bool = False
    inline: bool = False
    optional: bool = False
    convert: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class Entry:
    """An entry of the data of a dataclass.

    Attributes:
        key: Its key.
        name: The field, property or method that it is read from.
        inline: Whether the entries of its value stand in its stead.
        optional: Whether it is left out where it is empty.
        convert: The function that makes the value; `None` if it is used as it is.
        annotation: The type of the value, as it is written.
        module: The module in which the type is written.
        is_method: Whether it is read by a call.
        description: Documentation of a derived entry; a field is documented in the docstring of its class.
    """

    key: str
    name: str
    inline: bool
    optional: bool
    convert: Callable[[Any], Any] | None
    annotation: Any
    module: str
    is_method: bool = False
    description: str = ""

    def value(self, record: Any) -> Any:
        """Return the value in a dataclass, before it becomes JSON data."""
        found = getattr(record, self.name)
        if self.is_method:
            found = found()
        return found if self.convert is None else self.convert(found)

    def kind(self) -> Any:
        """Return the type of the value; modules that only type checkers import are imported for it."""
        if not isinstance(self.annotation, str):
            return self.annotation
        return eval(self.annotation, {**_for_type_checkers(self.module), **vars(sys.modules[self.module])})


@functools.cache
def _for_type_checkers(module: str) -> dict[str, Any]:
    """Return what a module imports under `if TYPE_CHECKING:`."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    guarded = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {
        alias.asname or alias.name: getattr(importlib.import_module(line.module), alias.name)
        for block in guarded
        for line in block.body
        if isinstance(line, ast.ImportFrom) and line.module
        for alias in line.names
    }


class NoFormError(TypeError):
    """A type that JSON data do not have."""

    def of_field(self, kind: type[Any], entry: Entry) -> TypeError:
        """Return the error of a field of a dataclass that has this type."""
        return TypeError(
            f"{kind.__name__}.{entry.name}: a field of type {self} has no JSON form; use bool, int, float, str, a list, "
            "a mapping by names or a Record, or convert it by `entry(convert=...)`"
        )


def entry(
    key: str = "",
    *,
    omit: bool = False,
    inline: bool = False,
    optional: bool = False,
    convert: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:
    """Declare the entry of a field, as the `metadata` of `dataclasses.field`.

    Args:
        key: Its key; by default the name of the field.
        omit: Whether it is left out.
        inline: Whether the entries of its value, a dataclass, stand in its stead.
        optional: Whether it is left out where it is empty.
        convert: An annotated function that makes the value.
    """
    return {_DECLARED: Declaration(key, omit, inline, optional, convert)}


def derived(key: str = "", *, optional: bool = False) -> Callable[[F], F]:
    """Mark a method, or the function of a property, as an entry of the data.

    Args:
        key: Its key; by default the name of the function.
        optional: Whether it is left out where it is empty.
    """

    def mark(function: F) -> F:
        setattr(function, _MARK, key or function.__name__)
        setattr(function, _OPTIONAL, optional)
        return function

    return mark


@functools.cache
def entries(kind: type[Any]) -> tuple[Entry, ...]:
    """Return the entries of a dataclass: those of its fields in order, then the derived ones, base classes first."""
    found: dict[str, Entry] = {}
    for field in dataclasses.fields(kind):
        declared: Declaration = field.metadata.get(_DECLARED, Declaration())
        if declared.omit:
            continue
        owner = next(base for base in kind.__mro__ if field.name in inspect.get_annotations(base))
        annotation, module = field.type, owner.__module__
        if declared.convert is not None:
            annotation, module = _result(declared.convert)
        found[field.name] = Entry(
            declared.key or field.name,
            field.name,
            declared.inline,
            declared.optional,
            declared.convert,
            annotation,
            module,
        )
    for base in reversed(kind.__mro__):
        for name, member in vars(base).items():
            function = getattr(member, "fget", None) or getattr(member, "func", None) or member
            if key := getattr(function, _MARK, ""):
                text = function.__doc__ or ""
                optional = getattr(function, _OPTIONAL)
                found[name] = Entry(key, name, False, optional, None, *_result(function), function is member, text)
    return tuple(found.values())


def _result(function: Callable[..., Any]) -> tuple[Any, str]:
    return typing.cast("Any", function).__annotations__["return"], function.__module__
