"""Generate command-line flags from option declarations, and read options from them."""

from __future__ import annotations

import abc
import contextlib
import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ortfuse.errors import OptionError
from ortfuse.options import DECLARATIONS, TITLES, Declaration, Options

if TYPE_CHECKING:
    from ortfuse.api.models_file import Settings

_TYPES: Mapping[str, Any] = {
    "value": str | None,
    "flag": bool | None,
    "path": Path | None,
    "texts": list[str] | None,
    "paths": list[Path] | None,
}
"""The type of an argument by the form of its option, for typer."""

OWN_FLAGS = {"schemes": "--scheme", "outputs": "--judge", "form": "--format"}
"""The flags of commands' own arguments, where these differ from the names of the parameters in Python."""

OWN_FORMER: Mapping[str, Mapping[str, str]] = {
    "quantize": {"--rung": "--scheme"},
    "substitute": {"--unproved": "--untested"},
}
"""The former flags of commands' own arguments, with those of today."""


class Bundle(abc.ABC):
    """The value of several arguments; a command has one parameter of such a type for all of them."""

    @classmethod
    @abc.abstractmethod
    def arguments(cls, command: str) -> Mapping[str, tuple[Any, Any]]:
        """Return the type for typer and the default of each argument of a command, by name."""

    @classmethod
    @abc.abstractmethod
    def opened(cls, command: str, values: Mapping[str, Any]) -> AbstractContextManager[Any]:
        """Make the value from those of the arguments; the command runs within its context."""


class Given(dict[str, Any], Bundle):
    """The options that stand on the command line, by name."""

    @classmethod
    def arguments(cls, command: str) -> Mapping[str, tuple[Any, Any]]:
        """Return each option that is declared for a command."""
        return {
            one.name: (Annotated[_TYPES[one.kind.shape], _as_argument(one, command)], None)
            for one in DECLARATIONS.values()
            if one.flags and command in one.commands
        }

    @classmethod
    def opened(cls, command: str, values: Mapping[str, Any]) -> AbstractContextManager[Given]:
        """Keep those that are given."""
        return contextlib.nullcontext(cls({name: value for name, value in values.items() if value not in (None, [])}))


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command that has the arguments of each bundle in the place of the parameter of that type."""
    hints = typing.get_type_hints(command, include_extras=True)
    bundles: dict[str, type[Bundle]] = {
        parameter: hint for parameter, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Bundle)
    }
    name = command.__name__.replace("_", "-")
    taken = {parameter: kind.arguments(name) for parameter, kind in bundles.items()}

    @functools.wraps(command)
    def parsed(**values: Any) -> None:
        with contextlib.ExitStack() as stack:
            for parameter, kind in bundles.items():
                own = {one: values.pop(one) for one in taken[parameter]}
                values[parameter] = stack.enter_context(kind.opened(name, own))
            command(**values)

    del parsed.__wrapped__
    arguments: dict[str, tuple[Any, Any]] = {}
    for parameter, declared in inspect.signature(command).parameters.items():
        arguments |= taken.get(parameter, {parameter: (hints[parameter], declared.default)})
    parsed.__annotations__ = {**{one: annotation for one, (annotation, _) in arguments.items()}, "return": None}
    parsed.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for one, (annotation, default) in arguments.items()
        ]
    )
    return parsed


def _as_argument(one: Declaration, command: str) -> Any:
    """The declaration of an option for typer."""
    flags = one.spelled(command)
    if one.kind.shape == "flag":
        flags = (f"{flags[0]}/--no-{flags[0].removeprefix('--')}", *flags[1:])
    return typer.Option(
        *flags,
        parser=one.kind.read,
        metavar=one.kind.metavar or None,
        help=f"{one.help} Repeatable." if one.kind.repeated else one.help,
        rich_help_panel=TITLES[one.group],
    )


def with_flags_of_today(command: str, args: list[str]) -> list[str]:
    """The arguments of a command with the flags of today for former ones, of each of which a line says so."""
    former = {
        **OWN_FORMER.get(command, {}),
        **{flag: one.flags[0] for one in DECLARATIONS.values() if command in one.commands for flag in one.former_flags},
    }
    end = args.index("--") if "--" in args else len(args)
    found = [word.partition("=") for word in args[:end]]
    for flag in dict.fromkeys(flag for flag, _, _ in found if flag in former):
        typer.echo(f"warning: {flag} is now called {former[flag]}", err=True)
    return [former.get(flag, flag) + equals + value for flag, equals, value in found] + args[end:]


def options_of(given: Given, config: Path | None = None, settings: Settings | None = None, **fixed: Any) -> Options:
    """The options of the file, overridden by those on the command line.

    Args:
        given: The options on the command line.
        config: A file of options.
        settings: The settings of the model in a file of models, which take precedence over the file of options.
        **fixed: Options that the command itself sets.

    Raises:
        OptionError: An option has an invalid value, or two contradict each other.
    """
    known = Options() if config is None else Options.load(config)
    changes = {name: _collected(name, value) for name, value in {**given, **fixed}.items()}
    if settings is not None:
        return settings.over(known, **changes)
    tables = {name for name in changes if DECLARATIONS[name].kind.collect is not None}
    merged: dict[str, Any] = {name: {**getattr(known, name), **changes[name]} for name in tables}
    return known.with_(**{**changes, **merged})


def _collected(name: str, value: Any) -> Any:
    """A table of the entries that the command line has one by one; other values as they are."""
    collect = DECLARATIONS[name].kind.collect
    return value if collect is None else collect(name, value)


def settings_of(models: Path | None, model: Path) -> Settings | None:
    """The settings of a model in the file given with --models; `None` if none is given.

    Raises:
        OptionError: The file cannot be used, or does not name the model.
    """
    if models is None:
        return None
    from ortfuse.api.models_file import ModelsFile

    return ModelsFile.load(models).demand(model)


def in_flags(error: OptionError) -> str:
    """The message of an error, with options called by their command-line names."""
    text = re.sub("`([a-z_]+)`", lambda found: flag_of(found[1]), error.text)
    return f"{flag_of(error.option)}: {text}"


def flag_of(name: str) -> str:
    """The flag of an option, or of a command's own argument."""
    declared = DECLARATIONS.get(name)
    if declared is not None and declared.flags:
        return declared.flags[0]
    return OWN_FLAGS.get(name) or f"--{name.replace('_', '-')}"
