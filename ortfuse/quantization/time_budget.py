"""Divide the time budget of a search among its phases."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

RANGES, INTERACTIONS, SITES, KINDS, CHOICES = 0.2, 0.3, 0.6, 0.75, 0.8
"""The shares of the time by which each phase ends.

The phases: observe ranges, time families, measure further sites, measure the first site of each kind, run choices.
"""


class Budget:
    """Seconds from now on.

    Args:
        seconds: How many; `None` for any number.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds, self._started = seconds, time.monotonic()

    def spent(self, share: float = 1.0) -> bool:
        """Whether this share of the seconds has gone by."""
        return self._seconds is not None and time.monotonic() - self._started > share * self._seconds

    def until(self, share: float) -> Callable[[], bool]:
        """Tell whether this share of the seconds has gone by."""
        return lambda: self.spent(share)

    def left(self, share: float) -> float:
        """The seconds until this share of them has gone by; infinite without a limit, and less than 0 afterwards."""
        if self._seconds is None:
            return math.inf
        return share * self._seconds - (time.monotonic() - self._started)
