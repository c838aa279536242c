"""Session options as JavaScript has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .find_packages import NodeError

_LEVELS = {"all": "all", "layout": "layout", "extended": "extended", "basic": "basic", "none": "disabled"}

_OPTIONS = {"enable_cpu_mem_arena": "enableCpuMemArena", "enable_mem_pattern": "enableMemPattern"}
"""Session options, and what JavaScript calls them."""


def demand_possible(settings: Any, *, writes_files: bool) -> None:
    """Refuse settings that JavaScript does not have.

    Raises:
        NodeError: There is one.
    """
    if settings.libraries:
        raise NodeError("libraries with custom operators cannot be loaded in Node.js")
    if settings.dump and not writes_files:
        raise NodeError("the package has no files to write the optimised model to")


def js_options(settings: Any, others: Mapping[str, Any], provider: str) -> dict[str, Any]:
    """Return session options as JavaScript has them.

    Args:
        settings: `ortfuse.runtime.session_subprocess.Settings`.
        others: Further settings by the names of the Python package; they have the last word.
        provider: The execution provider in JavaScript.
    """
    found: dict[str, Any] = {
        "executionProviders": [provider],
        "graphOptimizationLevel": _LEVELS[settings.level],
        "logSeverityLevel": 0 if settings.verbose else 4,
        "logVerbosityLevel": 0,
    }
    extra: dict[str, str] = {}
    disabled = list(settings.disabled)
    if settings.profile:
        found |= {"enableProfiling": True, "profileFilePrefix": settings.profile}
    if settings.dump:
        found["optimizedModelFilePath"] = settings.dump
    if settings.lean:
        found |= {"enableCpuMemArena": False, "enableMemPattern": False}
        extra["session.disable_prepacking"] = "1"
    for name, value in others.items():
        if "." in name:
            extra[name] = str(value)
        elif name == "graph_optimization_level":
            found["graphOptimizationLevel"] = _LEVELS[value]
        elif name == "execution_mode":
            found["executionMode"] = value
        elif name == "disabled_optimizers":
            disabled += value
        elif name in _OPTIONS:
            found[_OPTIONS[name]] = bool(value)
        elif name != "providers":
            raise NodeError(f"the session option {name} does not exist in JavaScript")
    if disabled:
        extra["optimization.disable_specified_optimizers"] = ";".join(disabled)
    return {**found, "extra": extra} if extra else found
