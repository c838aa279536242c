"""Merge the options and keyword arguments of a call, and resolve the target that they name."""

from __future__ import annotations

from typing import Unpack

from ortfuse.options import AllOptions, Options
from ortfuse.targets import TargetSpec, default_spec, resolve_target, use_library


def target_spec(options: Options) -> TargetSpec:
    """Return the declaration of the target that options name.

    Raises:
        TargetError: There is no such target.
    """
    return default_spec() if options.target is None else resolve_target(options.target).spec


def effective_options(options: Options | None, **changes: Unpack[AllOptions]) -> Options:
    """Return the options with changes, and register the libraries of custom operators that they name.

    Args:
        options: The options of the call; `None` for those by default.
        **changes: Single options; they override those of `options`.

    Raises:
        OptionError: An option has an invalid value, or two contradict each other.
    """
    found = Options.of(options, **changes)
    for library in found.custom_ops:  # type: ignore[union-attr]
        use_library(library)
    return found
