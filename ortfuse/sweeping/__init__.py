"""Many models in one go: optimised, verified and measured, each in a process of its own."""

from ortfuse.sweeping.models import find_models
from ortfuse.sweeping.row import Row
from ortfuse.sweeping.run import Sweep, sweep

__all__ = ["Row", "Sweep", "find_models", "sweep"]
