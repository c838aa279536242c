"""Time budget of a verification, and its division among the checks."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

SECONDS = 60.0
"""The usual budget of a verification, in seconds."""

EXPLORING = 0.2
"""The share of it for finding inputs that exercise more of the model."""

EVALUATING = 0.4
"""The share of it for evaluations in float64."""


@dataclass
class Budget:
    """Seconds that may be spent, from now on."""

    seconds: float = math.inf
    started: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        """The seconds that have passed."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        """The seconds that are left; none below 0."""
        return max(self.seconds - self.spent, 0.0)

    def share(self, share: float) -> float:
        """A part of the whole budget, as far as it is left."""
        return min(self.seconds * share, self.left)

    def allows(self, seconds: float, share: float = 1.0) -> bool:
        """Whether something that takes so long ends within a part of the budget."""
        return self.spent + seconds <= self.seconds * share
