"""Get or set the target whose providers and settings sessions use by default."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ortfuse.targets import TargetSpec, default_spec

_current: ContextVar[TargetSpec | None] = ContextVar("execution target", default=None)


def execution_target() -> TargetSpec:
    """Return the target for which models are executed now."""
    return _current.get() or default_spec()


@contextmanager
def executing_for(spec: TargetSpec) -> Iterator[None]:
    """Execute models for a target within the block; for one that cannot be executed here, on the default target."""
    token = _current.set(spec if spec.runs_on else default_spec())
    try:
        yield
    finally:
        _current.reset(token)
