"""The settings that a model gains by, as far as that can be said without measuring; `ortfuse tune` measures."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.facts.facts import Facts
from ortfuse.sessions.config import SessionConfig, Setting
from ortfuse.sessions.denormals import first_that_sees, sources

DENORMALS = "session.set_denormal_as_zero"
"""The entry that has numbers below the smallest normal one taken as zero."""


def recommended(model: ir.Model) -> SessionConfig:
    """The settings to open a model with, and why. No setting changes a result by more than 1.2e-38 before what follows it.

    What depends on the machine alone, the number of threads, is no part of them: `ortfuse.session` decides that where it runs.
    """
    found = [_denormals(model)]
    settings = tuple(setting for setting in found if setting is not None)
    return SessionConfig(settings, _runtime()) if settings else SessionConfig()


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
