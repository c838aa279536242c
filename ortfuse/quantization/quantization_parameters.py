"""Compute scale and zero point of an 8-bit quantisation grid for a range."""

from __future__ import annotations

import numpy as np

SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""The scale of what is zero, or so small that its own scale would be no normal number."""


def unsigned_grid(low: float, high: float) -> tuple[float, int]:
    """The scale by which a range, with 0, becomes the numbers from 0 to 255, and the number that stands for 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / 255, SMALLEST_SCALE)
    return scale, round(min(max(-low / scale, 0.0), 255.0))
