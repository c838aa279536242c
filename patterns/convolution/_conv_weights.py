"""Patterns of a convolution with constant weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.rewrite.pattern import Op, Pattern, all_attributes, const, op, opt, var

Array = np.ndarray[Any, Any]

x, weight, bias = var("x"), const("weight"), const("bias")

CONV = all_attributes("conv")


def convolution(data: Pattern = x) -> Op:
    """Conv of `data` with constant weights."""
    return op.Conv(data, weight, opt(bias), attributes=CONV).named("layer")
