"""Searches pass lists, choices of operators, precision and session settings for what is fastest on this machine."""

from ortfuse.tuning.constraints import Constraints, Unmet
from ortfuse.tuning.outcome import Point, TuningOutcome
from ortfuse.tuning.space import Choice, Space
from ortfuse.tuning.study import Study
from ortfuse.tuning.variants import Variants

__all__ = ["Choice", "Constraints", "Point", "Space", "Study", "TuningOutcome", "Unmet", "Variants"]
