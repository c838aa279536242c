"""Declare guards that are not needed for soundness, with the reason."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

_REASON = "redundant_because"
_Guard = TypeVar("_Guard", bound=Callable[..., Any])


def redundant(reason: str) -> Callable[[_Guard], _Guard]:
    """Declare that a rule is sound without this guard: `@redundant("the kernel refuses it anyway")`.

    Such a guard decides whether a rewrite is worthwhile, or refuses early what would be refused later anyway. If some rules
    need a guard and others do not, `redundant(reason)(guard)` makes a copy for the latter.
    """

    def declare(guard: _Guard) -> _Guard:
        @functools.wraps(guard)
        def check(match: Any) -> Any:
            return guard(match)

        setattr(check, _REASON, reason)
        return check  # type: ignore[return-value]

    return declare


def redundant_because(guard: Callable[..., Any]) -> str | None:
    """Why a rule is sound without the guard; `None` if the guard is not declared redundant."""
    return getattr(guard, _REASON, None)
