"""Sweeps: optimise, verify and measure many models, each in a process of its own."""

from ortfuse.sweeping.find_models import find_models
from ortfuse.sweeping.result_row import Row
from ortfuse.sweeping.run_sweep import Sweep, sweep

__all__ = ["Row", "Sweep", "find_models", "sweep"]
