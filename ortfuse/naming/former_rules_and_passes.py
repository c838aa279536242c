"""Resolve former names of rules, families, passes and pass lists.

`former_names.toml` maps each former name to its successor. A name that exists today always means itself: a user's own rule
or pass may have a former name. A former name is warned of once in a process.
"""

from __future__ import annotations

import functools
import tomllib
import warnings
from collections.abc import Container, Iterable, Mapping
from importlib import resources
from typing import Literal, get_args

from ortfuse.errors import OrtfuseError, OrtfuseWarning

Kind = Literal["rules", "families", "passes", "pass_lists"]
"""The kinds of things that have names: the sections of the file."""

FILE = "former_names.toml"

_told: set[tuple[str, str]] = set()
"""The former names that were warned of, each with its successor."""


class RenamedWarning(OrtfuseWarning):
    """A name of the past was used."""


def warn_of_former(name: str, today: str, *, stacklevel: int) -> None:
    """Warn of a former name, once in a process; `stacklevel` counts from this function, as in `warnings.warn`."""
    if (name, today) not in _told:
        _told.add((name, today))
        warnings.warn(f"`{name}` is now called `{today}`", RenamedWarning, stacklevel=stacklevel)


@functools.cache
def former_names() -> Mapping[Kind, Mapping[str, str]]:
    """The successor of each former name by kind; where that was renamed again, its last successor.

    Raises:
        OrtfuseError: The file has another section, or a name that leads back to itself.
    """
    content = tomllib.loads(resources.files("ortfuse.naming").joinpath(FILE).read_text(encoding="utf-8"))
    if other := content.keys() - {*get_args(Kind)}:
        raise OrtfuseError(f"{FILE}: there is no section {sorted(other)[0]!r}")
    return {kind: _resolved(content.get(kind, {})) for kind in get_args(Kind)}


def name_today(name: str, kinds: Iterable[Kind], known: Container[str] = (), *, tell: bool = True) -> str:
    """The name of today for one that may be of the past.

    Args:
        name: The name.
        kinds: What it may be the name of; the first kind that has such a former name counts.
        known: Names that exist today; each means itself.
        tell: Whether to warn of a former name, once in a process.
    """
    if name in known:
        return name
    for kind in kinds:
        if (today := former_names()[kind].get(name)) is not None:
            if tell:
                warn_of_former(name, today, stacklevel=4)
            return today
    return name


def names_today(text: str, kinds: Iterable[Kind], known: Container[str] = ()) -> str:
    """The same for several names in a text, separated by blanks."""
    kinds = tuple(kinds)
    return " ".join(name_today(name, kinds, known) for name in text.split())


def number_by_name(numbers: Mapping[str, int], kind: Kind) -> dict[str, int]:
    """Stored numbers by the names of today; those of names that have become one add up."""
    found: dict[str, int] = {}
    for name, number in numbers.items():
        today = name_today(name, (kind,), tell=False)
        found[today] = found.get(today, 0) + number
    return found


def _resolved(names: Mapping[str, str]) -> dict[str, str]:
    return {name: _last(name, names) for name in names}


def _last(name: str, names: Mapping[str, str]) -> str:
    seen = {name}
    while (following := names.get(name)) is not None:
        if following in seen:
            raise OrtfuseError(f"{FILE}: the name {following!r} leads back to itself")
        seen.add(name := following)
    return name
