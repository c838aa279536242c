"""A graph-rewriting compiler for ONNX models that ONNX Runtime executes.

    import ortfuse
    result = ortfuse.optimize("bert.onnx")
    result.save("bert.opt.onnx")

Public names are imported lazily, on first use, so that `import ortfuse` itself is nearly free.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from ortfuse.io import import_on_use
from ortfuse.version import __version__ as __version__

if TYPE_CHECKING:
    from ortfuse.analysis.facts import Facts
    from ortfuse.api.benchmark import benchmark
    from ortfuse.api.bisect import bisect, bisect_runtime
    from ortfuse.api.compare import diff, verify
    from ortfuse.api.explain import explain, find, inspect
    from ortfuse.api.generator import GeneratorResult, generator
    from ortfuse.api.models_file import ModelsFile
    from ortfuse.api.optimize import optimize
    from ortfuse.api.optimize_for_targets import optimize_for_targets
    from ortfuse.api.profile import profile
    from ortfuse.api.quantize import Lowered, Quantized, lower, quantize
    from ortfuse.api.result import Result, WrongResultError
    from ortfuse.errors import BoundError, OrtfuseError
    from ortfuse.generation.generator import Generator
    from ortfuse.generation.sampling import Sampling
    from ortfuse.interop import (
        as_ir_pass,
        describe_operator,
        pattern_from,
        read_functions,
        register_operators,
        rule_from,
        rule_from_models,
        substitute,
    )
    from ortfuse.io.load_and_save import load, save
    from ortfuse.options import Options
    from ortfuse.pipeline import PassManager, RunReport, register_pass
    from ortfuse.quantization.half import convert
    from ortfuse.rewrite import Exactness, Proof, Rule, RuleTest
    from ortfuse.rewrite.pattern import (
        Match,
        OpBuilder,
        Pattern,
        attr,
        computed,
        const,
        maybe,
        ms,
        op,
        opt,
        rest,
        scalar,
        var,
        variables,
    )
    from ortfuse.runtime.session_settings import SessionConfig, session
    from ortfuse.sweeping import Sweep, sweep
    from ortfuse.targets import Target
    from ortfuse.transforms import Context
    from ortfuse.tuning import Constraints
    from ortfuse.tuning.rule_costs import calibrate, calibrate_session
    from ortfuse.tuning.tune import Tuned, tune

_HOMES = {
    "ortfuse.api.benchmark": "benchmark",
    "ortfuse.api.bisect": "bisect bisect_runtime",
    "ortfuse.api.compare": "diff verify",
    "ortfuse.api.explain": "explain find inspect",
    "ortfuse.api.generator": "GeneratorResult generator",
    "ortfuse.api.optimize": "optimize",
    "ortfuse.api.optimize_for_targets": "optimize_for_targets",
    "ortfuse.generation.generator": "Generator",
    "ortfuse.generation.sampling": "Sampling",
    "ortfuse.io.load_and_save": "load save",
    "ortfuse.tuning.rule_costs": "calibrate calibrate_session",
    "ortfuse.interop": "as_ir_pass describe_operator pattern_from read_functions register_operators rule_from rule_from_models "
    "substitute",
    "ortfuse.errors": "BoundError OrtfuseError",
    "ortfuse.analysis.facts": "Facts",
    "ortfuse.sweeping": "Sweep sweep",
    "ortfuse.api.models_file": "ModelsFile",
    "ortfuse.options": "Options",
    "ortfuse.quantization.half": "convert",
    "ortfuse.transforms": "Context",
    "ortfuse.api.profile": "profile",
    "ortfuse.rewrite.pattern": "Match OpBuilder Pattern attr computed const maybe ms op opt rest scalar var variables",
    "ortfuse.pipeline": "PassManager RunReport register_pass",
    "ortfuse.api.quantize": "Lowered Quantized lower quantize",
    "ortfuse.api.result": "Result WrongResultError",
    "ortfuse.rewrite": "Exactness Proof Rule RuleTest",
    "ortfuse.runtime.session_settings": "SessionConfig session",
    "ortfuse.targets": "Target",
    "ortfuse.tuning": "Constraints",
    "ortfuse.tuning.tune": "Tuned tune",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "BoundError",
    "Constraints",
    "Context",
    "Exactness",
    "Facts",
    "Generator",
    "GeneratorResult",
    "Lowered",
    "Match",
    "ModelsFile",
    "OpBuilder",
    "Options",
    "OrtfuseError",
    "PassManager",
    "Pattern",
    "Proof",
    "Quantized",
    "Result",
    "Rule",
    "RuleTest",
    "RunReport",
    "Sampling",
    "SessionConfig",
    "Sweep",
    "Target",
    "Tuned",
    "WrongResultError",
    "as_ir_pass",
    "attr",
    "benchmark",
    "bisect",
    "bisect_runtime",
    "calibrate",
    "calibrate_session",
    "computed",
    "const",
    "convert",
    "describe_operator",
    "diff",
    "explain",
    "find",
    "generator",
    "inspect",
    "load",
    "lower",
    "maybe",
    "ms",
    "op",
    "opt",
    "optimize",
    "optimize_for_targets",
    "pattern_from",
    "profile",
    "quantize",
    "read_functions",
    "register_operators",
    "register_pass",
    "rest",
    "rule_from",
    "rule_from_models",
    "save",
    "scalar",
    "session",
    "substitute",
    "sweep",
    "tune",
    "var",
    "variables",
    "verify",
]


_FORMER = {
    "assessment", "attempts", "assumptions", "bench", "bisection", "calibration", "children", "conclusion", "difference", "dims",
    "ecosystem", "execution", "explanation", "facts", "fleet", "graph", "integrations", "model", "models_file", "page", "passes",
    "pattern", "precision", "profiled", "proof", "quantized", "refusal", "result", "sessions",
}  # fmt: skip
"""The modules of version 0.1 that have another place today (`ortfuse.naming.former_modules`)."""


class _FormerModules:
    """Find modules by the paths that they had in version 0.1."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        parts = name.split(".", 2)
        if parts[0] != "ortfuse" or len(parts) < 2 or parts[1] not in _FORMER:
            return None
        from ortfuse.naming import former_modules

        return former_modules.find_spec(name)


import_on_use.install()
# In front: the folder of a package that has moved holds its modules, which would be imported a second time.
sys.meta_path.insert(0, _FormerModules)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ortfuse' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
