"""Guards without which a rule would be right all the same, and why."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

_REASON = "redundant_because"
_Guard = TypeVar("_Guard", bound=Callable[..., Any])


def redundant(reason: str) -> Callable[[_Guard], _Guard]:
    """Declares of a guard that its rule is sound without it: `@redundant("the kernel refuses it anyway")`.

    Such a guard says what is worth it, or says early what would be refused later. Of a guard that some rules need and others
    do not, `redundant(reason)(guard)` makes one for the others.
    """

    def declare(guard: _Guard) -> _Guard:
        @functools.wraps(guard)
        def check(match: Any) -> Any:
            return guard(match)

        setattr(check, _REASON, reason)
        return check  # type: ignore[return-value]

    return declare


def redundant_because(guard: Callable[..., Any]) -> str | None:
    """Why a rule is sound without the guard, `None` if it is not said to be."""
    return getattr(guard, _REASON, None)
