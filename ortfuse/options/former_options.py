"""Accept former names of options for those of today, with one warning in a process."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ortfuse.errors import OptionError
from ortfuse.naming import warn_of_former

Made = TypeVar("Made")


def with_names_of_today(given: Mapping[str, Any], former: Mapping[str, str]) -> dict[str, Any]:
    """Options by the names of today.

    Args:
        given: Values by name.
        former: The name of today for each former name.

    Raises:
        OptionError: An option has a value under both names.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        today = former.get(name, name)
        if today != name:
            warn_of_former(name, today, stacklevel=4)
            if today in given:
                raise OptionError(today, f"`{name}` is its former name; write one of the two")
        found[today] = value
    return found


def accept_former_names(made: type[Made], former: Mapping[str, str]) -> None:
    """Let the constructor of a class accept former names, and add a property for each."""
    construct: Callable[..., None] = made.__init__

    @functools.wraps(construct)
    def construct_from_former(self: Made, **given: Any) -> None:
        construct(self, **with_names_of_today(given, former))

    made.__init__ = construct_from_former  # type: ignore[method-assign,assignment]
    for name, today in former.items():
        setattr(made, name, property(operator.attrgetter(today)))
