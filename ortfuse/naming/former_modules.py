"""Import modules by the paths that they had in version 0.1."""

from __future__ import annotations

import importlib
import importlib.util
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

from ortfuse.naming.former_rules_and_passes import warn_of_former

_PACKAGES = {
    "assessment": "api.assess_optimization",
    "attempts": "api.fallback",
    "assumptions": "analysis.assumptions",
    "bench": "runtime.bench",
    "bisection": "verification.bisection",
    "calibration": "tuning.rule_costs",
    "children": "io.python_subprocess",
    "conclusion": "api.finish",
    "difference": "verification.diff",
    "dims": "ir.dims",
    "ecosystem": "interop",
    "execution": "runtime",
    "explanation": "verification.explanation",
    "facts": "analysis",
    "fleet": "sweeping",
    "graph": "ir",
    "integrations": "interop",
    "model": "io",
    "models_file": "api.models_file",
    "page": "report.html",
    "passes": "transforms",
    "pattern": "rewrite.pattern",
    "precision": "quantization",
    "profiled": "api.profile",
    "proof": "verification.rule_tests",
    "quantized": "api.quantize",
    "refusal": "ir.refusal",
    "result": "api.result",
    "sessions": "runtime.session_settings",
}
"""The packages and modules of version 0.1 within `ortfuse`, each with its place today."""

_MODULES = {
    "bench.inputs": "runtime.bench.typical_benchmark_inputs",
    "bench.sessions": "runtime.bench.session_timing",
    "execution.compare": "runtime.comparison",
    "execution.experiments": "runtime.reference_runs",
    "execution.inputs": "runtime.inputs.random_inputs",
    "execution.reference": "runtime.float64.reference",
    "facts.transfer": "analysis.transfer",
    "facts.values": "analysis.ranges",
    "model.io": "io.load_and_save",
    "passes.building": "transforms.node_builder",
    "pattern.operators": "analysis.node_parameters",
    "pattern.vocabulary": "rewrite.pattern.pattern_builders",
    "pattern.result": "rewrite.pattern.match_result",
    "precision.rungs": "quantization.quantization_sites",
    "precision.stated": "quantization.error_bound_metadata",
    "proof.build": "verification.rule_tests.build_instances",
    "proof.prove": "verification.rule_tests.rule_test_runner",
}
"""Modules whose own name is another one too, as far as programs outside of ortfuse had a use for them."""


def place_today(name: str) -> str | None:
    """Return the path of a module today, given the one that it had; `None` for a path that no module had."""
    parts = name.split(".")
    if parts[0] != "ortfuse" or len(parts) < 2:
        return None
    for length in range(len(parts), 1, -1):
        former = ".".join(parts[1:length])
        today = _MODULES.get(former) or _PACKAGES.get(former)
        if today is not None:
            return ".".join(["ortfuse", today, *parts[length:]])
    return None


def find_spec(name: str) -> ModuleSpec | None:
    """Return how to import a module by its former path, with a warning; `None` for other paths."""
    today = place_today(name)
    if today is None or importlib.util.find_spec(today) is None:
        return None
    # The frames between are those of the import system, which Python leaves out by itself, and the finder of `ortfuse`.
    warn_of_former(name, today, stacklevel=4)
    return ModuleSpec(name, _Alias(today))


class _Alias(Loader):
    """A loader that gives the module of another path."""

    def __init__(self, today: str) -> None:
        self._today = today
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._today)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put that of the former path in its place
