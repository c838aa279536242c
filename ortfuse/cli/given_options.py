"""The options of ortfuse on the command line: parameters of commands made from the declarations, and back."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
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


class Given(dict[str, Any]):
    """The options that stand on the command line, by name; a command has a parameter of this type for all of them."""


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command that has an argument for each option which is declared for a command of its name.

    They stand in the place of the parameter of type `Given`, which holds those that are given.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    name = command.__name__
    taken = {one.name: one for one in DECLARATIONS.values() if one.flags and name in one.commands}
    place = next(parameter for parameter, hint in hints.items() if hint is Given)

    @functools.wraps(command)
    def parsed(**values: Any) -> None:
        given = {option: values.pop(option) for option in taken}
        command(**values, **{place: Given({one: value for one, value in given.items() if value not in (None, [])})})

    del parsed.__wrapped__
    annotations = dict(_annotations(command, hints, place, taken.values(), name))
    parsed.__annotations__ = {**annotations, "return": None}
    parsed.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                one, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=_default(command, one, taken)
            )
            for one, kind in annotations.items()
        ]
    )
    return parsed


def _annotations(
    command: Callable[..., None], hints: Mapping[str, Any], place: str, taken: typing.Iterable[Declaration], name: str
) -> Iterator[tuple[str, Any]]:
    for parameter in inspect.signature(command).parameters:
        if parameter != place:
            yield parameter, hints[parameter]
            continue
        for one in taken:
            yield one.name, Annotated[_TYPES[one.kind.shape], _as_argument(one, name)]


def _default(command: Callable[..., None], name: str, taken: Mapping[str, Declaration]) -> Any:
    return None if name in taken else inspect.signature(command).parameters[name].default


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
        show_default=False,
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


def options(given: Given, config: Path | None = None, settings: Settings | None = None, **fixed: Any) -> Options:
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
