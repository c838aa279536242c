"""Check that models are numerically equivalent: inputs, execution, comparison, verdict."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortfuse.runtime.comparison import Difference
    from ortfuse.runtime.float64.reference import Reference
    from ortfuse.runtime.inputs.random_inputs import Inputs
    from ortfuse.runtime.inputs.read_input_files import read_inputs
    from ortfuse.runtime.reference_runs import Experiment, experiments
    from ortfuse.runtime.session import Session
    from ortfuse.verification.equivalence import verify
    from ortfuse.verification.sensitivity_verdict import weigh
    from ortfuse.verification.translation_validation import SiteCheck, SiteChecks
    from ortfuse.verification.verdict import Trial, Verdict, judge

_HOMES = {
    "ortfuse.runtime.comparison": "Difference",
    "ortfuse.runtime.float64.reference": "Reference",
    "ortfuse.runtime.inputs.read_input_files": "read_inputs",
    "ortfuse.runtime.inputs.random_inputs": "Inputs",
    "ortfuse.runtime.reference_runs": "Experiment experiments",
    "ortfuse.runtime.session": "Session",
    "ortfuse.verification.equivalence": "verify",
    "ortfuse.verification.translation_validation": "SiteCheck SiteChecks",
    "ortfuse.verification.verdict": "Trial Verdict judge",
    "ortfuse.verification.sensitivity_verdict": "weigh",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Difference",
    "Experiment",
    "Inputs",
    "Reference",
    "Session",
    "SiteCheck",
    "SiteChecks",
    "Trial",
    "Verdict",
    "experiments",
    "judge",
    "read_inputs",
    "verify",
    "weigh",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: most runs of the command line need few of them."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(importlib.import_module(_HOME_OF[name]), name)
    return found
