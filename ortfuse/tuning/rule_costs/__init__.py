"""Autotune costs: measure the speedup of each rule on this machine."""

from ortfuse.tuning.rule_costs.calibration import Calibration, Decision
from ortfuse.tuning.rule_costs.measure_rule_costs import calibrate
from ortfuse.tuning.rule_costs.measure_session_settings import Effect, MeasuredSettings, calibrate_session
from ortfuse.tuning.rule_costs.measurement_candidates import Candidate, candidates

__all__ = [
    "Calibration",
    "Candidate",
    "Decision",
    "Effect",
    "MeasuredSettings",
    "calibrate",
    "calibrate_session",
    "candidates",
]
