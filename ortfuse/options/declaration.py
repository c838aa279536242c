"""Class `Declaration`: check, help, flags and commands of one option, kept in the metadata of its field.

    seed: int = option(0, whole_number(0), "Seed of the generated inputs.", commands="optimize verify", group="inputs")

From it follow the check of its values, the flags and the help of the commands that take it, and the keys of TOML files. The
keywords of functions (`ortfuse.options.keywords`) and the table in docs/options.md follow by `python docs/options.py`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ortfuse.options.kinds import Kind

Group = Literal["rewriting", "model", "verification", "measurement", "inputs", "result"]

TITLES: Mapping[Group, str] = {
    "result": "Result",
    "rewriting": "Rewriting",
    "model": "Assumptions about the model",
    "verification": "Verification",
    "measurement": "Measurement",
    "inputs": "Inputs",
}
"""The groups of options in the help and in the documents, in order, with their titles."""

_KEY = "declaration"


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """One option.

    Attributes:
        name: The name in Python and in files.
        kind: The kind of its values.
        help: The text of the help and of the documents. Flags in it stand for the options.
        commands: The commands that take it.
        group: The group in which the help shows it.
        flags: The spellings on the command line; empty for what has none.
        flags_of: Spellings in single commands that differ from these.
        former: Former names in Python and files.
        former_flags: Former spellings on the command line.
        more: A text for the documents alone, on what Python and files can have besides.
        example: A value, as a TOML file has it.
        in_files: Whether files can have it.
        of_model: Whether it says what a model needs, and not what a command does: a file of models can have it then.
        instead_of: An option that excludes it: of two tables of options the later one says which counts.
        default: The default, for the documents.
    """

    name: str = ""
    kind: Kind
    help: str
    commands: frozenset[str]
    group: Group
    flags: tuple[str, ...] = ()
    flags_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    former: tuple[str, ...] = ()
    former_flags: tuple[str, ...] = ()
    more: str = ""
    example: str = ""
    in_files: bool = True
    of_model: bool = True
    instead_of: str = ""
    default: Any = None

    def spelled(self, command: str) -> tuple[str, ...]:
        """The flags in a command."""
        return self.flags_of.get(command, self.flags)


def former_names(declared: Mapping[str, Declaration]) -> dict[str, str]:
    """The name of today for each former name."""
    return {former: name for name, one in declared.items() for former in one.former}


def meant(name: str, declared: Mapping[str, Declaration]) -> str | None:
    """Return the option that an unknown name stands for: the one whose flag has that name, else the one with the closest name."""
    flag = "--" + name.replace("_", "-")
    spelt = [
        option for option, one in declared.items() if flag in (*one.flags, *one.former_flags, *_flags_of_commands(one))
    ]
    close = spelt or difflib.get_close_matches(name.replace("-", "_"), declared, n=1)
    return close[0] if close else None


def _flags_of_commands(declared: Declaration) -> list[str]:
    return [flag for flags in declared.flags_of.values() for flag in flags]


def option(
    default: Any,
    kind: Kind,
    text: str,
    *,
    commands: str,
    group: Group,
    flags: str | None = None,
    flags_of: Mapping[str, str] | None = None,
    former: str = "",
    former_flags: str = "",
    **more: Any,
) -> Any:
    """Declare an option; the value of a field of `Options`.

    Args:
        default: The default; a dictionary is copied.
        kind: The kind of its values.
        text: The help.
        commands: The commands that take it, separated by blanks.
        group: The group in which the help shows it.
        flags: The spellings on the command line, separated by blanks; by default one made of its name, and none if empty.
        flags_of: The same for single commands.
        former: Former names, separated by blanks.
        former_flags: Former spellings on the command line, separated by blanks.
        **more: Other attributes of `Declaration`.
    """
    declared = Declaration(
        kind=kind,
        help=text,
        commands=frozenset(commands.split()),
        group=group,
        flags=("",) if flags is None else tuple(flags.split()),
        flags_of={command: tuple(names.split()) for command, names in (flags_of or {}).items()},
        former=tuple(former.split()),
        former_flags=tuple(former_flags.split()),
        default=default,
        **more,
    )
    metadata = {_KEY: declared}
    if isinstance(default, dict):
        return field(default_factory=functools.partial(dict, default), metadata=metadata)
    return field(default=default, metadata=metadata)


@functools.cache
def declarations_of(options: type[Any]) -> Mapping[str, Declaration]:
    """The declarations of a class of options by name, in the order of its fields."""
    return {one.name: one for one in _named(options)}


def _named(options: type[Any]) -> Iterator[Declaration]:
    for one in dataclasses.fields(options):
        declared: Declaration = one.metadata[_KEY]
        flags = (f"--{one.name.replace('_', '-')}",) if declared.flags == ("",) else declared.flags
        yield dataclasses.replace(declared, name=one.name, flags=flags)
