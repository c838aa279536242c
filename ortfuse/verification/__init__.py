"""Checks that models are numerically equivalent: inputs, execution, comparison, verdict."""

from ortfuse.execution.compare import Difference
from ortfuse.execution.experiments import Experiment, experiments
from ortfuse.execution.input_files import read_inputs
from ortfuse.execution.inputs import Inputs
from ortfuse.execution.reference import Reference
from ortfuse.execution.session import Session
from ortfuse.verification.sites import SiteCheck, SiteChecks
from ortfuse.verification.verdict import Trial, Verdict, judge
from ortfuse.verification.verify import verify
from ortfuse.verification.weigh import weigh

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
