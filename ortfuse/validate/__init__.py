"""Numerical equivalence of models: inputs, execution, comparison, verdict."""

from ortfuse.validate.compare import Difference
from ortfuse.validate.inputs import Inputs, read_inputs
from ortfuse.validate.runtime import Session
from ortfuse.validate.verify import Experiment, Trial, Verdict, experiments, judge, verify

__all__ = [
    "Difference",
    "Experiment",
    "Inputs",
    "Session",
    "Trial",
    "Verdict",
    "experiments",
    "judge",
    "read_inputs",
    "verify",
]
