"""Checks that models are numerically equivalent: inputs, execution, comparison, verdict."""

from ortfuse.runtime.comparison import Difference
from ortfuse.runtime.float64.reference import Reference
from ortfuse.runtime.inputs.files import read_inputs
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.reference_runs import Experiment, experiments
from ortfuse.runtime.session import Session
from ortfuse.verification.equivalence import verify
from ortfuse.verification.translation_validation import SiteCheck, SiteChecks
from ortfuse.verification.verdict import Trial, Verdict, judge
from ortfuse.verification.weigh_differences import weigh

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
