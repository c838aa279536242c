"""Accept renamed keyword arguments and fields by their former names, with a warning."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ortfuse.naming.former_rules_and_passes import warn_of_former

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type[Any])


def former_arguments(**today: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function accept former names of keyword arguments, given as `former="name of today"`."""

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def called(*args: Any, **given: Any) -> R:
            for former in today.keys() & given.keys():
                name = today[former]
                if name in given:
                    raise TypeError(f"{function.__name__}() got both {name!r} and its former name {former!r}")
                warn_of_former(former, name, stacklevel=3)
                given[name] = given.pop(former)
            return function(*args, **given)

        return called

    return decorated


def former_fields(**today: str) -> Callable[[C], C]:
    """Let a class take and show fields by former names too, given as `former="name of today"`."""

    def decorated(kind: C) -> C:
        kind.__init__ = former_arguments(**today)(kind.__init__)
        for former, name in today.items():
            setattr(kind, former, property(functools.partial(_field, former, name)))
        return kind

    return decorated


def _field(former: str, name: str, owner: object) -> Any:
    warn_of_former(former, name, stacklevel=3)
    return getattr(owner, name)
