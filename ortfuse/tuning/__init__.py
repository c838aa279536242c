"""Search pass lists, choices of operators, precision and session settings for the fastest model on this machine."""

from ortfuse.tuning.constraints import Constraints, Unmet
from ortfuse.tuning.model_variants import Variants
from ortfuse.tuning.outcome import Point, TuningOutcome
from ortfuse.tuning.search_space import Choice, Space
from ortfuse.tuning.study import Study

__all__ = ["Choice", "Constraints", "Point", "Space", "Study", "TuningOutcome", "Unmet", "Variants"]
