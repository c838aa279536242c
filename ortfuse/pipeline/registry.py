"""Registry of passes: look passes up by name, and create them from a name with options."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import typing
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, TypeVar, cast

from ortfuse.errors import PipelineError
from ortfuse.pipeline.built_in_passes import BUILT_IN
from ortfuse.pipeline.pipeline_text import Call, OptionValue
from ortfuse.transforms.context import Pass
from ortfuse.transforms.lazily_loaded_pass import DeferredPass
from ortfuse.transforms.onnx_ir_adapter import ForeignPass, foreign_pass

_P = TypeVar("_P")

_OPTION_TYPES: Mapping[type, str] = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}

_registered: dict[str, type[Any] | ForeignPass] = {}

RESERVED = frozenset({"fixpoint", "canonicalize", "auto", "user"})
"""Names that mean something else in a pipeline."""


def register_pass(kind: _P, *, name: str | None = None) -> _P:
    """Register a pass under its `name`; used as a decorator.

    A pass is a frozen dataclass whose fields (`bool`, `int`, `float` or `str`, each with a default) are its options:

        @register_pass
        @dataclass(frozen=True)
        class DropDropout:
            \"\"\"Removes Dropout nodes.\"\"\"

            name: ClassVar[str] = "drop_dropout"

            def run(self, context: Context) -> int: ...

    A second class with the same name replaces the first, so that a file can be reloaded. A pass of onnx_ir, or a rule or set
    of rules of onnxscript, is registered with the name it is to have in pipelines:

        register_pass(onnx_ir.passes.common.IdentityEliminationPass(), name="no_identity")

    Raises:
        PipelineError: The class is not a valid pass, or has the name of a built-in one.
    """
    foreign = foreign_pass(kind, name)
    if foreign is not None:
        _check_name(foreign.name, f"pass {foreign.name}")
        _registered[foreign.name] = foreign
    else:
        _register_class(cast(type[Any], kind))
    return kind


def _check_name(name: str, title: str) -> None:
    if name in BUILT_IN or name in RESERVED:
        raise PipelineError(f"{title}: the name {name!r} is taken by ortfuse itself; choose another")


def _register_class(kind: type[Any]) -> None:
    title = f"pass class {getattr(kind, '__qualname__', kind)}"
    name = getattr(kind, "name", None)
    if not isinstance(name, str) or not dataclasses.is_dataclass(kind) or not callable(getattr(kind, "run", None)):
        raise PipelineError(
            f'{title} must be a dataclass with `name: ClassVar[str] = "..."` and `run(self, context) -> int`'
        )
    _check_name(name, title)
    for field in dataclasses.fields(kind):
        no_default = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if no_default or option_types(kind).get(field.name) not in _OPTION_TYPES:
            raise PipelineError(
                f"{title}: the option {field.name} must be a bool, int, float or str and have a default"
            )
    _registered[name] = kind


def passes() -> dict[str, type[Any] | ForeignPass]:
    """All registered passes by name, the built-in ones first; all are loaded."""
    return {**{name: entry.loaded() for name, entry in BUILT_IN.items()}, **_registered}


def names() -> set[str]:
    """The names of all registered passes."""
    return {*BUILT_IN, *_registered}


@functools.lru_cache(maxsize=128)
def option_types(kind: type[Any]) -> Mapping[str, Any]:
    """The types of the options of a pass class; `None`, which stands for an option that is not given, is no type of its own."""
    hints = typing.get_type_hints(kind)
    return {field.name: _without_none(hints[field.name]) for field in dataclasses.fields(kind)}


def _without_none(hint: Any) -> Any:
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    return kinds[0] if isinstance(hint, UnionType) and len(kinds) == 1 else hint


def make_pass(call: Call) -> Pass:
    """Create the registered pass that `call` names, with its options; one without options is loaded when it has something to do.

    Raises:
        PipelineError: The pass has no such option, or a value has the wrong type.
    """
    entry = BUILT_IN.get(call.name)
    if entry is not None and entry.needs and not call.options:
        return DeferredPass(entry)
    kind = _registered[call.name] if entry is None else entry.loaded()
    if isinstance(kind, ForeignPass):
        checked_options(call, {})
        return kind
    made: Pass = kind(**checked_options(call, option_types(kind)))  # type: ignore[arg-type]
    return made


def checked_options(call: Call, types: Mapping[str, Any]) -> dict[str, OptionValue]:
    """The options of `call`, checked against the names and types in `types`.

    Raises:
        PipelineError: An option is unknown, or has the wrong type.
    """
    for key, value in call.options.items():
        if key not in types:
            known = f"it has {', '.join(types)}" if types else "it has none"
            raise PipelineError(f"{call.name} has no option {key!r}; {known}{suggestion(key, types)}")
        if not _fits(value, types[key]):
            raise PipelineError(f"{call.name}: the option {key} is {_OPTION_TYPES[types[key]]}, not {value!r}")
    return {key: float(value) if types[key] is float else value for key, value in call.options.items()}


def suggestion(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` if a known name is close to this one, else nothing."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _fits(value: OptionValue, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is kind
