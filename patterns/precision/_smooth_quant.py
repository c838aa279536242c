"""Move outliers of activations into the weight, so that 8 bits are enough for the rest (SmoothQuant).

x W = (x 1/s) (s W)

s are powers of two, so that this alone rounds nothing. Each s is near the square root of the observed magnitude of its column,
relative to the others. A normalisation before takes 1/s into its own scale (pass `precision.cleanup`).
"""

from __future__ import annotations

import numpy as np

from ortfuse.rewrite.pattern import Match, Pattern, computed, op

from ._linear_pattern import size, x
from ._weight_quantization import Array

SOURCE = "arXiv:2211.10438 (SmoothQuant)"

COLUMNS = "columns"
"""How the sizes of columns are asked for (`ortfuse.quantization.calibration`)."""

MOST = 8
"""The largest exponent of a factor, and the negative of the smallest."""


def factors(match: Match) -> Array:
    """The factor of each row of the weight: s."""
    sizes = match.observed_sizes("x", size(match)[0])
    assert sizes is not None
    present = sizes[sizes > 0]
    usual = np.log2(present).mean() if present.size else 0.0
    exponents = np.clip(np.rint((np.log2(np.where(sizes > 0, sizes, 2.0**usual)) - usual) / 2), -MOST, MOST)
    found: Array = np.exp2(exponents).astype(np.float32)
    return found


def reach(match: Match) -> float:
    """The largest size that was seen, divided by the factors."""
    sizes = match.observed_sizes("x", size(match)[0])
    assert sizes is not None
    return float((sizes / factors(match)).max())


smoothed: Pattern = op.Mul(x, computed("1/s", lambda match: 1 / factors(match)))
