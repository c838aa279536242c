"""Many models in one go: optimised, verified and measured, each in a process of its own."""

from ortfuse.fleet.models import find_models
from ortfuse.fleet.row import Row
from ortfuse.fleet.run import Sweep, sweep

__all__ = ["Row", "Sweep", "find_models", "sweep"]
