"""Numerical equivalence of models: inputs, execution, comparison, verdict."""

from ortfuse.validate.compare import Difference
from ortfuse.validate.experiments import Experiment, experiments
from ortfuse.validate.files import read_inputs
from ortfuse.validate.inputs import Inputs
from ortfuse.validate.reference import Reference
from ortfuse.validate.runtime import Session
from ortfuse.validate.sites import SiteCheck, SiteChecks
from ortfuse.validate.verify import Trial, Verdict, judge, verify

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
]
