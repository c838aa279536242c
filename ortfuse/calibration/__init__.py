"""The costs of the machine at hand: what each rule buys here."""

from ortfuse.calibration.candidates import Candidate, candidates
from ortfuse.calibration.run import Calibration, Decision, calibrate

__all__ = ["Calibration", "Candidate", "Decision", "calibrate", "candidates"]
