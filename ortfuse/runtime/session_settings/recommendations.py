"""Recommend session settings for a model, from its graph and from earlier measurements on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.runtime.current_execution_target import execution_target
from ortfuse.runtime.session_settings.config import SessionConfig, Setting
from ortfuse.runtime.session_settings.find_flushable_denormals import first_that_sees, sources
from ortfuse.runtime.session_settings.settings_cache import remembered
from ortfuse.targets import default_spec

DENORMALS = "session.set_denormal_as_zero"
"""The entry that has numbers below the smallest normal one taken as zero."""


def recommended(model: ir.Model) -> SessionConfig:
    """The settings to open a model with, and why.

    Derived settings change no result by more than 1.2e-38; measured ones (`ortfuse calibrate --session`) changed none
    beyond rounding. The number of threads depends on the machine alone: `ortfuse.session` chooses it where it runs.
    """
    return with_runtime((*_declared(), *derived(model), *remembered(model)))


def derived(model: ir.Model) -> SessionConfig:
    """The settings that follow from the model without measuring."""
    found = _denormals(model) if execution_target().slow_denormals else None
    return with_runtime(() if found is None else (found,))


def _declared() -> Iterator[Setting]:
    """The settings that the target declares for each session, where they are not those of the default target."""
    spec = execution_target()
    if spec.session_providers() != default_spec().session_providers():
        yield Setting("providers", spec.session_providers(), f"models for the target {spec.name} run on them")
    for name, value in spec.session_settings.items():
        yield Setting(name, value, f"the target {spec.name} declares it")


def with_runtime(settings: Sequence[Setting]) -> SessionConfig:
    """Settings that were chosen for the runtime at hand."""
    return SessionConfig(tuple(settings), _runtime()) if settings else SessionConfig()


def _runtime() -> str:
    import onnxruntime  # takes longer than most runs, and most models need none of it

    return str(onnxruntime.__version__)


def _denormals(model: ir.Model) -> Setting | None:
    source = next(sources(model), None)
    if source is None or first_that_sees(model, Facts(model)) is not None:
        return None
    reason = (
        f"numbers below 1.2e-38 take a processor up to 100 times as long; {source}, and no operator of the model can tell them "
        "from zero"
    )
    return Setting(DENORMALS, "1", reason)
