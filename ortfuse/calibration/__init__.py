"""The costs of the machine at hand: what each rule buys here."""

from ortfuse.calibration.candidates import Candidate, candidates
from ortfuse.calibration.run import Calibration, Decision, calibrate
from ortfuse.calibration.settings import Effect, MeasuredSettings, calibrate_session

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
