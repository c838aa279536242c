"""Round weights so that the errors of their rows compensate each other (GPTQ).

Each row of a weight is rounded in turn, and the rows that are not rounded yet compensate its error as well as they can on the
observed inputs (E. Frantar, S. Ashkboos, T. Hoefler, D. Alistarh: GPTQ, ICLR 2023, arXiv:2210.17323). Let U'U be the inverse
of the second moments (`ortfuse.quantization.activation_hessian`), w the next row and w' its rounded values:

    W[j] <- W[j] - U[i, j] (w - w') / U[i, i]      for all rows j behind i

The scales are those of the original weight, so the rows can be rounded in any order: rows with the largest moments come first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.quantization.activation_hessian import Factor

Array = np.ndarray[Any, Any]

ROWS = 32
"""How many rows are rounded before what they lost is taken in by all behind them at once."""

AT_ONCE = 1 << 19
"""How many numbers of a weight are rounded at a time, so that they stay in the caches."""


def compensated(weight: Array, scales: Array, zeros: Array, block: int, most: int, factor: Factor) -> Array:
    """The integers that a weight is rounded to.

    Args:
        weight: The weight [rows, columns], in float32.
        scales: The scales [blocks, columns].
        zeros: What stands for 0, in the type of the integers, of the same shape.
        block: The rows of a block; the last one may have less.
        most: The largest integer; the smallest is 0.
        factor: What is known of what comes in.
    """
    rows, columns = weight.shape
    made, in_block = np.empty((rows, columns), zeros.dtype), factor.order // block
    step = max(1, AT_ONCE // rows)
    for start in range(0, columns, step):
        part = slice(start, start + step)
        each, offset = scales[:, part], zeros[:, part].astype(np.float32)
        made[factor.order, part] = _rounded(weight[factor.order, part], each, offset, in_block, most, factor.upper)
    return made


def _rounded(left: Array, scales: Array, zeros: Array, in_block: Array, most: int, upper: Array) -> Array:
    """The integers of some columns, rows in the order in which they are rounded; `left` is changed."""
    made = np.empty(left.shape, np.float32)
    for first in range(0, len(left), ROWS):
        last = min(first + ROWS, len(left))
        lost = np.empty((last - first, left.shape[1]), np.float32)
        for row in range(first, last):
            scale, zero = scales[in_block[row]], zeros[in_block[row]]
            made[row] = np.clip(np.rint(left[row] / scale) + zero, 0, most)
            lost[row - first] = (left[row] - (made[row] - zero) * scale) / upper[row, row]
            left[row + 1 : last] -= np.outer(upper[row, row + 1 : last], lost[row - first])
        left[last:] -= upper[first:last, last:].T @ lost
    return made
